package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/proxy"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// The headers that clients match on are spelled on the wire as documented, also those that httputil copied.
func TestHeadersAreSpelledAsDocumented(t *testing.T) {
	t.Parallel()
	g := newGate(t, gateOptions{limits: []tenants.Rule{perMinute(10)}})
	conn, err := net.Dial("tcp", g.server.Listener.Addr().String())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	_, err = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\n\r\n", g.key)
	require.NoError(t, err)
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	for _, line := range []string{"X-RateLimit-Limit: 10", "X-RateLimit-Remaining: 9", "RateLimit-Policy: ", "RateLimit: "} {
		require.Contains(t, string(answer), "\r\n"+line)
	}
}

func TestForwardsWithTheDecisionsHeaders(t *testing.T) {
	t.Parallel()
	g := newGate(t, gateOptions{limits: []tenants.Rule{perMinute(10)}, answer: func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "RateLimit", "RateLimit-Policy", "X-Pegel-Decision", "X-Pegel-Anything", "X-Request-Id"} {
			w.Header().Set(name, "upstream")
		}
		w.Header().Set("X-App", "yes")
		w.WriteHeader(http.StatusTeapot)
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s %s", r.Method, r.URL.RequestURI(), body)
	}})
	res := g.do(t, "PUT", "/v1/x?a=1", strings.NewReader("data"), "X-API-Key", g.key, "X-Request-Id", "client-1")
	require.Equal(t, http.StatusTeapot, res.StatusCode)
	require.Equal(t, "PUT /v1/x?a=1 data", res.body)
	require.Equal(t, "yes", res.Header.Get("X-App"))
	require.Equal(t, []string{"10"}, res.Header.Values("X-RateLimit-Limit"))
	require.Equal(t, []string{"9"}, res.Header.Values("X-RateLimit-Remaining"))
	require.Equal(t, []string{`"requests-per-minute";q=10;w=60`}, res.Header.Values("RateLimit-Policy"))
	require.Equal(t, "memory", res.Header.Get("X-Pegel-Source"))
	require.Len(t, res.Header.Get("X-Pegel-Decision"), 36)
	require.Empty(t, res.Header.Get("X-Pegel-Anything"))
	require.Equal(t, []string{"client-1"}, res.Header.Values("X-Request-Id"))
}

