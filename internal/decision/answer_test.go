package decision_test

import (
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/redisstore"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// redis is a memory store that says it is Redis.
type redis struct{ *ratelimit.Memory }

func (r redis) Source() ratelimit.Source { return ratelimit.SourceRedis }

// sent reads a header by the spelling it goes out with.
func sent(h http.Header, name string) string { return strings.Join(h[name], ", ") }

func headersOf(d *decision.Decision) http.Header {
	h := make(http.Header)
	decision.WriteHeaders(h, d)
	return h
}

func decisionAt(v decision.Verdict, l ratelimit.Limit, s ratelimit.CounterState) *decision.Decision {
	s.Effective = l.Algorithm
	return &decision.Decision{
		Verdict: v, ID: "01920000-0000-7000-8000-000000000000", At: time.Unix(1767225559, 0), Tenant: "school-17", Plan: "light",
		Source: ratelimit.SourceRedis, Tightest: 0, Cost: 1,
		Limits: []decision.LimitState{{Limit: &l, State: s, Source: ratelimit.SourceRedis, Refused: v == decision.Deny}},
	}
}

func perMinute(quota int64) ratelimit.Limit {
	return ratelimit.Limit{Name: "requests-per-minute", Scope: ratelimit.ScopeTenant, Algorithm: ratelimit.SlidingWindowLog, Quota: quota, Window: time.Minute, Mode: ratelimit.Enforce}
}

// The examples of the wire contract, word for word.
func TestHeadersOfTheWireContract(t *testing.T) {
	t.Parallel()
	allowed := decisionAt(decision.Allow, perMinute(10_000), ratelimit.CounterState{Used: 753, Remaining: 9247, ResetAfter: 41 * time.Second})
	require.Equal(t, http.Header{
		"X-RateLimit-Limit":     {"10000"},
		"X-RateLimit-Remaining": {"9247"},
		"X-RateLimit-Reset":     {"1767225600"},
		"RateLimit-Policy":      {`"requests-per-minute";q=10000;w=60`},
		"RateLimit":             {`"requests-per-minute";r=9247;t=41`},
		"X-Pegel-Decision":      {"01920000-0000-7000-8000-000000000000"},
	}, headersOf(allowed))

	slow := decisionAt(decision.Slow, perMinute(2000), ratelimit.CounterState{Used: 1630, Remaining: 370, ResetAfter: 59 * time.Second})
	slow.Delay, slow.Source = 150*time.Millisecond, ratelimit.SourcePostgres
	h := headersOf(slow)
	require.Equal(t, "150", sent(h, decision.HeaderSlowdown))
	require.Equal(t, "postgres", h.Get("X-Pegel-Source"))
	require.Empty(t, h.Get("Retry-After"))

	denied := decisionAt(decision.Deny, perMinute(2000), ratelimit.CounterState{Used: 2000, ResetAfter: 59 * time.Second, RetryAfter: 12*time.Second - 300*time.Microsecond})
	denied.At = time.Unix(1767225600, 0)
	require.Equal(t, http.Header{
		"X-RateLimit-Limit":     {"2000"},
		"X-RateLimit-Remaining": {"0"},
		"X-RateLimit-Reset":     {"1767225612"},
		"RateLimit-Policy":      {`"requests-per-minute";q=2000;w=60`},
		"RateLimit":             {`"requests-per-minute";r=0;t=12`},
		"Retry-After":           {"12"},
		"X-Pegel-Decision":      {"01920000-0000-7000-8000-000000000000"},
	}, headersOf(denied))

	bucket := perMinute(10)
	bucket.Algorithm, bucket.Window, bucket.Refill = ratelimit.TokenBucket, 0, ratelimit.Rate{Units: 1, Every: time.Second}
	bucket.Name = "a \"quoted\" \\ \n ü"
	h = headersOf(decisionAt(decision.Deny, bucket, ratelimit.CounterState{Used: 10, ResetAfter: 10 * time.Second, RetryAfter: 200 * time.Millisecond}))
	require.Equal(t, `"a \"quoted\" \\ %0A %C3%BC";q=10;w=10`, sent(h, decision.HeaderPolicy))
	require.Equal(t, "1", h.Get("Retry-After"))
}

func TestNoNumbersNoRateHeaders(t *testing.T) {
	t.Parallel()
	d := decisionAt(decision.Allow, perMinute(10), ratelimit.CounterState{})
	d.Tightest, d.Source, d.Limits[0].Source = -1, ratelimit.SourceNone, ratelimit.SourceNone
	require.Equal(t, http.Header{"X-Pegel-Decision": {d.ID}, "X-Pegel-Source": {"none"}}, headersOf(d))
	require.JSONEq(t, `{"decision":"allow","allowed":true,"decision_id":"01920000-0000-7000-8000-000000000000","tenant":"school-17","plan":"light","source":"none",
		"limit_name":null,"limit":null,"remaining":null,"used":null,"utilization":null,"delay_ms":0,"reset_after_ms":null,"retry_after_ms":null,
		"limits":[{"name":"requests-per-minute","scope":"tenant","algorithm":"sliding_window_log","effective_algorithm":null,"window_ms":60000,
		"limit":10,"used":null,"remaining":null,"delay_ms":0,"reset_after_ms":null,"retry_after_ms":null,"mode":"enforce"}]}`, marshal(t, decision.Body(d)))
}

// The reset of a window that ends on a full second stays one second, though each call reads the clock anew (B007).
func TestResetDoesNotWobble(t *testing.T) {
	t.Parallel()
	end := time.Unix(1767225600, 0)
	for n := range 60 {
		d := decisionAt(decision.Allow, perMinute(10), ratelimit.CounterState{ResetAfter: time.Duration(n) * time.Second})
		d.At = end.Add(-time.Duration(n)*time.Second + time.Duration(n%7-3)*3*time.Millisecond)
		if n == 0 {
			d.At = end
		}
		require.Equal(t, "1767225600", sent(headersOf(d), decision.HeaderReset), "%d s before", n)
	}
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return string(raw)
}

func TestBodyOfTheWireContract(t *testing.T) {
	t.Parallel()
	f := newFixture(t, slowed(minute("requests-per-minute", 2000)))
	e := decision.New(decision.Config{Store: f.store, Directory: f.directory, Now: f.clock.now})
	hit := f.hit(t)
	hit.Cost = 1620
	d, err := e.Decide(t.Context(), hit)
	require.NoError(t, err)
	d.ID = "0192"
	require.JSONEq(t, `{"decision":"slow","allowed":true,"decision_id":"0192","tenant":"school-17","plan":"light","source":"memory",
		"limit_name":"requests-per-minute","limit":2000,"remaining":380,"used":1620,"utilization":0.81,
		"delay_ms":100,"reset_after_ms":60000,"retry_after_ms":0,
		"limits":[{"name":"requests-per-minute","scope":"tenant","algorithm":"sliding_window_log","effective_algorithm":"sliding_window_log","window_ms":60000,
		"limit":2000,"used":1620,"remaining":380,"delay_ms":100,"reset_after_ms":60000,"retry_after_ms":0,"mode":"enforce"}]}`, marshal(t, decision.Body(d)))
}

func TestRefusalIsTheUnion(t *testing.T) {
	t.Parallel()
	d := decisionAt(decision.Deny, perMinute(2000), ratelimit.CounterState{Used: 2000, ResetAfter: 60 * time.Second, RetryAfter: 12 * time.Second})
	d.At = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	require.JSONEq(t, `{"type":"https://pegel.dev/problems/rate-limit-exceeded","title":"Too Many Requests","status":429,
		"detail":"requests-per-minute: 2000 requests per 60 s exceeded; retry in 12 s","error":"rate_limit_exceeded","request_id":"r1",
		"limit_name":"requests-per-minute","limit":2000,"window_seconds":60,"retry_after_seconds":12,"retry_after_at":"2026-11-30T12:00:12Z",
		"decision_id":"01920000-0000-7000-8000-000000000000","decision":"deny","allowed":false,"tenant":"school-17","plan":"light","source":"redis",
		"remaining":0,"used":2000,"utilization":1,"delay_ms":0,"reset_after_ms":60000,"retry_after_ms":12000,
		"limits":[{"name":"requests-per-minute","scope":"tenant","algorithm":"sliding_window_log","effective_algorithm":"sliding_window_log","window_ms":60000,
		"limit":2000,"used":2000,"remaining":0,"delay_ms":0,"reset_after_ms":60000,"retry_after_ms":12000,"mode":"enforce"}]}`, marshal(t, decision.Denied(d, "r1")))
}

func TestCostAboveTheQuotaTellsNoWait(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 10))
	hit := f.hit(t)
	hit.Cost = 11
	d := f.decide(t, hit)
	require.Empty(t, headersOf(d).Get("Retry-After"))
	require.Equal(t, "10", sent(headersOf(d), decision.HeaderLimit))
	var body map[string]any
	require.NoError(t, json.Unmarshal([]byte(marshal(t, decision.Denied(d, "r"))), &body))
	require.Equal(t, "cost_exceeds_limit", body["error"])
	require.Equal(t, "m: a cost of 11 is above the limit of 10", body["detail"])
	for _, member := range []string{"retry_after_ms", "retry_after_seconds", "retry_after_at"} {
		require.NotContains(t, body, member)
	}
	require.NotContains(t, marshal(t, body["limits"]), "retry_after_ms")
}

