package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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

func TestCheckAnswersWithTheNumbersAndHeadersOfTheContract(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := w.tenant("school-17", "light")

	r := w.check(key, `{"cost":1620}`).ok(http.StatusOK)
	body := r.json()
	require.Equal(t, "slow", body["decision"])
	require.Equal(t, true, body["allowed"])
	require.Equal(t, "school-17", body["tenant"])
	require.Equal(t, "light", body["plan"])
	require.Equal(t, "redis", body["source"])
	require.InDelta(t, 2000, body["limit"], 0)
	require.InDelta(t, 1620, body["used"], 0)
	require.InDelta(t, 380, body["remaining"], 0)
	require.InDelta(t, 0.81, body["utilization"], 1e-9)
	require.InDelta(t, 100, body["delay_ms"], 0)
	require.Equal(t, "2000", r.header.Get("X-RateLimit-Limit"))
	require.Equal(t, "380", r.header.Get("X-RateLimit-Remaining"))
	require.Equal(t, "100", r.header.Get("X-RateLimit-Slowdown"))
	require.Equal(t, `"requests-per-minute";q=2000;w=60`, r.header.Get("RateLimit-Policy"))
	require.Equal(t, body["decision_id"], r.header.Get("X-Pegel-Decision"))
	require.Empty(t, r.header.Get("X-Pegel-Source"))
	require.Empty(t, r.header.Get("Retry-After"))
	require.Equal(t, "no-store", r.header.Get("Cache-Control"))

	r = w.check(key, `{"cost":400}`)
	r.problem(problem.RateLimitExceeded)
	body = r.json()
	require.Equal(t, "deny", body["decision"])
	require.Equal(t, false, body["allowed"])
	require.Equal(t, "Too Many Requests", body["title"])
	require.Equal(t, "60", r.header.Get("Retry-After"))
	require.InDelta(t, 60, body["retry_after_seconds"], 0)
	require.InDelta(t, 60, body["window_seconds"], 0)
	require.Equal(t, "requests-per-minute: 2000 requests per 60 s exceeded; retry in 60 s", body["detail"])
	require.Len(t, body["limits"], 1)

	r = w.check(key, `{"cost":2001}`)
	r.problem(problem.CostExceedsLimit)
	require.Empty(t, r.header.Get("Retry-After"))
	require.NotContains(t, r.json(), "retry_after_ms")
}

func TestCheckByAnAPIKeyIsForItsOwnTenantOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := w.tenant("school-17", "light")
	w.tenant("school-18", "light")
	before := w.memory.takes.Load()

	w.check(key, `{"tenant":"school-18"}`).problem(problem.Forbidden)
	w.check(key, `{"address":"203.0.113.7"}`).problem(problem.Forbidden)
	w.check(key, `{"tenant":"school-17","address":"203.0.113.7"}`).problem(problem.Forbidden)
	w.check(key, `{"tenant":"nobody"}`).problem(problem.Forbidden) // existence of others does not show
	require.Equal(t, before, w.memory.takes.Load())

	w.check(key, `{"tenant":"school-17"}`).ok(http.StatusOK)
	w.do(w.public, request{method: http.MethodPost, path: "/v1/check", body: `{}`, header: map[string]string{"X-API-Key": key}}).ok(http.StatusOK)
	require.Equal(t, before+2, w.memory.takes.Load())
}

func TestCheckByAServiceToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plan("small", 3)
	w.tenant("school-17", "small")
	w.policy(perMinute("per-minute", 5), tenants.Rule{Limit: ratelimit.Limit{Name: "everybody", Quota: 50, Window: time.Minute}, AppliesTo: tenants.AppliesToAll})
	edge := w.service("edge", true, tenants.MayCheck)
	limited := w.service("status-only", true, tenants.MayStatus)

	w.check(limited, `{"tenant":"school-17"}`).problem(problem.Forbidden)
	w.check(edge, `{}`).problem(problem.Validation)
	w.check(edge, `{"tenant":"nobody"}`).problem(problem.NotFound)
	w.check(edge, `{"address":"not an address"}`).problem(problem.Validation)

	// The end client's address is charged by the anonymous rule unless a user or key was named.
	names := func(r *response) (out []string) {
		limits, ok := r.json()["limits"].([]any)
		require.True(t, ok)
		for _, l := range limits {
			limit, ok := l.(map[string]any)
			require.True(t, ok)
			out = append(out, fmt.Sprint(limit["name"]))
		}
		return out
	}
	require.ElementsMatch(t, []string{"per-minute", "everybody", "requests-per-minute"}, names(w.check(edge, `{"tenant":"school-17","address":"203.0.113.7"}`).ok(http.StatusOK)))
	require.ElementsMatch(t, []string{"everybody", "requests-per-minute"}, names(w.check(edge, `{"tenant":"school-17","address":"203.0.113.7","user":"u"}`).ok(http.StatusOK)))
	require.ElementsMatch(t, []string{"per-minute", "everybody"}, names(w.check(edge, `{"address":"203.0.113.8"}`).ok(http.StatusOK)))

	// An address only answer has no tenant; a refused address keeps its charge while the tenant is not asked.
	r := w.check(edge, `{"address":"203.0.113.9","cost":5}`).ok(http.StatusOK)
	require.Nil(t, r.json()["tenant"])
	w.check(edge, `{"tenant":"school-17","address":"203.0.113.9"}`).problem(problem.RateLimitExceeded)
	require.InDelta(t, 2, w.check(edge, `{"tenant":"school-17","peek":true}`).ok(http.StatusOK).json()["used"], 0)

	// A service forwards the tenant's own Authorization and proves itself in its own header.
	key := w.tenant("school-18", "light")
	r = w.do(w.public, request{method: http.MethodPost, path: "/v1/check", body: `{}`, header: map[string]string{
		"Authorization": "Bearer " + key, "X-Pegel-Service-Token": edge,
	}}).ok(http.StatusOK)
	require.Equal(t, "school-18", r.json()["tenant"])
}

func TestPeekAndCostZeroConsumeNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plan("small", 3)
	key := w.tenant("school-17", "small")
	for range 5 {
		w.check(key, `{"cost":0}`).ok(http.StatusOK)
		w.check(key, `{"cost":3,"peek":true}`).ok(http.StatusOK)
	}
	w.check(key, `{"cost":3}`).ok(http.StatusOK)
	w.check(key, `{"peek":true}`).problem(problem.RateLimitExceeded)
	w.check(key, `{"cost":4,"peek":true}`).problem(problem.CostExceedsLimit)
	require.InDelta(t, 3, w.check(key, `{"cost":0}`).ok(http.StatusOK).json()["used"], 0)
}

func TestWrongCredentialsAreCountedAndThenRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := w.tenant("school-17", "light")
	edge := w.service("edge", true, tenants.MayCheck)
	w.policy(perMinute("per-minute", 5))
	credentials := []string{"", "pgk_nonsense", key[:len(key)-1] + "x", "pgs_" + key[4:], edge[:len(edge)-2], "somebody-elses", edge + "x"}
	for i, credential := range credentials {
		from := fmt.Sprintf("203.0.113.%d", i+1)
		var first string
		for range 5 {
			r := w.do(w.public, request{method: http.MethodPost, path: "/v1/check", body: `{"tenant":"school-17"}`, header: bearer(credential), from: from})
			p := r.problem(problem.Unauthorized)
			require.NotEmpty(t, r.header.Get("WWW-Authenticate"))
			if first == "" {
				first = p.Detail
			}
			require.Equal(t, first, p.Detail)
		}
		w.do(w.public, request{method: http.MethodPost, path: "/v1/check", body: `{"tenant":"school-17"}`, header: bearer(credential), from: from}).
			problem(problem.Unauthorized)
		w.do(w.public, request{method: http.MethodGet, path: "/v1/ping", from: from}).problem(problem.RateLimitExceeded) // they were counted
		// The credential is looked at first: what is wrong with the body stays untold.
		w.do(w.public, request{method: http.MethodPost, path: "/v1/check", body: `{`, header: bearer(credential), from: "198.51.100." + fmt.Sprint(i)}).
			problem(problem.Unauthorized)
	}
	// Beside a valid one a wrong one does not help, and two lines are none.
	w.do(w.public, request{method: http.MethodPost, path: "/v1/check", body: `{}`, header: map[string]string{"Authorization": "Bearer " + key, "X-Pegel-Service-Token": "pgs_wrong"}}).
		problem(problem.Unauthorized)
	require.InDelta(t, 0, w.check(key, `{"cost":0}`).ok(http.StatusOK).json()["used"], 0)
}

