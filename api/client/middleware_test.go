package client_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/api/client"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// guarded is an API behind the middleware; tenants come from a header, as a test may do it.
type guarded struct {
	*httptest.Server

	served atomic.Int64
	mu     sync.Mutex
	errs   []error
}

func newGuarded(t *testing.T, c *client.Client, options ...client.MiddlewareOption) *guarded {
	t.Helper()
	g := &guarded{}
	identify := func(r *http.Request) (client.Check, bool) {
		return client.Check{Tenant: r.Header.Get("Tenant"), User: r.Header.Get("User"), Method: r.Method, Path: r.URL.Path}, r.URL.Path != "/healthz"
	}
	options = append([]client.MiddlewareOption{client.WithOnError(func(_ *http.Request, err error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.errs = append(g.errs, err)
	})}, options...)
	g.Server = httptest.NewServer(client.Middleware(c, identify, options...)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		g.served.Add(1)
		_, _ = io.WriteString(w, "served")
	})))
	t.Cleanup(g.Close)
	return g
}

func (g *guarded) failures() []error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]error(nil), g.errs...)
}

// get asks the API as a tenant.
func (g *guarded) get(ctx context.Context, tenant, path string) (status int, header http.Header, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.URL+path, http.NoBody)
	if err != nil {
		return 0, nil, "", err
	}
	req.Header.Set("Tenant", tenant)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	return res.StatusCode, res.Header, string(raw), err
}

func (g *guarded) must(t *testing.T, tenant, path string) (status int, header http.Header, body string) {
	t.Helper()
	status, header, body, err := g.get(t.Context(), tenant, path)
	require.NoError(t, err)
	return status, header, body
}

// busy gives decisions the time that they need on a busy machine.
func busy() client.MiddlewareOption { return client.WithAskTimeout(10 * time.Second) }

// Guarantee: the middleware says what Pegel's own front doors say: headers, delay, refusals and their documents.
func TestMiddleware(t *testing.T) {
	t.Parallel()
	s := shared(t)
	s.tenant("school-17", perMinute(10, map[string]any{"slowdown": map[string]any{"from": 0.8, "max_delay": "200ms"}}))
	s.tenant("full", perMinute(0))
	s.tenant("suspended", perMinute(10))
	s.tenant("routes", perMinute(1, map[string]any{"match": map[string]any{"paths": []string{"/exports/*"}}}))
	s.administer(http.MethodPost, "/admin/service-tokens", map[string]any{"name": "x", "may": []string{"check"}})
	g := newGuarded(t, s.client(), busy())

	status, header, body := g.must(t, "school-17", "/")
	require.Equal(t, 200, status)
	require.Equal(t, "served", body)
	require.Equal(t, "10", header.Get("X-Ratelimit-Limit"))
	require.Equal(t, "9", header.Get("X-Ratelimit-Remaining"))
	require.Equal(t, `"requests-per-minute";q=10;w=60`, header.Get("Ratelimit-Policy"))
	require.NotEmpty(t, header.Get("X-Pegel-Decision"))

	for range 8 {
		status, header, _ = g.must(t, "school-17", "/")
		require.Equal(t, 200, status)
	}
	require.Equal(t, "100", header.Get("X-Ratelimit-Slowdown"))
	begun := time.Now()
	status, header, _ = g.must(t, "school-17", "/")
	require.Equal(t, 200, status)
	require.Equal(t, "200", header.Get("X-Ratelimit-Slowdown"))
	require.GreaterOrEqual(t, time.Since(begun), 200*time.Millisecond, "the delay is waited for")

	served := g.served.Load()
	status, header, body = g.must(t, "school-17", "/")
	require.Equal(t, 429, status)
	require.NotEmpty(t, header.Get("Retry-After"))
	require.Equal(t, "0", header.Get("X-Ratelimit-Remaining"))
	require.Equal(t, "application/problem+json", header.Get("Content-Type"))
	var problem map[string]any
	require.NoError(t, json.Unmarshal([]byte(body), &problem))
	require.Equal(t, "rate_limit_exceeded", problem["error"])
	require.Equal(t, header.Get("X-Pegel-Decision"), problem["decision_id"])
	status, header, _ = g.must(t, "full", "/")
	require.Equal(t, 429, status)
	require.Empty(t, header.Get("Retry-After"), "waiting does not help")
	status, _, body = g.must(t, "nobody", "/")
	require.Equal(t, 404, status)
	require.Contains(t, body, "not_found")
	require.Equal(t, served, g.served.Load(), "what is refused is not served")

	status, _, _ = g.must(t, "routes", "/exports/1")
	require.Equal(t, 200, status)
	status, _, _ = g.must(t, "routes", "/exports/2")
	require.Equal(t, 429, status, "method and path are facts of the check")
	status, header, _ = g.must(t, "full", "/healthz")
	require.Equal(t, 200, status, "what identify lets pass is not asked about")
	require.Empty(t, header.Get("X-Pegel-Decision"))
	require.Empty(t, g.failures())
}

