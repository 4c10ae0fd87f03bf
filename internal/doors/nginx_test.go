package doors_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// stores are the settings of a database and a Redis of the test's own.
func stores(t *testing.T) []string {
	t.Helper()
	return []string{"PEGEL_DATABASE_URL=" + testenv.Postgres(t), "PEGEL_REDIS_URL=" + testenv.RedisServer(t).URL()}
}

// Guarantee: behind deploy/nginx a tenant over its limit gets a true 429 with everything that Pegel says, an allowed request its
// numbers, and the application none of Pegel's credentials and everything else.
func TestNginxMakesTrueAnswersOfPegels(t *testing.T) {
	t.Parallel()
	r := startReplica(t, stores(t)...)
	n := startNginx(t, r.public, startApplication(t).addr)
	_, key := r.tenant(perMinute(3))
	header := []string{"Authorization", "Bearer " + key, "X-API-Key", key, "X-Pegel-Tenant", "forged", "X-Pegel-Source", "forged", "X-Custom", "kept"}

	a := send(t, n.addr, question{method: "POST", target: "/v1/messages?page=2", header: header[2:], body: []byte(`{"a":1}`)})
	requireRate(t, a, "3", "2")
	got := a.reached(t)
	require.Equal(t, "POST /v1/messages?page=2", got.Method+" "+got.URI)
	require.Equal(t, "kept", got.Header.Get("X-Custom"))
	require.Equal(t, a.header.Get("X-Request-Id"), got.Header.Get("X-Request-Id"))
	require.NotContains(t, string(a.body), "pgk_")
	require.NotContains(t, string(a.body), "X-Pegel")
	require.NotContains(t, string(send(t, n.addr, question{method: "GET", target: "/", header: header[:2]}).body), "Authorization")
	got = send(t, n.addr, question{method: "GET", target: "/", header: []string{"Authorization", "Basic dTpw", "X-API-Key", "theirs", "X-HTTP-Method-Override", "PUT"}}).reached(t)
	require.Equal(t, "Basic dTpw theirs", got.Header.Get("Authorization")+" "+got.Header.Get("X-Api-Key"))
	require.NotContains(t, got.Header, "X-Http-Method-Override")

	upgrade := send(t, n.addr, question{method: "GET", target: "/socket", header: []string{"X-API-Key", key, "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version", "13"}})
	require.Equal(t, http.StatusSwitchingProtocols, upgrade.status, "the handshake was the last unit")

	for _, method := range []string{"GET", "HEAD", "OPTIONS", "PUT"} {
		a = send(t, n.addr, question{method: method, target: "/", header: header[:2]})
		requireRefused(t, a, method)
		requireRate(t, a, "3", "0")
		if method != "HEAD" {
			var said map[string]any
			require.NoError(t, json.Unmarshal(a.body, &said))
			require.Equal(t, "rate_limit_exceeded", said["error"])
			require.Equal(t, a.header.Get("X-Pegel-Decision"), said["decision_id"])
			require.Equal(t, a.header.Get("X-Request-Id"), said["request_id"])
			require.Equal(t, a.header.Get("Retry-After"), strconv.Itoa(int(said["retry_after_seconds"].(float64)))) //nolint:errcheck,forcetypeassert // as shown
		}
	}

	// 401 and 403 are told apart.
	a = send(t, n.addr, question{method: "GET", target: "/", header: []string{"X-API-Key", "pgk_unknown_unknown"}})
	require.Equal(t, http.StatusUnauthorized, a.status)
	require.Equal(t, []string{`Bearer realm="pegel"`}, a.header.Values("WWW-Authenticate"))
	require.Contains(t, string(a.body), `"unauthorized"`)
	slug, suspended := r.tenant(perMinute(3))
	etag := send(t, r.admin, question{method: "GET", target: "/admin/tenants/" + slug, header: []string{"Authorization", "Bearer " + adminToken}}).header.Get("ETag")
	r.administer(http.MethodPatch, "/admin/tenants/"+slug, map[string]any{"status": "suspended"}, "If-Match", etag)
	a = send(t, n.addr, question{method: "GET", target: "/", header: []string{"X-API-Key", suspended}})
	require.Equal(t, http.StatusForbidden, a.status)
	require.Contains(t, string(a.body), `"tenant_suspended"`)
}

// requireRate: the rate headers are Pegel's, once, and not the application's own.
func requireRate(t *testing.T, a answer, limit, remaining string) {
	t.Helper()
	require.Equal(t, []string{limit}, a.header.Values("X-RateLimit-Limit"), "%d %s", a.status, a.body)
	require.Equal(t, []string{remaining}, a.header.Values("X-RateLimit-Remaining"))
	for _, name := range []string{"X-RateLimit-Reset", "RateLimit-Policy", "RateLimit", "X-Pegel-Decision"} {
		require.Len(t, a.header.Values(name), 1, name)
	}
}

