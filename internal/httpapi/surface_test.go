package httpapi_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/httpapi"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/tenants"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// anyAddress gives every request the same address.
type anyAddress struct{}

func (anyAddress) Resolve(*http.Request) (netip.Prefix, bool) {
	return netip.MustParsePrefix("203.0.113.7/32"), false
}

func record(h http.Handler, method, path, body string, header ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, req)
	return rec
}

func TestTheDocumentationNeedsNoOtherHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	page := w.do(w.public, request{method: http.MethodGet, path: "/docs"}).ok(http.StatusOK)
	policy := page.header.Get("Content-Security-Policy")
	require.Contains(t, policy, "default-src 'none'")
	require.Contains(t, policy, "script-src 'self';")
	require.Contains(t, policy, "style-src 'self';")
	require.NotContains(t, policy, "unsafe")
	require.NotContains(t, policy, "http")
	require.Equal(t, "nosniff", page.header.Get("X-Content-Type-Options"))

	outside := regexp.MustCompile(`(?i)(src|href|url)\s*[=:(]\s*["']?(https?:)?//`)
	require.NotRegexp(t, outside, string(page.body))
	require.NotRegexp(t, `(?i)<script>|<style|\son[a-z]+=|style=`, string(page.body), "nothing inline")
	for _, ref := range regexp.MustCompile(`(?:src|href)="([^"]+)"`).FindAllStringSubmatch(string(page.body), -1) {
		file := w.do(w.public, request{method: http.MethodGet, path: "/" + ref[1]}).ok(http.StatusOK)
		require.NotEmpty(t, file.body, ref[1])
		if strings.HasSuffix(ref[1], ".css") || strings.HasSuffix(ref[1], "init.js") {
			require.NotRegexp(t, outside, string(file.body), ref[1])
		}
	}
	w.do(w.public, request{method: http.MethodGet, path: "/docs/LICENSE"}).ok(http.StatusOK)
	w.do(w.public, request{method: http.MethodGet, path: "/docs/README.md"}).problem(problem.NotFound)
	w.do(w.public, request{method: http.MethodGet, path: "/docs/..%2froutes.go"}).problem(problem.NotFound)
	document := w.do(w.public, request{method: http.MethodGet, path: "/openapi.yaml"}).ok(http.StatusOK)
	require.True(t, strings.HasPrefix(string(document.body), "openapi: 3."))
}

func TestUnknownPathsAndMethodsAreProblems(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, path := range []string{"/none", "/v1", "/v1/", "/v1/check/", "/v1/checks", "/admin/plans", "/V1/check", "//v1/check"} {
		w.do(w.public, request{method: http.MethodPost, path: path}).problem(problem.NotFound)
	}
	w.do(w.admin, request{method: http.MethodPost, path: "/v1/check"}).problem(problem.NotFound)
	r := w.do(w.public, request{method: http.MethodGet, path: "/v1/check"})
	r.problem(problem.MethodNotAllowed)
	require.Equal(t, "POST", r.header.Get("Allow"))
	r = w.do(w.public, request{method: http.MethodDelete, path: "/v1/ping"})
	r.problem(problem.MethodNotAllowed)
	require.Equal(t, "GET, HEAD", r.header.Get("Allow"))
	r = w.administer(http.MethodPatch, "/admin/plans/light", "{}")
	r.problem(problem.MethodNotAllowed)
	require.ElementsMatch(t, []string{"GET", "PUT", "DELETE", "HEAD"}, strings.Split(r.header.Get("Allow"), ", "))
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	with := func(id string) string {
		return w.do(w.public, request{method: http.MethodGet, path: "/healthz", header: map[string]string{"X-Request-Id": id}}).header.Get("X-Request-Id")
	}
	require.Equal(t, "abc-1._Z", with("abc-1._Z"))
	for _, insane := range []string{"", " ", "a b", "a\tb", "é", strings.Repeat("a", 129), `"`, "<script>"} {
		got := with(insane)
		require.NotEqual(t, insane, got)
		require.Regexp(t, `^[0-9a-f-]{36}$`, got)
	}
	first, second := with(""), with("")
	require.NotEqual(t, first, second)
}

// faultyEngine panics where a bug would.
type faultyEngine struct{ httpapi.Engine }

func (faultyEngine) Identify(c decision.Credentials, _ netip.Prefix) decision.Caller {
	panic("secret " + c.Authorization[0])
}

func TestAPanicIsAProblemAndKeepsSecrets(t *testing.T) {
	t.Parallel()
	logs := &logBuffer{}
	directory := tenants.NewDirectory(0)
	directory.Apply(tenants.Changes{Version: 1, Full: true}, clockStart())
	handler, err := httpapi.NewPublic(httpapi.PublicConfig{Common: httpapi.Common{
		Engine: faultyEngine{}, Directory: directory, Addresses: anyAddress{}, Now: clockStart, Log: slog.New(slog.NewTextHandler(io.MultiWriter(logs), nil)),
	}})
	require.NoError(t, err)
	rec := record(handler, http.MethodGet, "/v1/ping", "", "Authorization", "Bearer pgk_canary", "X-Request-Id", "here")
	require.Equal(t, http.StatusInternalServerError, rec.Code)
	require.Equal(t, problem.ContentType, rec.Header().Get("Content-Type"))
	require.Contains(t, rec.Body.String(), `"request_id":"here"`)
	require.Contains(t, logs.String(), "request_id=here")
	require.NotContains(t, logs.String(), "canary")
	require.NotContains(t, rec.Body.String(), "canary")
}

// Guarantee: who asks one listener for what the other one has is told so, and by nothing else that is not there.
func TestTheOtherListenerIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for path, server := range map[string]*httptest.Server{
		"/admin": w.public, "/admin/tenants": w.public, "/admin/tenants/a%2Fb": w.public, "/dashboard/sign-in": w.public, "/metrics": w.public,
		"/v1/check": w.admin, "/authz/forward": w.admin,
	} {
		r := w.do(server, request{method: http.MethodPost, path: path})
		asked, setting := "public", "PEGEL_ADMIN_LISTEN"
		if server == w.admin {
			asked, setting = "admin", "PEGEL_LISTEN"
		}
		require.Equal(t, asked, r.header.Get("X-Pegel-Listener"), path)
		require.Contains(t, r.problem(problem.NotFound).Detail, setting, path)
	}
	for path, server := range map[string]*httptest.Server{"/administrator": w.public, "/v1/nothing": w.public, "/admin/nothing": w.admin, "/v10": w.admin} {
		r := w.do(server, request{method: http.MethodGet, path: path})
		require.Empty(t, r.header.Get("X-Pegel-Listener"), path)
		require.Equal(t, "there is nothing at this path", r.problem(problem.NotFound).Detail, path)
	}
}