// Guarantee: a request that makes its check larger than Pegel reads is refused, and does not pass undecided; the checks that would
// have shared a request with it are decided.
func TestMiddlewareRefusesHugeFacts(t *testing.T) {
	t.Parallel()
	s := shared(t)
	s.tenant("school-17", perMinute(1000))
	huge := "/" + strings.Repeat("<", 250_000) // 1.5 MB as JSON
	for name, options := range map[string][]client.Option{"one by one": nil, "batching": {client.WithBatching()}} {
		g := newGuarded(t, s.client(options...), busy())
		for path, want := range map[string]int{"/" + strings.Repeat("a", 9000): 400, huge[:1000]: 200, huge[:9000]: 400, huge: 413} {
			status, header, body := g.must(t, "school-17", path)
			require.Equal(t, want, status, "%s: %.200s", name, body)
			if want != 200 {
				require.Equal(t, "application/problem+json", header.Get("Content-Type"))
				require.Contains(t, body, `"error":`)
			}
		}
		require.EqualValues(t, 1, g.served.Load(), name)
		require.Empty(t, g.failures(), name)
	}
	results, err := s.client().CheckBatch(t.Context(), []client.Check{{Tenant: "school-17"}, {Tenant: "school-17", Path: huge}, {Tenant: "school-17"}})
	require.NoError(t, err)
	require.True(t, results[0].Decision.Allowed && results[2].Decision.Allowed)
	var refused *client.Error
	require.ErrorAs(t, results[1].Err, &refused)
	require.Equal(t, "payload_too_large", refused.Code)
	_, err = s.client().Refund(t.Context(), client.Check{Tenant: "school-17", Path: huge})
	require.ErrorAs(t, err, &refused)
}

// Guarantee: the middleware leaves the ResponseWriter alone: a handler can flush, hijack and panic as without it, and what it sets
// under the name of a rate header takes Pegel's place.
func TestMiddlewareKeepsTheResponseWriter(t *testing.T) {
	t.Parallel()
	s := shared(t)
	s.tenant("school-17", perMinute(1000))
	limited := client.Middleware(s.client(), func(r *http.Request) (client.Check, bool) {
		return client.Check{Tenant: "school-17", Method: r.Method, Path: r.URL.Path}, true
	}, busy())
	api := httptest.NewUnstartedServer(limited(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/panic":
			panic(http.ErrAbortHandler)
		case "/hijack":
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhijacked")
				_ = conn.Close()
			}
		default:
			w.Header().Set("X-RateLimit-Limit", "7")
			w.Header().Del("X-RateLimit-Remaining")
			_, _ = io.WriteString(w, "served")
			_ = http.NewResponseController(w).Flush()
		}
	})))
	api.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	api.Start()
	t.Cleanup(api.Close)
	res, err := http.Get(api.URL + "/panic")
	if err == nil {
		_ = res.Body.Close()
	}
	require.Error(t, err)
	for _, path := range []string{"/hijack", "/"} {
		res, err := http.Get(api.URL + path)
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Contains(t, []string{"hijacked", "served"}, string(body))
		if path == "/" {
			require.Equal(t, []string{"7"}, res.Header.Values("X-RateLimit-Limit"))
			require.Empty(t, res.Header.Values("X-RateLimit-Remaining"))
			require.NotEmpty(t, res.Header.Get("X-Pegel-Decision"))
		}
	}
}

// Guarantee: a client that leaves during its delay is not served, and its place is free; beyond the cap there is no waiting.
func TestMiddlewareHolds(t *testing.T) {
	t.Parallel()
	s := shared(t)
	s.tenant("school-17", perMinute(10_000, map[string]any{"slowdown": map[string]any{"from": 0.01, "max_delay": "60s"}}))
	g := newGuarded(t, s.client(), busy(), client.WithMaxHeld(1))
	_, err := s.client().Check(t.Context(), client.Check{Tenant: "school-17", Cost: 5000})
	require.NoError(t, err)

	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, _, _, err := g.get(ctx, "school-17", "/")
		left <- err
	}()
	require.Eventually(t, func() bool { // the first has been charged, so it is about to be held
		d, err := s.client().Status(t.Context(), client.Query{Tenant: "school-17"})
		return err == nil && d.Used == 5001
	}, 20*time.Second, 10*time.Millisecond)
	var body string
	require.Eventually(t, func() bool { // as soon as the first is held, the second is one too many
		limited, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		var status int
		status, _, body, err = g.get(limited, "school-17", "/")
		return err == nil && status == 429
	}, 20*time.Second, 10*time.Millisecond)
	require.Contains(t, body, "too_many_held")
	leave()
	require.Error(t, <-left)
	require.Zero(t, g.served.Load())
	require.Eventually(t, func() bool { // the place of the one that left is free: the next one is held
		limited, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, _, _, err := g.get(limited, "school-17", "/")
		return err != nil
	}, 20*time.Second, 10*time.Millisecond)
}

