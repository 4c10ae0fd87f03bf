package httpapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/httpapi"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// asked is what a proxy sends to a door: its own facts, then what the test adds. Each pair is a line.
type asked struct {
	path  string
	lines [][2]string
}

// traefik is the request that Traefik's ForwardAuth sends, header by header as its documentation has it.
func traefik(method, uri string, more ...string) asked {
	return asked{"/authz/forward", append([][2]string{
		{"X-Forwarded-Method", method},
		{"X-Forwarded-Proto", "https"},
		{"X-Forwarded-Host", "api.example.org"},
		{"X-Forwarded-Uri", uri},
		{"X-Forwarded-For", "203.0.113.7"},
	}, pairs(more)...)}
}

// nginx is the request that auth_request sends with deploy/nginx.
func nginx(method, uri string, more ...string) asked {
	return asked{"/authz/nginx", append([][2]string{
		{"X-Original-Method", method}, {"X-Original-URI", uri}, {"X-Forwarded-For", "203.0.113.7"},
	}, pairs(more)...)}
}

func pairs(list []string) (out [][2]string) {
	for i := 0; i+1 < len(list); i += 2 {
		out = append(out, [2]string{list[i], list[i+1]})
	}
	return out
}

// without drops the lines of a header.
func (a asked) without(name string) asked {
	kept := asked{path: a.path}
	for _, line := range a.lines {
		if !strings.EqualFold(line[0], name) {
			kept.lines = append(kept.lines, line)
		}
	}
	return kept
}

func (w *world) ask(a asked) *response {
	w.t.Helper()
	return w.send(w.asking(http.MethodGet, a))
}

func (w *world) asking(method string, a asked) *http.Request {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.public.URL+a.path, http.NoBody)
	require.NoError(w.t, err)
	for _, line := range a.lines {
		req.Header.Add(line[0], line[1])
	}
	return req
}

// doors is both dialects.
func doors() map[string]func(method, uri string, more ...string) asked {
	return map[string]func(method, uri string, more ...string) asked{"forward": traefik, "nginx": nginx}
}

// Guarantee: a door charges one unit to whoever sent the proxy's request, on the path the proxy states, and its answer has the
// headers of every decided answer.
func TestDoorsDecideOnTheStatedRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plan("small", 10, tenants.Rule{
		Limit: ratelimit.Limit{Name: "exports", Quota: 2, Window: time.Minute},
		Match: tenants.Match{Methods: []string{"POST"}, Paths: []string{"/v1/exports/*"}},
	})
	for name, ask := range doors() {
		key := w.tenant("school-"+name, "small")
		r := w.ask(ask("GET", "/v1/messages?page=2", "Authorization", "Bearer "+key)).ok(http.StatusOK)
		require.Empty(t, r.body)
		require.Equal(t, "9", r.header.Get("X-RateLimit-Remaining"))
		require.Equal(t, `"requests-per-minute";q=10;w=60`, r.header.Get("RateLimit-Policy"))
		require.NotEmpty(t, r.header.Get("X-Pegel-Decision"))
		require.Empty(t, r.header.Get("X-Pegel-Status"))

		r = w.ask(ask("POST", "/v1//exports/a;x=y", "X-API-Key", key)).ok(http.StatusOK)
		require.Equal(t, `"exports";q=2;w=60`, r.header.Get("RateLimit-Policy"))
		require.Equal(t, "1", r.header.Get("X-RateLimit-Remaining"))

		// Whatever method the proxy itself uses, its headers say what is asked.
		for _, method := range []string{"HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
			answer, err := http.DefaultTransport.RoundTrip(w.asking(method, ask("GET", "/", "X-API-Key", key)))
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			require.Equal(t, http.StatusOK, answer.StatusCode, method)
		}
		w.ask(ask("OPTIONS", "/v1/exports/a", "X-API-Key", key, "Origin", "https://app.example.org", "Access-Control-Request-Method", "POST")).ok(http.StatusOK)
		r = w.ask(ask("GET", "/socket", "X-API-Key", key, "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")).ok(http.StatusOK)
		require.Equal(t, "0", r.header.Get("X-RateLimit-Remaining"), "every request was one unit")
	}
}