// requireRefused: it is a 429 of Pegel's with Retry-After.
func requireRefused(t *testing.T, a answer, what string) {
	t.Helper()
	require.Equal(t, http.StatusTooManyRequests, a.status, "%s: %s", what, a.body)
	require.NotEmpty(t, a.header.Get("Retry-After"), what)
	require.Equal(t, "application/problem+json", a.header.Get("Content-Type"), what)
	require.NotEmpty(t, a.header.Get("X-Pegel-Decision"), what)
}

// layer is who refused a login: nginx by itself, or Pegel.
func layer(t *testing.T, a answer) string {
	t.Helper()
	switch {
	case a.status == http.StatusOK:
		return "passed"
	case a.status == http.StatusTooManyRequests && a.header.Get("Retry-After") != "" && a.header.Get("X-Pegel-Decision") != "":
		return "refused by Pegel"
	case a.status == http.StatusTooManyRequests && a.header.Get("Retry-After") == "1" && strings.Contains(string(a.body), `"limit_name":"nginx"`):
		return "refused by nginx"
	}
	require.Fail(t, "neither passed nor refused", "%d %s", a.status, a.body)
	return ""
}

// logins sends POST /login from one address at a rate for a while, each at its time whether the one before is answered or not,
// and says who refused how many.
func logins(t *testing.T, addr, client string, n int, every time.Duration) (map[string]int, time.Duration) {
	t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	counts := map[string]int{}
	begun := time.Now()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for range n {
		wg.Go(func() {
			a := send(t, addr, question{method: "POST", target: "/login", header: []string{"X-Forwarded-For", client}, body: []byte("{}")})
			mu.Lock()
			defer mu.Unlock()
			counts[layer(t, a)]++
		})
		<-tick.C
	}
	wg.Wait()
	return counts, time.Since(begun)
}

// Guarantee: ten logins a second from one address pass at five a second. nginx refuses what comes faster than it lets through,
// Pegel, exactly, what nginx's burst let through; other addresses are not touched.
func TestNginxLimitsLogins(t *testing.T) {
	t.Parallel()
	r := startReplica(t, stores(t)...)
	n := startNginx(t, r.public, startApplication(t).addr)
	counts, took := logins(t, n.addr, "44.0.0.1", 30, 100*time.Millisecond)
	t.Logf("10/s: %v in %s", counts, took.Round(time.Millisecond))
	require.LessOrEqual(t, counts["passed"], 5*(int(took/time.Second)+1), "never more than 5 in a second")
	require.GreaterOrEqual(t, counts["passed"], 5)
	if took < 4*time.Second { // on a machine that kept up
		require.Positive(t, counts["refused by nginx"], "the outer layer spares the inner one")
	}

	// All at once: nginx lets its burst through and no more.
	counts, took = logins(t, n.addr, "44.0.0.2", 40, time.Millisecond)
	t.Logf("at once: %v in %s", counts, took.Round(time.Millisecond))
	require.LessOrEqual(t, counts["passed"], 5*(int(took/time.Second)+1))
	require.Positive(t, counts["refused by nginx"])

	require.Equal(t, "passed", layer(t, send(t, n.addr, question{method: "POST", target: "/login", header: []string{"X-Forwarded-For", "44.0.0.3"}, body: []byte("{}")})))
	// An IPv6 client owns 64 bits.
	passed := 0
	for i := range 20 {
		a := send(t, n.addr, question{method: "POST", target: "/register", header: []string{"X-Forwarded-For", "2001:db8:7:1::" + strconv.Itoa(i+1)}, body: []byte("{}")})
		if layer(t, a) == "passed" {
			passed++
		}
	}
	require.Less(t, passed, 20)
	require.Equal(t, "passed", layer(t, send(t, n.addr, question{method: "POST", target: "/register", header: []string{"X-Forwarded-For", "2001:db8:7:2::1"}, body: []byte("{}")})))
}