func TestUpstreamsRateHeadersPassWhenNoLimitApplies(t *testing.T) {
	t.Parallel()
	g := newGate(t, gateOptions{answer: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-RateLimit-Limit", "7") }})
	require.Equal(t, []string{"7"}, g.do(t, "GET", "/", nil).Header.Values("X-RateLimit-Limit"))
}

// B060, B057: what is between the client and us stays here.
func TestCredentialsNeverReachTheUpstream(t *testing.T) {
	t.Parallel()
	g := newGate(t, gateOptions{})
	token := g.serviceToken(t)
	forwarded := func(pairs ...string) http.Header {
		res := g.do(t, "GET", "/", nil, pairs...)
		require.Equal(t, http.StatusOK, res.StatusCode)
		return (<-g.seen).Header
	}
	for _, pairs := range [][]string{
		{"Authorization", "Bearer " + g.key},
		{"X-API-Key", g.key},
		{"X-Pegel-Service-Token", token},
		{"Authorization", "bearer " + token},
		{"X-Pegel-Service-Token", "forged pgs_" + strings.Repeat("x", 66)},
		{"X-Something", token, "Proxy-Authorization", "Bearer " + g.key},
		{"X-Pegel-Tenant", "school-17", "X-Pegel-User", "pgk_u", "x-pegel-internal", "1"},
		{"X-Pegel-Service-Token", token, "Connection", "X-Pegel-Service-Token, Authorization"},
	} {
		h := forwarded(pairs...)
		for name, lines := range h {
			require.False(t, strings.HasPrefix(strings.ToLower(name), "x-pegel"), name)
			for _, line := range lines {
				require.NotContains(t, line, "pgs_", name)
				require.NotContains(t, line, "pgk_", name)
			}
		}
	}
	require.Equal(t, "Bearer eyJ.x.y", forwarded("Authorization", "Bearer eyJ.x.y").Get("Authorization"))
	require.Equal(t, "sk_live_1", forwarded("X-API-Key", "sk_live_1").Get("X-API-Key"))
	h := forwarded("X-Pegel-Service-Token", token, "Authorization", "Basic dTpw")
	require.Equal(t, "Basic dTpw", h.Get("Authorization"), "a service forwards its client's own credential")
	require.Equal(t, []string{"mine"}, forwarded("X-Tokens", token, "X-Tokens", "mine").Values("X-Tokens"))
}

// B061: what the proxy sets cannot be taken away by naming it in Connection, nor said by a stranger.
func TestForwardingHeaders(t *testing.T) {
	t.Parallel()
	lies := []string{
		"X-Forwarded-For", "1.1.1.1", "X-Forwarded-Host", "evil.example", "X-Forwarded-Proto", "https", "X-Real-IP", "1.1.1.1",
		"Forwarded", "for=1.1.1.1", "CF-Connecting-IP", "1.1.1.1", "True-Client-IP", "1.1.1.1",
		"X_Real_IP", "1.1.1.1", "X-Forwarded_For", "1.1.1.1", "X_Pegel_Tenant", "school-18", "X_HTTP_Method_Override", "DELETE", "My_Header", "kept",
		"Connection", "", "Connection", "X-Forwarded-For, X-Real-IP, X-Forwarded-Host, X-Request-Id", "X-HTTP-Method-Override", "DELETE",
	}
	g := newGate(t, gateOptions{})
	g.do(t, "POST", "/", nil, lies...)
	h := (<-g.seen).Header
	host := strings.TrimPrefix(g.server.URL, "http://")
	require.Equal(t, []string{"127.0.0.1"}, h.Values("X-Forwarded-For"))
	require.Equal(t, []string{host}, h.Values("X-Forwarded-Host"))
	require.Equal(t, []string{"http"}, h.Values("X-Forwarded-Proto"))
	require.Equal(t, []string{"127.0.0.1"}, h.Values("X-Real-IP"))
	require.NotEmpty(t, h.Get("X-Request-Id"))
	require.Equal(t, "kept", h.Get("My_Header"))
	for _, name := range []string{
		"Forwarded", "CF-Connecting-IP", "True-Client-IP", "X-HTTP-Method-Override", "Connection",
		"X_Real_IP", "X-Forwarded_For", "X_Pegel_Tenant", "X_HTTP_Method_Override",
	} {
		require.Empty(t, h.Values(name), name)
	}

	g = newGate(t, gateOptions{trusted: []string{"127.0.0.0/8"}})
	g.do(t, "POST", "/", nil, "X-Forwarded-For", "1.1.1.1, 203.0.113.7", "X-Forwarded-Host", "api.example", "X-Forwarded-Proto", "https")
	h = (<-g.seen).Header
	require.Equal(t, "1.1.1.1, 203.0.113.7, 127.0.0.1", h.Get("X-Forwarded-For"))
	require.Equal(t, "api.example", h.Get("X-Forwarded-Host"))
	require.Equal(t, "https", h.Get("X-Forwarded-Proto"))
	require.Equal(t, "203.0.113.7", h.Get("X-Real-IP"))
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	closed := perMinute(1)
	closed.OnStoreFailure = ratelimit.FailClosed
	g := newGate(t, gateOptions{limits: []tenants.Rule{perMinute(1)}, policy: []tenants.Rule{perAddress(3)}})

	g.do(t, "GET", "/", nil, "X-API-Key", g.key)
	res := g.do(t, "GET", "/", nil, "X-API-Key", g.key)
	require.Equal(t, http.StatusTooManyRequests, res.StatusCode)
	require.NotEmpty(t, res.Header.Get("Retry-After"))
	p := res.problem(t)
	require.Equal(t, "rate_limit_exceeded", p["error"])
	require.Equal(t, res.Header.Get("X-Pegel-Decision"), p["decision_id"])
	require.Equal(t, res.Header.Get("X-Request-Id"), p["request_id"])

	for range 3 {
		res = g.do(t, "GET", "/", nil, "X-API-Key", "pgk_wrong")
		require.Equal(t, http.StatusUnauthorized, res.StatusCode)
		require.NotEmpty(t, res.Header.Get("WWW-Authenticate"))
		require.NotContains(t, res.body, "pgk_wrong")
	}
	require.Equal(t, http.StatusUnauthorized, g.do(t, "GET", "/", nil, "X-API-Key", "pgk_wrong").StatusCode, "also when the address has no room left")
	require.Equal(t, http.StatusTooManyRequests, g.do(t, "GET", "/", nil).StatusCode, "a wrong key counts against its address")
	require.EqualValues(t, 1, g.calls.Load())

	g.changes.Tenants[0].Status = tenants.Suspended
	g.apply()
	require.Equal(t, "tenant_suspended", g.do(t, "GET", "/", nil, "X-API-Key", g.key).problem(t)["error"])
	g.changes.Networks = []tenants.Network{{ID: 1, CIDR: mustPrefix("127.0.0.0/8"), Action: tenants.Deny}}
	g.apply()
	res = g.do(t, "GET", "/", nil)
	require.Equal(t, http.StatusForbidden, res.StatusCode)
	require.Equal(t, "network_denied", res.problem(t)["error"])

	g = newGate(t, gateOptions{limits: []tenants.Rule{closed}, store: away{}})
	res = g.do(t, "GET", "/", nil, "X-API-Key", g.key)
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
	require.NotEmpty(t, res.Header.Get("Retry-After"))
	require.Equal(t, "store_unavailable", res.problem(t)["error"])
	require.Zero(t, g.calls.Load())

	g = newGate(t, gateOptions{limits: []tenants.Rule{perMinute(1)}, trusted: []string{"127.0.0.0/8"}, identity: true})
	require.Equal(t, http.StatusNotFound, g.do(t, "GET", "/", nil, "X-Pegel-Tenant", "nobody").StatusCode)
	require.Equal(t, http.StatusBadRequest, g.do(t, "GET", "/", nil, "X-Pegel-Tenant", "school-17", "X-Pegel-Tenant", "x").StatusCode)
	require.Equal(t, "0", g.do(t, "GET", "/", nil, "X-Pegel-Tenant", "school-17").Header.Get("X-RateLimit-Remaining"))
}

// B064: a refusal comes before the body, and without asking for it.
func TestARefusalDoesNotReadTheBody(t *testing.T) {
	t.Parallel()
	g := newGate(t, gateOptions{limits: []tenants.Rule{perMinute(0)}})
	conn := g.raw(t, "POST / HTTP/1.1\r\nHost: x\r\nX-API-Key: "+g.key+"\r\nExpect: 100-continue\r\nContent-Length: 1000000000\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, res.Body.Close()) }()
	require.Equal(t, http.StatusTooManyRequests, res.StatusCode, "not 100")
	require.True(t, res.Close)
}

// B052: whatever the spelling, the limit holds, and the upstream gets one that it cannot read as another path.
func TestPathMatchedIsPathForwarded(t *testing.T) {
	t.Parallel()
	login := perAddress(1000)
	login.Name, login.Match = "login", tenants.Match{Methods: []string{"POST"}, Paths: []string{"/login", "/*/login"}}
	g := newGate(t, gateOptions{policy: []tenants.Rule{login}})
	used := 0
	for _, c := range []struct {
		path, forwarded string
		counted         bool
	}{
		{"/login", "/login", true},
		{"/login/", "/login/", true},
		{"//login", "/login", true},
		{"/LOGIN", "/LOGIN", true},
		{"/%6Cogin", "/login", true},
		{"/./login", "/login", true},
		{"/x/../login", "/login", true},
		{"/x/%2e%2E/login", "/login", true},
		{"/x/..;a=b/login", "/login", true},
		{"/login;a=b", "/login;a=b", true},
		{"/login?x=1", "/login?x=1", true},
		{"/x%3Fy/login", "/x%3Fy/login", true}, // an encoded question mark is a part of the path
		{"/x%23y/login", "/x%23y/login", true},
		{"/x%3By/login", "/x%3By/login", true},
		{"/login%3Fx", "/login%3Fx", false},
		{"/login%3Bx", "/login%3Bx", false},
		{"/login.json", "/login.json", false},
		{"/a%20b/ü", "/a%20b/%C3%BC", false},
		{"/a%3Bb/%40", "/a%3Bb/%40", false},
		{"/a/b/..", "/a/", false},
		{"/", "/", false},
		{"/login%2F", "", false},
		{"/login%00", "", false},
		{"/x%5Clogin", "", false},
		{"/login;a=%2F..%2F", "", false},
		{"/../login", "", false},
		{"/%252e%252e/login", "", false},
	} {
		res := g.do(t, "POST", c.path, nil)
		if c.forwarded == "" {
			require.Equal(t, http.StatusBadRequest, res.StatusCode, c.path)
			require.Equal(t, "validation", res.problem(t)["error"])
			continue
		}
		require.Equal(t, http.StatusOK, res.StatusCode, c.path)
		require.Equal(t, c.forwarded, (<-g.seen).RequestURI, c.path)
		if c.counted {
			used++
			require.Equal(t, fmt.Sprint(1000-used), res.Header.Get("X-RateLimit-Remaining"), c.path)
		} else {
			require.Empty(t, res.Header.Get("X-RateLimit-Remaining"), c.path)
		}
	}
}

func TestUpstreamWithAPath(t *testing.T) {
	t.Parallel()
	var path string
	upstream := newGate(t, gateOptions{answer: func(_ http.ResponseWriter, r *http.Request) { path = r.RequestURI }})
	target, err := url.Parse(upstream.upstream.URL + "/base/")
	require.NoError(t, err)
	g := newGate(t, gateOptions{upstream: target})
	require.Equal(t, http.StatusOK, g.do(t, "GET", "/a%20b?q=%3B", nil).StatusCode)
	require.Equal(t, "/base/a%20b?q=%3B", path)
}

func TestUpstreamFailures(t *testing.T) {
	t.Parallel()
	dead, err := url.Parse("http://127.0.0.1:1")
	require.NoError(t, err)
	g := newGate(t, gateOptions{limits: []tenants.Rule{perMinute(10)}, upstream: dead})
	res := g.do(t, "GET", "/", nil, "X-API-Key", g.key)
	require.Equal(t, http.StatusBadGateway, res.StatusCode)
	p := res.problem(t)
	require.Equal(t, "internal", p["error"])
	require.EqualValues(t, 502, p["status"])
	require.Equal(t, res.Header.Get("X-Request-Id"), p["request_id"])
	require.NotContains(t, res.body, "127.0.0.1", "the client learns nothing of what is behind")
	require.Equal(t, "9", res.Header.Get("X-RateLimit-Remaining"), "the hit stays charged")

	stuck := make(chan struct{})
	g = newGate(t, gateOptions{answer: func(http.ResponseWriter, *http.Request) { <-stuck }, transport: proxy.NewTransport(50 * time.Millisecond)})
	require.Equal(t, http.StatusGatewayTimeout, g.do(t, "GET", "/", nil).StatusCode)
	close(stuck)

	g = newGate(t, gateOptions{answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, "some")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, g.server.URL, nil)
	require.NoError(t, err)
	cut, err := g.client.Do(req)
	require.NoError(t, err)
	_, err = io.ReadAll(cut.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF, "an aborted transfer is not a clean end")
	require.NoError(t, cut.Body.Close())
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "ftp://x", "http://", "http://u:p@x", "http://x?q", "//x"} {
		u, err := url.Parse(text)
		require.NoError(t, err)
		_, err = proxy.New(proxy.Config{Upstream: u})
		require.Error(t, err, text)
		require.NotContains(t, err.Error(), "u:p")
	}
	_, err := proxy.New(proxy.Config{})
	require.Error(t, err)
}