func TestTooManyHeldIsAnswered(t *testing.T) {
	t.Parallel()
	f := newFixture(t, slowed(minute("m", 10)))
	hit := f.hit(t)
	hit.Cost = 9
	d := f.decide(t, hit)
	require.Equal(t, decision.Slow, d.Verdict)
	refused := f.TooManyHeld(&hit, d)
	require.Equal(t, decision.Slow, d.Verdict, "the decision itself is left as it was")
	require.Equal(t, "1", headersOf(refused).Get("Retry-After"))
	body := decision.Denied(refused, "r")
	require.Equal(t, "too_many_held", body.Error)
	require.Equal(t, d.ID, body.DecisionID)
	require.False(t, body.Allowed)
	require.True(t, f.recorder.last(t).Held)
}

// B016 in 200 random states, in memory and on a real Redis: Retry-After is at least 1, waiting that long succeeds, 1.5 s
// less does not.
func TestRetryAfterIsHonest(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		retryAfterIsHonest(t, func(f *fixture) ratelimit.Store { return f.store })
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		shared := newClock()
		store, err := redisstore.New(redisstore.Config{URL: testenv.Redis(t), Timeout: 10 * time.Second, TestClock: shared.micros}, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		defer func() { require.NoError(t, store.Close()) }()
		retryAfterIsHonest(t, func(f *fixture) ratelimit.Store {
			f.clock = shared
			f.changes.Tenants[0].ID = 1 + rand.Int64N(1<<62) // whose counters nobody else has
			f.apply()
			return store
		})
	})
}

