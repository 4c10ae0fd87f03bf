package journal_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/journal"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// Guarantee: each request_log keeps what it says, and a setting of its own says what is kept of strangers.
func TestRequestLogModes(t *testing.T) {
	t.Parallel()
	for mode, want := range map[tenants.RequestLog][]decision.Verdict{
		tenants.LogOff:     {},
		tenants.LogDenied:  {decision.Deny},
		tenants.LogAllowed: {decision.Allow, decision.Slow},
		tenants.LogSampled: {decision.Allow, decision.Slow, decision.Deny}, // one in one
		tenants.LogAll:     {decision.Allow, decision.Slow, decision.Deny},
		"":                 {decision.Deny},
	} {
		t.Run("mode "+string(mode), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, testenv.Postgres(t), mode, func(c *journal.Config) { c.Sample, c.Anonymous = 1, mode }, limit("m", 2, slows))
			w.changes.AddressPolicy = &tenants.AddressPolicy{Limits: []tenants.Rule{limit("a", 2, scope(ratelimit.ScopeAddress), slows)}}
			w.apply()
			stranger := decision.Hit{Address: prefix("203.0.113.7"), Cost: 1, Door: decision.DoorPing}
			look := w.hit()
			look.Peek = true
			for range 3 {
				w.decide(w.hit())
				w.decide(stranger)
				w.decide(look)
			}
			w.run()
			w.stop()
			got := map[string][]decision.Verdict{"school-17": {}, "": {}}
			for _, r := range w.all() {
				got[r.Tenant] = append(got[r.Tenant], r.Verdict)
			}
			require.Equal(t, map[string][]decision.Verdict{"school-17": want, "": want}, got)
		})
	}
}

// Guarantee: what is kept of a call is what happened, and nothing that was a credential or a query.
func TestWhatIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testenv.Postgres(t), tenants.LogAll, nil, limit("m", 1))
	w.changes.Networks = []tenants.Network{{ID: 1, CIDR: netip.MustParsePrefix("198.51.100.0/24"), Action: tenants.Deny}}
	w.apply()
	h := w.hit()
	h.User, h.Key, h.Service, h.Address, h.Standing = "u42", "k1", "edge", prefix("203.0.113.7"), decision.Authenticated
	d := w.decide(h)

	leaky := w.hit()
	leaky.User, leaky.Key, leaky.Path = "pgs_secretsecret", "x pgk_Secret", "/a/PGK_Secret/b"
	refused := w.decide(leaky)
	for range 4 {
		require.Equal(t, refused.ID, w.decide(leaky).ID)
	}
	suspended, _ := w.directory.Snapshot().Tenant("school-18")
	_, err := w.engine.Decide(t.Context(), decision.Hit{Tenant: suspended, Cost: 1, Door: decision.DoorAuthz})
	require.ErrorIs(t, err, decision.ErrSuspended)
	for range 3 {
		_, err = w.engine.Decide(t.Context(), decision.Hit{Address: prefix("198.51.100.9"), Cost: 1})
		require.ErrorIs(t, err, decision.ErrNetworkDenied)
	}
	guess := decision.Caller{WrongAPIKey: true, Address: prefix("203.0.113.8"), Door: decision.DoorProxy}
	for range 3 {
		require.ErrorIs(t, w.engine.Unauthorized(t.Context(), &guess, "GET", "/x"), decision.ErrUnauthorized)
	}
	w.run()
	w.stop()

	rows := w.all()
	require.Len(t, rows, 5)
	for i := range rows {
		require.WithinDuration(t, time.Now(), rows[i].At, time.Minute)
		rows[i].ID, rows[i].At = uuid.Nil, time.Time{}
	}
	id := uuid.MustParse
	require.Equal(t, []journal.Request{
		{DecisionID: id(d.ID), Count: 1, Facts: journal.Facts{
			Verdict: decision.Allow, Tenant: "school-17", Plan: "light", User: "u42", Key: "k1", Address: "203.0.113.7/32", Service: "edge", Method: "GET",
			Path: "/v1/messages", Door: decision.DoorCheck, LimitName: "m", Used: 1, Quota: 1, Cost: 1, Source: ratelimit.SourceRedis, Replica: "pegel-1",
		}},
		{DecisionID: id(refused.ID), Count: 5, Facts: journal.Facts{
			Verdict: decision.Deny, Reason: journal.RateLimitExceeded, Tenant: "school-17", Plan: "light", Method: "GET", Door: decision.DoorCheck,
			LimitName: "m", Used: 1, Quota: 1, Cost: 1, Source: ratelimit.SourceRedis, Replica: "pegel-1",
		}},
		{Count: 1, Facts: journal.Facts{Verdict: decision.Deny, Reason: journal.TenantSuspended, Tenant: "school-18", Plan: "light", Door: decision.DoorAuthz, Cost: 1, Replica: "pegel-1"}},
		{Count: 3, Facts: journal.Facts{Verdict: decision.Deny, Reason: journal.NetworkDenied, Address: "198.51.100.9/32", Cost: 1, Replica: "pegel-1"}},
		{Count: 3, Facts: journal.Facts{
			Verdict: decision.Deny, Reason: journal.Unauthorized, Address: "203.0.113.8/32", Method: "GET", Path: "/x", Door: decision.DoorProxy, Cost: 1, Replica: "pegel-1",
		}},
	}, rows)

	e := w.explanation(refused)
	require.EqualValues(t, 5, e.Count, "refusals from memory share the decision's record")
	require.False(t, e.LastAt.Before(e.At))
	require.Empty(t, e.Path)
	w.unexplained(d)
}