// Guarantee (B065): facts that are missing, come twice, contradict each other or can be read as two paths are a 403, and nothing
// is charged.
func TestDoorsRefuseUnclearFacts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	refused := map[string]asked{
		"a rival of nginx":           traefik("GET", "/cheap", "X-Original-URI", "/login"),
		"a rival URL of nginx":       traefik("GET", "/cheap", "X-Original-URL", "https://api.example.org/login"),
		"a rival method of nginx":    traefik("GET", "/login", "X-Original-Method", "POST"),
		"a rival of Traefik":         nginx("GET", "/cheap", "X-Forwarded-Uri", "/login"),
		"a rival method of Traefik":  nginx("GET", "/login", "X-Forwarded-Method", "POST"),
		"one rival of two":           nginx("GET", "/cheap", "X-Forwarded-Uri", "/cheap", "X-Forwarded-Uri", "/login"),
		"a rival without a path":     nginx("GET", "/cheap", "X-Original-URL", "cheap"),
		"another scheme":             traefik("GET", "/").without("X-Forwarded-Proto").with("X-Forwarded-Proto", "file"),
		"two schemes":                traefik("GET", "/").without("X-Forwarded-Proto").with("X-Forwarded-Proto", "https, http"),
		"two hosts":                  traefik("GET", "/").without("X-Forwarded-Host").with("X-Forwarded-Host", "a, b"),
		"a host of a thousand bytes": traefik("GET", "/").without("X-Forwarded-Host").with("X-Forwarded-Host", strings.Repeat("a", 1000)),
	}
	for door, ask := range doors() {
		facts := []string{"X-Original-Method", "X-Original-URI"}
		if door == "forward" {
			facts = []string{"X-Forwarded-Method", "X-Forwarded-Uri", "X-Forwarded-Proto", "X-Forwarded-Host"}
		}
		for _, name := range facts {
			whole := ask("GET", "/")
			refused["no "+name] = whole.without(name)
			refused["empty "+name] = whole.without(name).with(name, "")
			for _, line := range whole.lines {
				if line[0] == name {
					refused["twice "+name] = whole.with(name, line[1])
				}
			}
		}
		for _, method := range []string{"GET, POST", "GET POST", "G\tT", "G=T", strings.Repeat("A", 33)} {
			refused[door+" method "+method] = ask(method, "/")
		}
		for _, uri := range []string{"login", "*", "/login%2F", "/login%00", "/../login", `/a\login`, "/%zz", "/%252e%252e/login", "/" + strings.Repeat("a", 9000), "http:login"} {
			refused[door+" uri "+uri[:min(len(uri), 20)]] = ask("GET", uri)
		}
	}
	for name, a := range refused {
		r := w.ask(a)
		r.problem(problem.Forbidden)
		require.Equal(t, "403", r.header.Get("X-Pegel-Status"), name)
		require.Empty(t, r.header.Get("X-Pegel-Decision"), name)
	}
	require.Zero(t, w.memory.takes.Load(), "nothing was charged")

	for name, a := range map[string]asked{
		"agreeing rivals": traefik("GET", "/a/b?x", "X-Original-URI", "/a//b?y", "X-Original-Method", "get", "X-Original-URL", "https://h/a/b"),
		"absolute form":   nginx("GET", "http://api.example.org/a?b"),
		"a WebSocket":     traefik("GET", "/").without("X-Forwarded-Proto").with("X-Forwarded-Proto", "wss"),
		"a port":          traefik("GET", "/").without("X-Forwarded-Host").with("X-Forwarded-Host", "[2001:db8::1]:8443"),
	} {
		require.Equal(t, http.StatusOK, w.ask(a).status, name)
	}
}