func retryAfterIsHonest(t *testing.T, store func(*fixture) ratelimit.Store) {
	t.Helper()
	random := rand.New(rand.NewPCG(20261130, 1))
	states := 0
	for states < 200 {
		rule := randomRule(random)
		f := newFixture(t, rule)
		counters := store(f)
		f.Engine = decision.New(decision.Config{Store: counters, Directory: f.directory, Now: f.clock.now})
		hit := f.hit(t)
		for range random.IntN(40) {
			hit.Cost = 1 + random.Int64N(max(1, rule.Quota/3))
			f.decide(t, hit)
			f.clock.advance(time.Duration(random.Int64N(int64(rule.Span())/20 + 1)))
		}
		hit.Cost = 1 + random.Int64N(rule.Quota)
		d := f.decide(t, hit)
		if d.Verdict != decision.Deny {
			continue
		}
		states++
		f.requireHonestWait(t, &rule, hit, d)
	}
}

// requireHonestWait holds a refusal's wait to what happens after it.
func (f *fixture) requireHonestWait(t *testing.T, rule *tenants.Rule, hit decision.Hit, d *decision.Decision) {
	t.Helper()
	wait, err := strconv.ParseInt(headersOf(d).Get("Retry-After"), 10, 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, wait, int64(1))
	body := decision.Denied(d, "")
	seconds, ok := body.RetryAfterSeconds.Value()
	require.True(t, ok)
	require.Equal(t, wait, seconds)
	at, err := time.Parse(time.RFC3339, body.RetryAfterAt)
	require.NoError(t, err)
	exact, _ := d.RetryAfter()
	require.False(t, at.Before(f.clock.now().Add(exact)), "the moment is never too early")

	start := f.clock.us.Load()
	if wait > 1 {
		f.clock.advance(time.Duration(wait)*time.Second - 1500*time.Millisecond)
		require.Equal(t, decision.Deny, f.decide(t, hit).Verdict, "%s, cost %d", &rule.Limit, hit.Cost)
		f.clock.us.Store(start)
	}
	f.clock.advance(time.Duration(wait) * time.Second)
	require.NotEqual(t, decision.Deny, f.decide(t, hit).Verdict, "%s, cost %d", &rule.Limit, hit.Cost)
}

func randomRule(random *rand.Rand) tenants.Rule {
	rule := minute("m", 1+random.Int64N(200))
	rule.Window = time.Duration(1+random.Int64N(600)) * time.Second
	rule.Algorithm = []ratelimit.Algorithm{
		ratelimit.SlidingWindowLog, ratelimit.SlidingWindowLog, ratelimit.SlidingWindowCounter, ratelimit.FixedWindow, ratelimit.TokenBucket, ratelimit.LeakyBucket,
	}[random.IntN(6)]
	if rule.Algorithm.Bucket() {
		rule.Window = 0
		rule.Refill = ratelimit.Rate{Units: 1 + random.Int64N(10), Every: time.Duration(1+random.Int64N(30)) * time.Second}
	}
	return rule
}

func TestSourceOfRedisIsNotNamed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := decision.New(decision.Config{Store: redis{f.store}, Directory: f.directory, Now: f.clock.now})
	d, err := e.Decide(t.Context(), f.hit(t))
	require.NoError(t, err)
	require.Empty(t, headersOf(d).Get("X-Pegel-Source"))
}

func TestNumberReadsWhatItWrites(t *testing.T) {
	t.Parallel()
	var body decision.Answer
	require.NoError(t, json.Unmarshal([]byte(`{"limit":5,"used":null}`), &body))
	v, ok := body.Limit.Value()
	require.True(t, ok)
	require.EqualValues(t, 5, v)
	_, ok = body.Used.Value()
	require.False(t, ok)
	require.True(t, body.RetryAfterMS.IsZero())
	require.Error(t, json.Unmarshal([]byte(`{"limit":"5"}`), &body))
}
