package dashboard_test

import (
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// cookieOf is the session cookie as the server set it.
func cookieOf(t *testing.T, w *world, token string, header http.Header) *http.Cookie {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	b := &browser{w: w, c: &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	r := b.request(http.MethodPost, "/dashboard/sign-in", strings.NewReader(url.Values{"token": {token}}.Encode()))
	r.Header = header.Clone()
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	p := b.do(r)
	require.Equal(t, http.StatusSeeOther, p.status, "%s", p.body)
	for _, line := range p.header.Values("Set-Cookie") {
		if c, err := http.ParseSetCookie(line); err == nil && c.Name == "pegel_session" {
			return c
		}
	}
	require.Fail(t, "no session cookie")
	return nil
}

// with asks for a page with a cookie of this value.
func (b *browser) with(value, path string) seen {
	b.w.t.Helper()
	r := b.request(http.MethodGet, path, nil)
	r.AddCookie(&http.Cookie{Name: "pegel_session", Value: value})
	return b.do(r)
}

// Guarantee: the cookie is out of reach of scripts and other sites, travels only over TLS where there is TLS, holds no part of the
// token that can be read, and a changed one is worth nothing.
func TestSessionCookie(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, token := w.administrator(tenants.Viewer)
	for name, bearer := range map[string]string{"admin token": token, "bootstrap": bootstrap} {
		c := cookieOf(t, w, bearer, http.Header{})
		require.True(t, c.HttpOnly, name)
		require.Equal(t, http.SameSiteStrictMode, c.SameSite)
		require.Equal(t, "/dashboard", c.Path)
		require.False(t, c.Secure, "the tests' server speaks no TLS")
		require.Equal(t, int((12 * time.Hour).Seconds()), c.MaxAge)
		require.NotContains(t, c.Value, bearer[len(bearer)-20:])
		require.True(t, cookieOf(t, w, bearer, http.Header{"X-Forwarded-Proto": {"https"}}).Secure, "a trusted proxy says that the browser speaks TLS")

		require.Equal(t, "/dashboard", w.browser().with(c.Value, "/dashboard").path)
		parts := strings.Split(c.Value, ".")
		for what, value := range map[string]string{
			"longer life":        strings.Join([]string{parts[0], parts[1], "4102444800", parts[3]}, "."),
			"later":              strings.Join([]string{parts[0], parts[1], parts[2] + "0", parts[3]}, "."),
			"another's":          strings.Join([]string{parts[0], "someoneelse12345", parts[2], parts[3]}, "."),
			"cut":                c.Value[:len(c.Value)-2],
			"head only":          strings.Join(parts[:3], ".") + ".",
			"no base64":          strings.Join(parts[:3], ".") + ".!!!",
			"nothing":            "",
			"the id":             id,
			"the token":          bearer,
			"very long":          strings.Repeat("a", 5000),
			"other version":      "v2" + c.Value[2:],
			"not a time":         strings.Join([]string{parts[0], parts[1], "now", parts[3]}, "."),
			"too many parts":     c.Value + ".x",
			"another's ciphered": strings.Join(append(parts[:3:3], strings.Split(cookieOf(t, w, bearer, http.Header{}).Value, ".")[3][1:]), "."),
		} {
			require.Equal(t, "/dashboard/sign-in", w.browser().with(value, "/dashboard/tenants").path, "%s of %s", what, name)
		}
	}
	require.NotContains(t, w.logs.String(), token)
	require.NotContains(t, w.logs.String(), bootstrap)
}

// Guarantee: a session ends with its token, whatever ends that: revoked, expired; and by itself after twelve hours.
func TestSessionEndsWithItsToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, token := w.administrator(tenants.Operator)
	b := w.signIn(token)
	require.Equal(t, "/dashboard/plans", b.get("/dashboard/plans").path)
	require.NoError(t, w.repository.RevokeAdminToken(t.Context(), testActor, id))
	w.refresh() // in a replica: the next poll, within 250 ms
	p := b.get("/dashboard/plans")
	require.Equal(t, "/dashboard/sign-in", p.path)
	require.Equal(t, "/dashboard/plans", p.value(t, "next"), "the way back")
	require.Equal(t, http.StatusUnauthorized, b.post("/dashboard/sign-in", "token", token).status)

	_, token = w.administrator(tenants.Viewer)
	b = w.signIn(token)
	w.advance(12*time.Hour - time.Minute)
	require.Equal(t, "/dashboard/plans", b.get("/dashboard/plans").path)
	w.advance(2 * time.Minute)
	require.Equal(t, "/dashboard/sign-in", b.get("/dashboard/plans").path)
}

func TestSignOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.signIn(bootstrap)
	require.Equal(t, "/dashboard/sign-in", b.post("/dashboard/sign-out").path)
	require.Equal(t, "/dashboard/sign-in", b.get("/dashboard").path)
}

// Guarantee: attempts to sign in are counted against their address like any wrong credential, and a right token is never
// in the way of them.
func TestSignInAttemptsAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.browser()
	limited := false
	for range 400 {
		p := b.post("/dashboard/sign-in", "token", "pga_nonsense")
		require.NotContains(t, p.body, "pga_nonsense", "what was entered never comes back")
		if limited = p.status == http.StatusTooManyRequests; limited {
			require.Contains(t, p.body, "Too many attempts")
			require.NotEmpty(t, p.header.Get("Retry-After"))
			break
		}
		require.Equal(t, http.StatusUnauthorized, p.status)
	}
	require.True(t, limited)
	w.signIn(bootstrap)
}

// Guarantee: no other site's page changes anything, and neither does a request that does not say where it comes from.
func TestOtherSitesChangeNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tenant("school-17", "School 17", "light")
	b := w.signIn(bootstrap)
	for name, header := range map[string]http.Header{
		"another site":         {"Sec-Fetch-Site": {"cross-site"}, "Origin": {"https://evil.example"}},
		"a sibling":            {"Sec-Fetch-Site": {"same-site"}},
		"another origin alone": {"Origin": {"https://evil.example"}},
		"an opaque origin":     {"Origin": {"null"}},
		"nothing":              {},
	} {
		r := b.request(http.MethodPost, "/dashboard/tenants/school-17", strings.NewReader("status=suspended&etag=*"))
		r.Header = header
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		require.Equal(t, http.StatusForbidden, b.do(r).status, name)
	}
	tenant, err := w.repository.Tenant(t.Context(), "school-17")
	require.NoError(t, err)
	require.Equal(t, tenants.Active, tenant.Status)
}

// Guarantee: after signing in, nobody's link leads out of the dashboard.
func TestWayBackStaysInside(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, next := range []string{"https://evil.example", "//evil.example/dashboard", "/\\evil.example", "/admin/plans", "/dashboard/sign-out", "javascript:alert(1)", "/dashboard/../admin", "/dashboardx"} {
		p := w.browser().post("/dashboard/sign-in", "token", bootstrap, "next", next)
		require.Equal(t, "127.0.0.1", strings.Split(strings.TrimPrefix(w.admin.URL, "http://"), ":")[0])
		require.True(t, strings.HasPrefix(p.path, "/dashboard"), "%s leads to %s", next, p.path)
	}
	require.Equal(t, "/dashboard/plans", w.browser().post("/dashboard/sign-in", "token", bootstrap, "next", "/dashboard/plans?x=1").path)
}