func (a asked) with(name, value string) asked {
	return asked{path: a.path, lines: append(append([][2]string(nil), a.lines...), [2]string{name, value})}
}

// Guarantee (B065): the doors answer trusted proxies only; anybody else would choose its own facts.
func TestDoorsAreForTrustedProxies(t *testing.T) {
	t.Parallel()
	directory := tenants.NewDirectory(0)
	directory.Apply(tenants.Changes{Version: 1, Full: true}, clockStart())
	engine := decision.New(decision.Config{Store: ratelimit.NewMemory(func() int64 { return 1 }, 0), Directory: directory, Now: clockStart})
	handler, err := httpapi.NewPublic(httpapi.PublicConfig{Common: httpapi.Common{
		Engine: engine, Directory: directory, Addresses: anyAddress{}, Now: clockStart, Log: discard(),
	}})
	require.NoError(t, err)
	for _, ask := range doors() {
		a := ask("GET", "/")
		header := make([]string, 0, 2*len(a.lines))
		for _, line := range a.lines {
			header = append(header, line[0], line[1])
		}
		rec := record(handler, http.MethodGet, a.path, "", header...)
		require.Equal(t, http.StatusForbidden, rec.Code)
		require.Contains(t, rec.Body.String(), "PEGEL_TRUSTED_PROXIES")
	}
}

// Guarantee: every refusal is a status that its proxy hands on, with the true one beside it, and for nginx with the body, which
// it throws away.
func TestDoorsSpeakTheirProxysStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plan("one", 1)
	w.plan("none", 0)
	suspended := w.tenant("suspended", "one")
	_, err := w.repository.PatchTenant(t.Context(), testActor(), "suspended", tenants.TenantPatch{Status: new(tenants.Suspended)}, tenants.Precondition{Any: true})
	require.NoError(t, err)
	w.refresh()
	identify := w.service("edge", true, tenants.MayIdentify)
	for name, ask := range doors() {
		over, nothing := w.tenant("over-"+name, "one"), w.tenant("nothing-"+name, "none")
		w.ask(ask("GET", "/", "X-API-Key", over)).ok(http.StatusOK)
		for _, c := range []struct {
			name    string
			header  []string
			status  int // to a proxy that knows them all
			slug    problem.Slug
			retries bool
		}{
			{"over the limit", []string{"X-API-Key", over}, 429, problem.RateLimitExceeded, true},
			{"quota 0", []string{"X-API-Key", nothing}, 429, problem.CostExceedsLimit, false},
			{"a wrong key", []string{"X-API-Key", "pgk_unknown_unknown"}, 401, problem.Unauthorized, false},
			{"suspended", []string{"X-API-Key", suspended}, 403, problem.TenantSuspended, false},
			{"an unknown tenant", []string{"X-Pegel-Service-Token", identify, "X-Pegel-Tenant", "nobody"}, 403, problem.Forbidden, false},
			{"two tenants", []string{"X-Pegel-Service-Token", identify, "X-Pegel-Tenant", "a", "X-Pegel-Tenant", "b"}, 403, problem.Forbidden, false},
		} {
			r := w.ask(ask("GET", "/", c.header...))
			status := c.status
			if name == "nginx" && status == http.StatusTooManyRequests {
				status = http.StatusForbidden
			}
			require.Equal(t, status, r.status, "%s, %s: %s", name, c.name, r.body)
			require.Equal(t, http.StatusText(c.status), http.StatusText(number(t, r.header.Get("X-Pegel-Status"))), c.name)
			require.Equal(t, c.retries, r.header.Get("Retry-After") != "", c.name)
			require.Equal(t, c.status == http.StatusUnauthorized, r.header.Get("WWW-Authenticate") != "", c.name)
			require.Contains(t, string(r.body), `"type":"`+problem.BaseURI+string(c.slug)+`"`, c.name)
			if name == "forward" {
				require.Empty(t, r.header.Get("X-Pegel-Problem"))
				continue
			}
			var short, whole map[string]any
			require.NoError(t, json.Unmarshal([]byte(r.header.Get("X-Pegel-Problem")), &short))
			require.NoError(t, json.Unmarshal(r.body, &whole))
			for member, value := range short {
				require.Equal(t, whole[member], value, member)
			}
			require.Equal(t, c.status == http.StatusTooManyRequests, short["decision_id"] != nil, "%v", short)
			require.Less(t, len(r.header.Get("X-Pegel-Problem")), 1024, "it fits nginx's smallest header buffer with the rest")
		}
	}
}

