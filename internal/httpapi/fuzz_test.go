package httpapi_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/api"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// Each fuzzer sends whatever it likes to real handlers over a real Postgres and holds every answer to the contract: no 5xx
// but a documented 503 of a store that is away, and none is. `make fuzz` gives each thirty seconds.

// jsonRoutes are all routes with a body.
func jsonRoutes() [][2]string {
	return [][2]string{
		{http.MethodPost, "/v1/check"},
		{http.MethodPost, "/v1/check/batch"},
		{http.MethodPost, "/admin/plans"},
		{http.MethodPut, "/admin/plans/light"},
		{http.MethodPost, "/admin/tenants"},
		{http.MethodPatch, "/admin/tenants/school-17"},
		{http.MethodPost, "/admin/tenants/school-17/keys"},
		{http.MethodPost, "/admin/tenants/school-17/keys/abc/rotate"},
		{http.MethodPost, "/admin/service-tokens"},
		{http.MethodPost, "/admin/service-tokens/abc/rotate"},
		{http.MethodPost, "/admin/admin-tokens"},
		{http.MethodPut, "/admin/address-policy"},
		{http.MethodPut, "/admin/mode"},
		{http.MethodPost, "/v1/refund"},
		{http.MethodPut, "/admin/tenants/school-17/overrides/requests-per-minute"},
		{http.MethodPost, "/admin/networks"},
		{http.MethodPost, "/admin/configuration"},
	}
}

// Every operation of the contract that takes a body is fuzzed.
func TestEveryJSONRouteIsFuzzed(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	require.NoError(t, err)
	var want, got []string
	for path, item := range doc.Paths.Map() {
		for method, operation := range item.Operations() {
			if operation.RequestBody != nil {
				want = append(want, method+" "+path)
			}
		}
	}
	require.NotEmpty(t, want)
	for _, route := range jsonRoutes() {
		for path, item := range doc.Paths.Map() {
			if item.GetOperation(route[0]) != nil && matchesTemplate(path, route[1]) {
				got = append(got, route[0]+" "+path)
			}
		}
	}
	require.ElementsMatch(t, want, got)
}

// matchesTemplate reports whether a path is one of a template of the contract, such as /admin/plans/{plan}.
func matchesTemplate(template, path string) bool {
	t, p := strings.Split(template, "/"), strings.Split(path, "/")
	return slices.EqualFunc(t, p, func(t, p string) bool { return t == p || strings.HasPrefix(t, "{") })
}

// fuzzWorld is a world that lasts for all inputs, with the credentials that open its doors.
func fuzzWorld(f *testing.F) (w *world, service string) {
	f.Helper()
	w = newWorld(f)
	w.tenant("school-17", "light")
	w.policy()
	return w, w.service("fuzz", true, tenants.MayCheck, tenants.MayStatus, tenants.MayRefund, tenants.MayIdentify)
}

// try sends a request straight to the handler of its listener.
func (w *world) try(t *testing.T, service, method, target string, body []byte, header http.Header) {
	t.Helper()
	u, err := url.ParseRequestURI(target)
	if err != nil {
		return // no client could send it
	}
	req := httptest.NewRequest(method, "/", io.NopCloser(bytes.NewReader(body)))
	req.URL, req.RequestURI, req.ContentLength = u, target, int64(len(body))
	req.RemoteAddr = "127.0.0.1:1"
	server, credential := w.public, service
	if strings.HasPrefix(u.Path, "/admin") {
		server, credential = w.admin, bootstrap
	}
	req.Header.Set("Authorization", "Bearer "+credential)
	for name, values := range header {
		req.Header[name] = values
	}
	rec := httptest.NewRecorder()
	server.Config.Handler.ServeHTTP(rec, req)
	here := *w
	here.t = t
	if rec.Code >= http.StatusInternalServerError {
		t.Fatalf("%s %s: %d %s", method, target, rec.Code, rec.Body)
	}
	req.URL.Host = strings.TrimPrefix(server.URL, "http://")
	here.hold(req, &response{t: t, status: rec.Code, header: rec.Header(), body: rec.Body.Bytes()})
}