// Guarantee: with Pegel hung, gone or not itself, requests pass, somebody is told, and after a few failures nobody waits for it; when it is back it
// decides again.
func TestMiddlewareOpens(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{
		"hung": hung(t), "dead": dead(t),
		"garbage":     answering(t, 200, "text/html", "<html>welcome</html>"),
		"wrong token": answering(t, 401, "application/problem+json", `{"status":401,"error":"unauthorized"}`),
		"its mistake": answering(t, 500, "application/problem+json", `{"status":500,"error":"internal"}`),
	} {
		g := newGuarded(t, newClient(t, url, token), client.WithAskTimeout(100*time.Millisecond))
		begun := time.Now()
		for range 50 {
			status, header, body := g.must(t, "school-17", "/")
			require.Equal(t, 200, status, name)
			require.Equal(t, "served", body, name)
			require.Empty(t, header.Get("X-Pegel-Decision"), name)
		}
		require.Less(t, time.Since(begun), 40*100*time.Millisecond+5*time.Second, "%s: most did not wait", name)
		require.Len(t, g.failures(), 50, name)
		if name != "wrong token" { // asking is cheap then, and the token may be mended
			require.ErrorIs(t, g.failures()[49], client.ErrNotAsked, name)
		}
		closed := newGuarded(t, newClient(t, url, token), client.WithAskTimeout(100*time.Millisecond), client.WithFailClosed())
		status, header, body := closed.must(t, "school-17", "/")
		require.Equal(t, 503, status, name)
		require.Equal(t, "2", header.Get("Retry-After"), name)
		require.Contains(t, body, "store_unavailable", name)
	}

	broken := atomic.Bool{}
	broken.Store(true)
	flaky := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if broken.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_, _ = io.WriteString(w, `{"decision":"allow","allowed":true,"decision_id":"1","source":"redis","limits":[]}`)
	}))
	t.Cleanup(flaky.Close)
	g := newGuarded(t, newClient(t, flaky.URL, token), busy())
	for range 20 {
		g.must(t, "school-17", "/")
	}
	require.ErrorIs(t, g.failures()[19], client.ErrNotAsked)
	broken.Store(false)
	decided := func() bool {
		_, header, _ := g.must(t, "school-17", "/")
		return header.Get("X-Pegel-Decision") == "1"
	}
	require.Eventually(t, decided, 10*time.Second, 20*time.Millisecond)
	require.True(t, decided(), "one answer is enough")
}

// Guarantee: a closed limit that no store can decide is Pegel's word and not its absence: the request is refused. A Pegel that
// has not started yet is absent.
func TestMiddlewareClosedLimit(t *testing.T) {
	t.Parallel()
	pg := testenv.PostgresServer(t)
	s := startService(t, "PEGEL_DATABASE_URL="+pg.URL(), "PEGEL_DATABASE_DECISION_TIMEOUT=5s")
	s.tenant("login", perMinute(10, map[string]any{"on_store_failure": "closed"}))
	s.tenant("open", perMinute(10))
	g := newGuarded(t, s.client(), busy())
	status, _, _ := g.must(t, "login", "/")
	require.Equal(t, 200, status)
	require.NoError(t, pg.Stop())
	status, header, body := g.must(t, "login", "/")
	require.Equal(t, 503, status, body)
	require.NotEmpty(t, header.Get("Retry-After"))
	require.Contains(t, body, "store_unavailable")
	status, header, _ = g.must(t, "open", "/")
	require.Equal(t, 200, status)
	require.Equal(t, "none", header.Get("X-Pegel-Source"))
	require.Empty(t, header.Get("X-Ratelimit-Limit"))
	require.NoError(t, pg.Start())

	starting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Pegel-Starting", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"status":503,"error":"store_unavailable"}`)
	}))
	t.Cleanup(starting.Close)
	g = newGuarded(t, newClient(t, starting.URL, token), busy())
	status, _, _ = g.must(t, "login", "/")
	require.Equal(t, 200, status)
}