func TestPingChargesTheCaller(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plan("small", 2)
	key := w.tenant("school-17", "small")
	edge := w.service("edge", true, tenants.MayCheck)
	w.policy(perMinute("per-minute", 5))
	ping := func(header map[string]string, from string) *response {
		return w.do(w.public, request{method: http.MethodGet, path: "/v1/ping", header: header, from: from})
	}
	r := ping(bearer(key), "203.0.113.1").ok(http.StatusOK)
	require.JSONEq(t, `{"pong":true}`, string(r.body))
	require.Equal(t, "1", r.header.Get("X-RateLimit-Remaining"))
	ping(bearer(key), "203.0.113.1").ok(http.StatusOK)
	ping(bearer(key), "203.0.113.2").problem(problem.RateLimitExceeded)
	ping(bearer("pgk_wrong"), "203.0.113.3").problem(problem.Unauthorized)

	passed := func(header map[string]string, from string) (n int) {
		for range 20 {
			if ping(header, from).status == http.StatusOK {
				n++
			}
		}
		return n
	}
	require.Equal(t, 20, passed(bearer(edge), "203.0.113.10"), "a service token is exempt")
	require.Equal(t, 5, passed(nil, "203.0.113.11"), "nobody is not")
	require.Equal(t, 5, passed(bearer(edge[:20]), "203.0.113.12"), "a forged one is nobody")
	require.Equal(t, 5, passed(bearer("somebody-elses-token"), "203.0.113.13"), "foreign credentials are not ours")
}

func TestStatusConsumesNothingAndNeverRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plan("small", 2)
	key := w.tenant("school-17", "small")
	w.tenant("school-18", "small")
	watcher := w.service("watcher", false, tenants.MayStatus)
	edge := w.service("edge", false, tenants.MayCheck)
	status := func(credential, query, from string) *response {
		return w.do(w.public, request{method: http.MethodGet, path: "/v1/status" + query, header: bearer(credential), from: from})
	}
	w.check(key, `{"cost":2}`).ok(http.StatusOK)
	before := w.memory.takes.Load()
	for range 3 {
		r := status(key, "", "").ok(http.StatusOK)
		require.Equal(t, "deny", r.json()["decision"])
		require.Equal(t, "no-store", r.header.Get("Cache-Control"))
		require.InDelta(t, 2, r.json()["used"], 0)
	}
	require.Equal(t, "school-18", status(watcher, "?tenant=school-18", "").ok(http.StatusOK).json()["tenant"])
	require.Nil(t, status(watcher, "?address=203.0.113.7", "").ok(http.StatusOK).json()["tenant"])
	require.Nil(t, status("", "", "203.0.113.7").ok(http.StatusOK).json()["tenant"])
	require.Equal(t, before, w.memory.takes.Load())

	status(key, "?tenant=school-18", "").problem(problem.Forbidden)
	status(key, "?address=203.0.113.7", "").problem(problem.Forbidden)
	status(edge, "?tenant=school-17", "").problem(problem.Forbidden)
	status(watcher, "", "").problem(problem.Validation)
	status(watcher, "?tenant=nobody", "").problem(problem.NotFound)
	status("", "?tenant=school-17", "").problem(problem.Unauthorized)
	status("pgk_wrong", "", "").problem(problem.Unauthorized)
	for _, query := range []string{"?tenant=", "?tenant=A", "?user=", "?user=%00", "?user=%ff", "?key=" + strings.Repeat("k", 257), "?tenant=school-17&tenant=school-18", "?address=", "?address=nonsense", "?user=%zz", "?a=1;b=2"} {
		if query == "?address=nonsense" {
			status(watcher, query, "").problem(problem.Validation)
			continue
		}
		status(key, query, "").problem(problem.Validation)
	}
}

func TestBatchAnswersInPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plan("small", 2)
	w.tenant("school-17", "small")
	w.tenant("school-18", "small")
	edge := w.service("edge", true, tenants.MayCheck)
	batch := func(credential, body string) *response {
		return w.do(w.public, request{method: http.MethodPost, path: "/v1/check/batch", body: body, header: bearer(credential)})
	}
	r := batch(edge, `{"checks":[{"tenant":"school-17"},{"tenant":"school-17","cost":1.5},{"tenant":"school-18","cost":2},{"tenant":"nobody"},
		{"tenant":"school-17"},{"tenant":"school-17"},{"tenant":"school-18","wait":true},{"tenant":"school-18","nope":null},{},"x",{"tenant":"school-18","user":"\u0000"},{"tenant":"school-17","cost":3}]}`).ok(http.StatusOK)
	var body struct {
		Results []map[string]any `json:"results"`
	}
	require.NoError(t, json.Unmarshal(r.body, &body))
	require.Len(t, body.Results, 12)
	got := make([]string, 0, len(body.Results))
	for _, result := range body.Results {
		if code, isProblem := result["error"]; isProblem {
			got = append(got, fmt.Sprint(code))
			require.Equal(t, r.header.Get("X-Request-Id"), result["request_id"])
			continue
		}
		got = append(got, fmt.Sprint(result["decision"], " ", result["tenant"], " ", result["used"]))
	}
	require.Equal(t, []string{
		"allow school-17 1", "validation", "allow school-18 2", "not_found", "allow school-17 2", "rate_limit_exceeded", "validation", "validation",
		"validation", "validation", "validation", "cost_exceeds_limit",
	}, got)
	require.Equal(t, []any{map[string]any{"pointer": "/cost", "message": "must be an integer from 0 to 1000000"}}, body.Results[1]["errors"])

	require.JSONEq(t, `{"results":[]}`, string(batch(edge, `{"checks":[]}`).ok(http.StatusOK).body))
	thousand := `{"checks":[` + strings.TrimSuffix(strings.Repeat(`{"tenant":"school-17","cost":0},`, 1000), ",") + `]}`
	batch(edge, thousand).ok(http.StatusOK)
	before := w.memory.takes.Load()
	batch(edge, strings.Replace(thousand, "[", `[{"tenant":"school-18"},`, 1)).problem(problem.Validation)
	for _, malformed := range []string{`{}`, `{"checks":{}}`, `{"checks":null}`, `[]`, `{"checks":[{"tenant":"school-18"}`, `{"checks":[{"tenant":"school-18"}]}x`, `{"checks":[],"checks":[]}`, `{"checks":[],"more":1}`} {
		batch(edge, malformed).problem(problem.Validation)
	}
	require.Equal(t, before, w.memory.takes.Load())
	batch(w.service("status-only", false, tenants.MayStatus), `{"checks":[]}`).problem(problem.Forbidden)
	batch("", `{"checks":[]}`).problem(problem.Unauthorized)
}

func TestWaitHoldsWithinTheCap(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := w.tenant("school-17", "light")
	w.check(key, `{"cost":1000,"wait":true}`).ok(http.StatusOK)
	require.Empty(t, w.holder.holds, "nothing to wait for")
	w.check(key, `{"cost":620,"wait":true}`).ok(http.StatusOK)
	w.check(key, `{"cost":1}`).ok(http.StatusOK)
	require.Equal(t, []time.Duration{100 * time.Millisecond}, w.holder.holds)

	w.holder.wait = func(context.Context, time.Duration) error { return decision.ErrTooManyHeld }
	r := w.check(key, `{"cost":1,"wait":true}`)
	r.problem(problem.TooManyHeld)
	require.NotEmpty(t, r.header.Get("Retry-After"))
	require.InDelta(t, 1622, w.check(key, `{"cost":0}`).ok(http.StatusOK).json()["used"], 0, "the unit stays charged")
}

func TestAClientThatLeavesIsHeldNoLonger(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := w.tenant("school-17", "light")
	held, freed := make(chan struct{}), make(chan error, 1)
	w.holder.wait = func(ctx context.Context, _ time.Duration) error {
		close(held)
		<-ctx.Done()
		freed <- ctx.Err()
		return ctx.Err()
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.public.URL+"/v1/check", strings.NewReader(`{"cost":1900,"wait":true}`))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+key)
	go func() {
		answer, err := http.DefaultTransport.RoundTrip(req)
		if err == nil {
			answer.Body.Close()
		}
	}()
	<-held
	leave()
	select {
	case err := <-freed:
		require.ErrorIs(t, err, context.Canceled)
	case <-time.After(time.Second):
		require.Fail(t, "the slot was not freed within 1 s")
	}
}