// Guarantee: a service with a token is not held to an address's limits by nginx either, and an unchecked credential is no way
// around the limits: Pegel is right behind.
func TestNginxLeavesCredentialsToPegel(t *testing.T) {
	t.Parallel()
	r := startReplica(t, stores(t)...)
	n := startNginx(t, r.public, startApplication(t).addr)
	service := r.service()
	for range 20 {
		a := send(t, n.addr, question{method: "POST", target: "/login", header: []string{"X-Forwarded-For", "44.0.1.1", "X-Pegel-Service-Token", service}, body: []byte("{}")})
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	}
	refused := 0
	for range 20 {
		a := send(t, n.addr, question{method: "POST", target: "/login", header: []string{"X-Forwarded-For", "44.0.1.2", "X-Pegel-Service-Token", "pgs_forged_forged"}, body: []byte("{}")})
		if layer(t, a) == "refused by Pegel" {
			refused++
		}
	}
	require.Positive(t, refused)
}

// Guarantee: the shipped script brings the deny list to a running nginx, at once or not at all; whatever goes wrong, the old list
// stays and nginx goes on.
func TestNginxDenyList(t *testing.T) {
	t.Parallel()
	r := startReplica(t, stores(t)...)
	r.policy()
	n := startNginx(t, r.public, startApplication(t).addr)
	viewer := r.secret(r.administer(http.MethodPost, "/admin/admin-tokens", map[string]any{"name": "nginx", "role": "viewer"}))
	require.NoError(t, os.WriteFile(n.conf("viewer.token"), []byte(viewer+"\n"), 0o600))
	list := n.conf("pegel/denied.conf")
	refresh := func(env ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), n.conf("bin/pegel-denied"))
		cmd.Env = append(append(os.Environ(), "PEGEL_ADMIN_URL=http://"+r.admin, "PEGEL_TOKEN_FILE="+n.conf("viewer.token"),
			"PEGEL_DENIED="+list, "NGINX="+n.binary+" "+strings.Join(n.args(), " ")), env...)
		said, err := cmd.CombinedOutput()
		return string(said), err
	}
	becomes := func(client string, status int) {
		require.Eventually(t, func() bool {
			return send(t, n.addr, question{method: "GET", target: "/", header: []string{"X-Forwarded-For", client}}).status == status
		}, 20*time.Second, 50*time.Millisecond, "%s becomes %d", client, status)
	}
	r.administer(http.MethodPost, "/admin/networks", map[string]any{"cidr": "198.51.100.0/24", "action": "deny", "reason": "attack"})
	r.administer(http.MethodPost, "/admin/networks", map[string]any{"cidr": "198.51.100.7/32", "action": "allow", "reason": "ours"})
	r.administer(http.MethodPost, "/admin/networks", map[string]any{"cidr": "2001:db8:bad::/48", "action": "deny", "reason": "attack"})
	said, err := refresh()
	require.NoError(t, err, said)
	require.Empty(t, said)
	becomes("198.51.100.8", http.StatusForbidden)
	becomes("2001:db8:bad::1", http.StatusForbidden)
	becomes("198.51.100.7", http.StatusOK)
	becomes("192.0.2.1", http.StatusOK)
	a := send(t, n.addr, question{method: "GET", target: "/", header: []string{"X-Forwarded-For", "198.51.100.8"}})
	require.Contains(t, string(a.body), `"network_denied"`)

	before, err := os.ReadFile(list)
	require.NoError(t, err)
	require.Contains(t, string(before), "deny 198.51.100.0/24;")
	for name, env := range map[string][]string{
		"Pegel is away":          {"PEGEL_ADMIN_URL=http://127.0.0.1:1"},
		"a wrong token":          {"PEGEL_TOKEN_FILE=" + list},
		"no token":               {"PEGEL_TOKEN_FILE="},
		"another answer":         {"PEGEL_ADMIN_URL=" + fixed(t, "allow all;\n")},
		"a directive smuggled":   {"PEGEL_ADMIN_URL=" + fixed(t, "deny 1.2.3.4; return 200;\n")},
		"a page":                 {"PEGEL_ADMIN_URL=" + fixed(t, "<html>")},
		"what nginx cannot read": {"PEGEL_ADMIN_URL=" + fixed(t, "deny 1.2.3.4.5;\n")},
	} {
		said, err := refresh(env...)
		require.Error(t, err, name)
		require.Regexp(t, `^pegel-denied: .+; the old list stays\n$`, said, name)
		require.NotContains(t, said, viewer)
		after, err := os.ReadFile(list)
		require.NoError(t, err)
		require.Equal(t, string(before), string(after), name)
	}
	entries, err := os.ReadDir(n.conf("pegel"))
	require.NoError(t, err)
	require.Len(t, entries, 6, "no leftovers: %v", entries)
	becomes("198.51.100.8", http.StatusForbidden)
}

// fixed answers everything with a text.
func fixed(t *testing.T, text string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }))
	t.Cleanup(server.Close)
	return server.URL
}