// Guarantee: every decision to slow down or refuse can be explained, looks included, and one that found no place to wait is
// told as what it became.
func TestExplanations(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testenv.Postgres(t), tenants.LogOff, nil,
		limit("m", 3, slows), limit("exports", 100, func(r *tenants.Rule) { r.Match.Paths = []string{"/v2/*", "/v1/*"} }), limit("watch", 1, func(r *tenants.Rule) { r.Mode = ratelimit.Shadow }),
		limit("mine", 50, scope(ratelimit.ScopeUser)))
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	w.changes.Overrides = []tenants.Override{{TenantID: 17, LimitName: "m", Quota: 5, Reason: "exam week", ExpiresAt: until}}
	w.apply()
	h := w.hit()
	h.User = "u42"
	first := w.decide(h)
	watched := w.decide(h)
	w.decide(h)
	w.decide(h)
	slow := w.decide(h)
	require.Equal(t, decision.Slow, slow.Verdict)
	held := w.engine.TooManyHeld(&h, slow)
	require.Equal(t, slow.ID, held.ID)
	denied := w.decide(h)
	dear := h
	dear.Cost = 6
	never := w.decide(dear)
	look := h
	look.Peek = true
	peeked := w.decide(look)
	w.run()
	w.stop()

	w.unexplained(first)
	require.Contains(t, w.why(watched), "Let through: tenant school-17 has used 2 of 5 units per 1m by m, said redis.")
	require.Contains(t, w.why(watched), "watch only watches; it would have refused (tenant school-17 had used 1 of 1).")

	e := w.explanation(slow)
	require.EqualValues(t, 1, e.Count)
	require.Equal(t, journal.TooManyHeld, e.Reason)
	require.Contains(t, e.Why(), "Refused: the hit was to wait, but too many")

	e = w.explanation(denied)
	require.Equal(t, decision.Deny, e.Verdict)
	require.Equal(t, "GET", e.Method)
	require.Equal(t, decision.DoorCheck, e.Door)
	require.Len(t, e.Limits, 4)
	m := e.Limits[0]
	require.True(t, m.Refused)
	require.EqualValues(t, 5, m.Quota)
	require.EqualValues(t, 3, m.PlanQuota)
	require.Equal(t, &journal.OverrideLine{Reason: "exam week", ExpiresAt: until}, m.Override)
	require.Equal(t, "tenant school-17", m.Subject)
	require.Equal(t, "/v1/*", e.Limits[1].Pattern)
	require.Equal(t, "user u42 of school-17", e.Limits[3].Subject)
	require.Regexp(t, `^Refused: tenant school-17 had used 5 of 5 units per 1m by m, said redis; a hit of cost 1 fits again .* later\. `+
		`The quota is an exception to the plan's 3, until `+until.Format(time.RFC3339)+`: exam week\.`, e.Why())
	require.Contains(t, w.why(never), "Refused: a cost of 6 is more than m ever allows (5 units per 1m); waiting does not help.")
	require.True(t, w.explanation(peeked).Peek)
	require.Contains(t, w.why(peeked), "It was only a look")
}

// Guarantee: shadow mode records what it would have done, and says that it did not.
func TestShadowModeIsRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testenv.Postgres(t), tenants.LogDenied, nil, limit("m", 1))
	mode := ratelimit.Shadow
	w.changes.Mode = &mode
	w.apply()
	w.decide(w.hit())
	d := w.decide(w.hit())
	require.Equal(t, decision.Allow, d.Verdict)
	w.run()
	w.stop()
	rows := w.all()
	require.Len(t, rows, 1)
	require.Equal(t, decision.Deny, rows[0].Verdict)
	require.True(t, rows[0].Shadow)
	require.Contains(t, w.why(d), "The service was in shadow mode, so the hit was let through all the same.")
}