func FuzzJSONRoutes(f *testing.F) {
	w, service := fuzzWorld(f)
	routes := jsonRoutes()
	for body := range malformedChecks() {
		if len(body) < 1000 {
			f.Add(uint8(0), []byte(body))
		}
	}
	f.Add(uint8(1), []byte(`{"checks":[{"tenant":"school-17"},{"tenant":"school-17","cost":0,"path":"/a/../b"}]}`))
	f.Add(uint8(2), []byte(wirePlan))
	f.Add(uint8(3), []byte(strings.Replace(wirePlan, "light2", "light", 1)))
	f.Add(uint8(4), []byte(`{"slug":"a","name":"é","plan":"light","metadata":{"k":"v"},"contact_email":"a@example.org"}`))
	f.Add(uint8(5), []byte(`{"metadata":{"k":"v"},"status":"suspended","plan":"pro","name":"\ud83d\ude00"}`))
	f.Add(uint8(6), []byte(`{"name":"k","expires_at":"2100-01-01T00:00:00.5+01:00"}`))
	f.Add(uint8(7), []byte(`{"overlap":"1h0.5m","expires_at":null}`))
	f.Add(uint8(8), []byte(`{"name":"s","exempt":["address"],"may":["check"]}`))
	f.Add(uint8(10), []byte(`{"name":"a","role":"admin"}`))
	f.Add(uint8(11), []byte(`{"limits":[{"name":"x","limit":5,"window":"1s","applies_to":"all","match":{"methods":["post"],"paths":["/a/*"]}}]}`))
	f.Add(uint8(12), []byte(`{"mode":"shadow"}`))
	f.Add(uint8(13), []byte(`{"tenant":"school-17","user":"u","cost":3,"method":"GET","path":"/a"}`))
	f.Fuzz(func(t *testing.T, route uint8, body []byte) {
		r := routes[int(route)%len(routes)]
		w.try(t, service, r[0], r[1], body, http.Header{"If-Match": {"*"}})
	})
}

func FuzzQueries(f *testing.F) {
	w, service := fuzzWorld(f)
	paths := []string{"/v1/status", "/v1/ping", "/admin/plans", "/admin/tenants", "/admin/tenants/school-17/keys", "/admin/audit", "/admin/rate-limits", "/admin/service-tokens", "/admin/admin-tokens"}
	for i, query := range []string{"tenant=school-17&user=u&key=k", "address=203.0.113.7", "limit=5&cursor=abc", "search=%25&status=active&plan=light", "from=2026-01-01T00:00:00Z&to=2026-01-01T00:00:00.1%2B01:00&actor=a", "top=5", "limit=%00", "a=%zz", "limit=1&limit=2", ";", "user=\xff"} {
		f.Add(uint8(i), query)
	}
	f.Fuzz(func(t *testing.T, path uint8, query string) {
		w.try(t, service, http.MethodGet, paths[int(path)%len(paths)]+"?"+query, nil, nil)
	})
}

func FuzzHeaders(f *testing.F) {
	w, service := fuzzWorld(f)
	names := []string{
		"Authorization", "X-Api-Key", "X-Pegel-Service-Token", "X-Pegel-Tenant", "X-Pegel-User", "X-Client-Key", "X-Forwarded-For", "Forwarded",
		"X-Request-Id", "If-Match", "If-None-Match", "Idempotency-Key", "Content-Type", "Content-Encoding",
	}
	for i, value := range []string{"Bearer pgk_x_y", "pgk_", "pgs_", "school-17", "u\xff", "k", "1.2.3.4, [::1]:99, unknown", "for=\"[::1%eth0]:1\";by=x", "id", `"1"`, "*", "key", "application/json; charset=\"", "gzip"} {
		f.Add(uint8(i), value, value)
	}
	f.Fuzz(func(t *testing.T, name uint8, value, second string) {
		for _, v := range []string{value, second} {
			if strings.ContainsFunc(v, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
				return // net/http never lets it in
			}
		}
		header := http.Header{names[int(name)%len(names)]: {value}}
		if second != "" {
			header[names[(int(name)+1)%len(names)]] = []string{second, value}
		}
		w.try(t, service, http.MethodPost, "/v1/check", []byte(`{"tenant":"school-17"}`), header)
		w.try(t, service, http.MethodGet, "/v1/status", nil, header)
		w.try(t, service, http.MethodGet, "/v1/ping", nil, header)
		w.try(t, service, http.MethodPost, "/admin/tenants/school-17/keys", []byte(`{"name":"k"}`), header)
		w.try(t, service, http.MethodPut, "/admin/plans/light", []byte(strings.Replace(wirePlan, "light2", "light", 1)), header)
	})
}