func TestSuspendedClosedAndUndecidable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	closed := perMinute("closed", 10)
	closed.OnStoreFailure = ratelimit.FailClosed
	w.plan("strict", 100, closed)
	key := w.tenant("school-17", "strict")
	open := w.tenant("school-18", "light")

	down := fmt.Errorf("test: %w", ratelimit.ErrUnavailable)
	w.memory.fail.Store(&down)
	r := w.check(key, `{}`)
	r.problem(problem.StoreUnavailable)
	require.NotEmpty(t, r.header.Get("Retry-After"))
	r = w.check(open, `{}`).ok(http.StatusOK)
	require.Equal(t, "none", r.json()["source"])
	require.Nil(t, r.json()["limit"])
	require.Equal(t, "none", r.header.Get("X-Pegel-Source"))
	require.Empty(t, r.header.Get("X-RateLimit-Limit"))
	w.memory.fail.Store(nil)

	status := tenants.Suspended
	_, err := w.repository.PatchTenant(t.Context(), testActor(), "school-17", tenants.TenantPatch{Status: &status}, tenants.Precondition{Any: true})
	require.NoError(t, err)
	w.refresh()
	w.check(key, `{}`).problem(problem.TenantSuspended)
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.do(w.public, request{method: http.MethodGet, path: "/readyz"}).ok(http.StatusOK)
	require.JSONEq(t, `{"status":"ok","source":"redis","redis":"up","postgres":"up"}`, string(r.body))
	w.do(w.admin, request{method: http.MethodGet, path: "/healthz"}).ok(http.StatusOK)
	w.do(w.public, request{method: http.MethodHead, path: "/healthz"}).ok(http.StatusOK)
	w.health.Store(&httpapi.Readiness{Status: "draining", Source: ratelimit.SourcePostgres, Redis: "down", Postgres: "up"})
	r = w.do(w.admin, request{method: http.MethodGet, path: "/readyz"}).ok(http.StatusServiceUnavailable)
	require.Equal(t, "draining", r.json()["status"])
	w.do(w.admin, request{method: http.MethodGet, path: "/metrics"}).ok(http.StatusOK)
}

func TestNothingIsDecidedBeforeTheFirstLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	empty := tenants.NewDirectory(0)
	handler, err := httpapi.NewPublic(httpapi.PublicConfig{Common: httpapi.Common{
		Engine: w.engine, Directory: empty, Addresses: anyAddress{}, Health: w.health, Now: w.clock.now, Log: discard(),
	}, Holder: w.holder})
	require.NoError(t, err)
	rec := record(handler, http.MethodPost, "/v1/check", `{}`)
	require.Equal(t, http.StatusServiceUnavailable, rec.Code)
	require.Equal(t, http.StatusOK, record(handler, http.MethodGet, "/healthz", "").Code)
}

// quietWriter is a ResponseWriter that costs nothing.
type quietWriter struct{ header http.Header }

func (w *quietWriter) Header() http.Header         { return w.header }
func (w *quietWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w *quietWriter) WriteHeader(int)             {}

// BenchmarkCheck is a check from the handler to the memory store and back, without network and server.
func BenchmarkCheck(b *testing.B) {
	w := newWorldQuiet(b)
	w.plan("huge", 1_000_000_000)
	key := w.tenant("school-17", "huge")
	benchmark(b, w, "/v1/check", key, `{"cost":1}`)
}

// benchmark sends one call again and again.
func benchmark(b *testing.B, w *world, path, credential, text string) {
	b.Helper()
	handler := w.public.Config.Handler
	body := strings.NewReader(text)
	req := httptest.NewRequest(http.MethodPost, path, body)
	req.Header.Set("Authorization", "Bearer "+credential)
	req.Header.Set("Content-Type", "application/json")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := body.Seek(0, io.SeekStart); err != nil {
			b.Fatal(err)
		}
		handler.ServeHTTP(&quietWriter{header: make(http.Header, 16)}, req)
	}
}

// BenchmarkCheckBatch is 100 checks in one call, of 100 tenants; per call.
func BenchmarkCheckBatch(b *testing.B) {
	w := newWorldQuiet(b)
	w.plan("huge", 1_000_000_000)
	checks := make([]string, 100)
	for i := range checks {
		slug := "school-" + strconv.Itoa(i)
		w.tenant(slug, "huge")
		checks[i] = `{"tenant":"` + slug + `","user":"u` + strconv.Itoa(i) + `"}`
	}
	benchmark(b, w, "/v1/check/batch", w.service("gateway", false, tenants.MayCheck), `{"checks":[`+strings.Join(checks, ",")+`]}`)
}