// Guarantee: a decision is found about half a second later while the journal runs, not only at its end.
func TestADecisionIsFoundSoon(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testenv.Postgres(t), tenants.LogDenied, nil, limit("m", 0))
	w.run()
	d := w.decide(w.hit())
	require.Eventually(t, func() bool {
		_, err := w.stored.Explanation(t.Context(), uuid.MustParse(d.ID))
		return err == nil
	}, soon, 10*time.Millisecond)
}

// Guarantee: strangers cause a bounded number of rows, sampled allows too, and what that drops is counted and seen in the log.
func TestStrangersFillNoDisk(t *testing.T) {
	t.Parallel()
	now := time.Now()
	w := newWorld(t, testenv.Postgres(t), tenants.LogDenied, func(c *journal.Config) { c.Sample = 1 }, limit("m", 1_000_000))
	for i := range 1500 {
		addr := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)
		w.journal.Observe(decision.Observation{At: now, Hit: &decision.Hit{Address: addr, Cost: 1}, Err: decision.ErrNetworkDenied})
		w.decide(w.hit())
	}
	w.run()
	w.stop()
	require.Len(t, w.all(), 500)
	stats := w.journal.Stats()
	require.EqualValues(t, 1000, stats.DroppedRequests)
	require.Less(t, stats.WrittenDecisions, int64(200), "examples")
	require.Zero(t, stats.DroppedDecisions, "an example that was not taken is nobody's loss")
	gaps, err := w.stored.ListGaps(t.Context(), time.Time{}, time.Time{})
	require.NoError(t, err)
	require.Len(t, gaps, 1)
	require.EqualValues(t, 1000, gaps[0].Requests)
}

// Guarantee: a Postgres that hangs costs decisions nothing and bounded memory; what does not fit is counted; writing resumes, what
// waited is there once, and the gap is in the log.
func TestHungPostgres(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t)
	require.NoError(t, postgres.MigrateUp(t.Context(), server.URL(), slog.New(slog.DiscardHandler)))
	w := newWorld(t, server.URL(), tenants.LogAll, nil, limit("m", 1_000_000))
	w.run()
	w.decide(w.hit())
	require.Eventually(t, func() bool { return w.journal.Stats().WrittenRequests == 1 }, soon, 10*time.Millisecond)

	require.NoError(t, server.Pause())
	t.Cleanup(func() { _ = server.Resume() })
	const calls = 40_000
	made := 1
	for made < calls {
		for range 1000 { // no more than the ring takes, so that what is dropped is dropped by what waits
			w.decide(w.hit())
			made++
		}
		require.Eventually(t, func() bool {
			s := w.journal.Stats()
			return s.Waiting+s.DroppedRequests+s.WrittenRequests >= int64(made)
		}, soon, 5*time.Millisecond)
	}
	stats := w.journal.Stats()
	require.LessOrEqual(t, stats.Waiting, int64(25_000))
	require.Positive(t, stats.DroppedRequests)
	require.NoError(t, server.Resume())
	require.Eventually(t, func() bool {
		s := w.journal.Stats()
		return s.Waiting == 0 && s.WrittenRequests+s.DroppedRequests == int64(made)
	}, 60*time.Second, 20*time.Millisecond)
	w.stop()

	stats = w.journal.Stats()
	seen, rows := map[uuid.UUID]bool{}, 0
	for cursor := ""; ; {
		list, err := w.stored.ListRequests(t.Context(), journal.Filter{}, tenants.Page{Limit: 5000, Cursor: cursor})
		require.NoError(t, err)
		for i := range list.Items {
			seen[list.Items[i].DecisionID] = true
			rows++
		}
		if cursor = list.Next; cursor == "" {
			break
		}
	}
	require.EqualValues(t, stats.WrittenRequests, rows)
	require.Len(t, seen, rows, "no call twice")
	gaps, err := w.stored.ListGaps(t.Context(), time.Time{}, time.Time{})
	require.NoError(t, err)
	var dropped int64
	for _, g := range gaps {
		dropped += g.Requests
	}
	require.Equal(t, stats.DroppedRequests, dropped)
}

// refusing is a sink that refuses some batches for what is in them.
type refusing struct {
	journal.Sink

	mu    sync.Mutex
	tried int
}