// Guarantee: the delay is held within the cap on held requests; a limit that is closed without a store refuses, and what is our
// own failure never looks like a refusal.
func TestDoorsHoldAndFail(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slow := tenants.Rule{Limit: ratelimit.Limit{Name: "slow", Quota: 10, Window: time.Minute, Slowdown: &ratelimit.Slowdown{From: 0, MaxDelay: 2 * time.Second}}}
	w.planOf("slow", slow)
	closed := tenants.Rule{Limit: ratelimit.Limit{Name: "closed", Quota: 10, Window: time.Minute, OnStoreFailure: ratelimit.FailClosed}}
	w.planOf("closed", closed)
	for name, ask := range doors() {
		key, shut := w.tenant("slow-"+name, "slow"), w.tenant("closed-"+name, "closed")
		w.holder.reset(nil)
		r := w.ask(ask("GET", "/", "X-API-Key", key)).ok(http.StatusOK)
		require.Equal(t, "200", r.header.Get("X-RateLimit-Slowdown"))
		require.Equal(t, []time.Duration{200 * time.Millisecond}, w.holder.reset(func(context.Context, time.Duration) error { return decision.ErrTooManyHeld }))
		r = w.ask(ask("GET", "/", "X-API-Key", key))
		require.Equal(t, "429", r.header.Get("X-Pegel-Status"))
		require.Contains(t, string(r.body), "too-many-held")
		require.Equal(t, "1", r.header.Get("Retry-After"))

		down := ratelimit.ErrUnavailable
		w.memory.fail.Store(&down)
		r = w.ask(ask("GET", "/", "X-API-Key", shut))
		require.Equal(t, "503", r.header.Get("X-Pegel-Status"))
		require.Equal(t, "2", r.header.Get("Retry-After"))
		require.Equal(t, map[string]int{"forward": 503, "nginx": 403}[name], r.status)
		r = w.ask(ask("GET", "/", "X-API-Key", key)).ok(http.StatusOK)
		require.Equal(t, "none", r.header.Get("X-Pegel-Source"), "open")
		w.memory.fail.Store(nil)
	}
}

// Guarantee: before the first configuration is there, nobody is refused by a rule: the answer is a failure, not a verdict.
func TestDoorsBeforeTheConfiguration(t *testing.T) {
	t.Parallel()
	handler, err := httpapi.NewPublic(httpapi.PublicConfig{Common: httpapi.Common{
		Engine: faultyEngine{}, Directory: tenants.NewDirectory(0), Addresses: anyAddress{}, Now: clockStart, Log: discard(),
	}})
	require.NoError(t, err)
	for _, ask := range doors() {
		rec := record(handler, http.MethodGet, ask("GET", "/").path, "")
		require.Equal(t, http.StatusServiceUnavailable, rec.Code)
		require.Empty(t, rec.Header().Get("X-Pegel-Status"))
	}
}

// planOf makes a plan of the limits given and no other.
func (w *world) planOf(name string, rules ...tenants.Rule) {
	w.t.Helper()
	p := tenants.Plan{Name: name, Limits: rules}
	p.SetDefaults()
	_, err := w.repository.CreatePlan(w.t.Context(), testActor(), p)
	require.NoError(w.t, err)
	w.refresh()
}

// reset says how the next waits go, and returns those that were.
func (h *fakeHolder) reset(wait func(context.Context, time.Duration) error) []time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	holds := h.holds
	h.holds, h.wait = nil, wait
	return holds
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}