func (s *refusing) WriteJournal(ctx context.Context, b *journal.Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range b.Requests {
		if r.User == "poison" {
			s.tried++
			return errors.New("a row that no server takes")
		}
	}
	return s.Sink.WriteJournal(ctx, b)
}

// Guarantee: a batch that can never be written does not stop those after it, and is counted.
func TestABatchThatNobodyTakesIsGivenUp(t *testing.T) {
	t.Parallel()
	sink := &refusing{}
	w := newWorld(t, testenv.Postgres(t), tenants.LogAll, func(c *journal.Config) { sink.Sink, c.Sink = c.Sink, sink }, limit("m", 1_000))
	w.run()
	poison := w.hit()
	poison.User = "poison"
	w.decide(poison)
	require.Eventually(t, func() bool { return w.journal.Stats().DroppedRequests == 1 }, soon, 10*time.Millisecond)
	w.decide(w.hit())
	require.Eventually(t, func() bool { return w.journal.Stats().WrittenRequests == 1 }, soon, 10*time.Millisecond)
	w.stop()
	require.Equal(t, 3, sink.tried)
	require.Contains(t, w.logs.String(), "a part of the journal is given up")
	gaps, err := w.stored.ListGaps(t.Context(), time.Time{}, time.Time{})
	require.NoError(t, err)
	require.Len(t, gaps, 1)
}

// Guarantee: many writers lose nothing that they were not told of, without a lock.
func TestManyWriters(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testenv.Postgres(t), tenants.LogAll, nil, limit("m", 1_000_000))
	w.run()
	const writers, each = 8, 400
	var all sync.WaitGroup
	hit := w.hit()
	for i := range writers {
		all.Go(func() {
			h := hit
			h.User = fmt.Sprintf("u%d", i)
			for range each {
				if _, err := w.engine.Decide(context.WithoutCancel(t.Context()), h); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	w.stop()
	rows := w.all()
	users := map[string]int{}
	for i := range rows {
		users[rows[i].User]++
	}
	stats := w.journal.Stats()
	require.EqualValues(t, writers*each, int64(len(rows))+stats.DroppedRequests)
	if stats.DroppedRequests == 0 {
		for i := range writers {
			require.Equal(t, each, users[fmt.Sprintf("u%d", i)])
		}
	}
}

// BenchmarkObserve is what observing adds to a decision.
func BenchmarkObserve(b *testing.B) {
	at := time.Now()
	hit := &decision.Hit{Tenant: &tenants.TenantView{Plan: &tenants.Plan{RequestLog: tenants.LogDenied}}, Cost: 1}
	for name, d := range map[string]*decision.Decision{"allowed": {Verdict: decision.Allow}, "denied": {Verdict: decision.Deny}} {
		b.Run(name, func(b *testing.B) {
			j := journal.New(journal.Config{Sink: nowhere{}, Now: time.Now, Sample: 100, Log: slog.New(slog.DiscardHandler)})
			ctx, cancel := context.WithCancel(context.Background())
			var running sync.WaitGroup
			running.Go(func() { j.Run(ctx) })
			b.ReportAllocs()
			for b.Loop() {
				j.Observe(decision.Observation{At: at, Hit: hit, Decision: d})
			}
			cancel()
			running.Wait()
		})
	}
}

// nowhere is a sink that keeps nothing.
type nowhere struct{}

func (nowhere) WriteJournal(context.Context, *journal.Batch) error   { return nil }
func (nowhere) MaintainJournal(context.Context, time.Duration) error { return nil }

// Guarantee: a journal that ends while its Postgres hangs ends in time all the same, and says what is lost.
func TestTheEndWaitsForNobody(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t)
	require.NoError(t, postgres.MigrateUp(t.Context(), server.URL(), slog.New(slog.DiscardHandler)))
	w := newWorld(t, server.URL(), tenants.LogAll, func(c *journal.Config) { c.FlushWithin = 200 * time.Millisecond }, limit("m", 1_000))
	w.run()
	w.decide(w.hit())
	require.Eventually(t, func() bool { return w.journal.Stats().WrittenRequests == 1 }, soon, 10*time.Millisecond)
	require.NoError(t, server.Pause())
	t.Cleanup(func() { _ = server.Resume() })
	for range 3 {
		w.decide(w.hit())
	}
	ended := make(chan struct{})
	go func() { w.stop(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		require.Fail(t, "the journal does not end")
	}
	require.Contains(t, w.logs.String(), `msg="the end of the journal is lost" requests=3`)
}
