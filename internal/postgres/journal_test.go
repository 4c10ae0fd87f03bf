package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/journal"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// journalBench is a journal in a database of its own.
type journalBench struct {
	*bench

	journal *postgres.Journal
	ids     *decision.IDSource
	writer  uuid.UUID
	batches int64
}

func newJournalBench(tb testing.TB) *journalBench {
	tb.Helper()
	b := newBench(tb)
	return &journalBench{bench: b, journal: postgres.NewJournal(b.pool, postgres.WithAnswerWithin(time.Minute)), ids: decision.NewIDSource(), writer: uuid.New()}
}

func (b *journalBench) id(at time.Time) uuid.UUID { return uuid.MustParse(b.ids.Next(at)) }

// request is a refused call of a tenant.
func (b *journalBench) request(at time.Time, tenant string) journal.Request {
	return journal.Request{ID: b.id(at), At: at, DecisionID: b.id(at), Count: 1, Facts: journal.Facts{
		Verdict: decision.Deny, Reason: journal.RateLimitExceeded, Tenant: tenant, Plan: "light", User: "u42", Key: "k1", Address: "203.0.113.7/32",
		Service: "edge", Method: "GET", Path: "/v1/messages", Door: decision.DoorCheck, LimitName: "requests-per-minute", Used: 2000, Quota: 2000,
		Cost: 1, Source: ratelimit.SourceRedis, Replica: "pegel-1",
	}}
}

func (b *journalBench) explanation(at time.Time) journal.Explanation {
	return journal.Explanation{
		ID: b.id(at), At: at, LastAt: at, Count: 1, Facts: b.request(at, "school-17").Facts, RetryAfter: 12 * time.Second,
		Limits: []journal.LimitLine{{
			Name: "requests-per-minute", Scope: ratelimit.ScopeTenant, Subject: "tenant school-17", Quota: 2000, PlanQuota: 1000, Refused: true,
			Override: &journal.OverrideLine{Reason: "exam week", ExpiresAt: at.Add(time.Hour)},
		}},
	}
}

func (b *journalBench) write(tb testing.TB, batch journal.Batch) {
	tb.Helper()
	b.batches++
	batch.Writer, batch.Number = b.writer, b.batches
	require.NoError(tb, b.journal.WriteJournal(tb.Context(), &batch))
}

// pages walks the whole list and calls between after each page.
func (b *journalBench) pages(tb testing.TB, f journal.Filter, size int, between func()) []journal.Request {
	tb.Helper()
	var all []journal.Request
	for cursor := ""; ; {
		list, err := b.journal.ListRequests(tb.Context(), f, tenants.Page{Cursor: cursor, Limit: size})
		require.NoError(tb, err)
		all = append(all, list.Items...)
		if list.Next == "" {
			return all
		}
		require.Len(tb, list.Items, size)
		cursor = list.Next
		between()
	}
}

func micro(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// Guarantee: what is written is read back as it was, and a batch that is sent again is written once.
func TestJournalWritesABatchOnce(t *testing.T) {
	t.Parallel()
	b := newJournalBench(t)
	now := micro(time.Now())
	batch := journal.Batch{
		Writer: b.writer, Number: 1,
		Requests:     []journal.Request{b.request(now, "school-17"), b.request(now.Add(time.Millisecond), "")},
		Explanations: []journal.Explanation{b.explanation(now)},
		Gaps:         []journal.Gap{{Replica: "pegel-1", From: now.Add(-time.Second), To: now, Requests: 3, Decisions: 2}},
	}
	batch.Requests[1].DecisionID, batch.Requests[1].Reason, batch.Requests[1].Count = uuid.Nil, journal.NetworkDenied, 900
	for range 3 {
		require.NoError(t, b.journal.WriteJournal(t.Context(), &batch))
	}
	list, err := b.journal.ListRequests(t.Context(), journal.Filter{}, tenants.Page{})
	require.NoError(t, err)
	require.Equal(t, []journal.Request{batch.Requests[1], batch.Requests[0]}, list.Items, "the newest first")
	e, err := b.journal.Explanation(t.Context(), batch.Explanations[0].ID)
	require.NoError(t, err)
	require.Equal(t, batch.Explanations[0], e)
	gaps, err := b.journal.ListGaps(t.Context(), now.Add(-time.Hour), time.Time{})
	require.NoError(t, err)
	require.Equal(t, batch.Gaps, gaps)
	gaps, err = b.journal.ListGaps(t.Context(), time.Time{}, now.Add(-time.Hour))
	require.NoError(t, err)
	require.Empty(t, gaps)

	again := batch.Explanations[0]
	again.Count, again.LastAt, again.Plan = 41, now.Add(700*time.Millisecond), "another"
	held := batch.Explanations[0]
	held.Reason = journal.TooManyHeld
	b.batches = 1
	b.write(t, journal.Batch{Explanations: []journal.Explanation{again}})
	e, err = b.journal.Explanation(t.Context(), again.ID)
	require.NoError(t, err)
	require.EqualValues(t, 42, e.Count, "repeats are counted")
	require.Equal(t, again.LastAt, e.LastAt)
	require.Equal(t, "light", e.Plan, "the first is the one that is told")
	b.write(t, journal.Batch{Explanations: []journal.Explanation{held}})
	e, err = b.journal.Explanation(t.Context(), again.ID)
	require.NoError(t, err)
	require.EqualValues(t, 42, e.Count)
	require.Equal(t, journal.TooManyHeld, e.Reason, "what became of it in the end")

	_, err = b.journal.Explanation(t.Context(), b.id(now))
	require.ErrorIs(t, err, tenants.ErrNotFound)
	_, err = b.journal.ListRequests(t.Context(), journal.Filter{}, tenants.Page{Cursor: "bm9uc2Vuc2U"})
	require.ErrorIs(t, err, tenants.ErrCursor)
}

// Guarantee: each filter finds exactly its rows.
func TestRequestLogFilters(t *testing.T) {
	t.Parallel()
	b := newJournalBench(t)
	start := micro(time.Now().Add(-time.Minute))
	var rows []journal.Request
	for i := range 64 {
		r := b.request(start.Add(time.Duration(i)*300*time.Microsecond), "school-17")
		if i&1 > 0 {
			r.Tenant = "school-18"
		}
		if i&2 > 0 {
			r.Verdict, r.Reason = decision.Allow, ""
		}
		if i&4 > 0 {
			r.Address = "2001:db8::/64"
		}
		if i&8 > 0 {
			r.Door = decision.DoorProxy
		}
		if i&16 > 0 {
			r.LimitName = "exports"
		}
		rows = append(rows, r)
	}
	b.write(t, journal.Batch{Requests: rows})
	from, to := rows[10].At, rows[20].At
	for name, c := range map[string]struct {
		filter journal.Filter
		holds  func(r *journal.Request) bool
	}{
		"nothing":  {journal.Filter{}, func(*journal.Request) bool { return true }},
		"tenant":   {journal.Filter{Tenant: "school-18"}, func(r *journal.Request) bool { return r.Tenant == "school-18" }},
		"decision": {journal.Filter{Verdict: decision.Allow}, func(r *journal.Request) bool { return r.Verdict == decision.Allow }},
		"address":  {journal.Filter{Address: "2001:db8::/64"}, func(r *journal.Request) bool { return r.Address == "2001:db8::/64" }},
		"door":     {journal.Filter{Door: decision.DoorProxy}, func(r *journal.Request) bool { return r.Door == decision.DoorProxy }},
		"limit":    {journal.Filter{LimitName: "exports"}, func(r *journal.Request) bool { return r.LimitName == "exports" }},
		"id":       {journal.Filter{DecisionID: rows[7].DecisionID}, func(r *journal.Request) bool { return r.ID == rows[7].ID }},
		"time":     {journal.Filter{From: from, To: to}, func(r *journal.Request) bool { return !r.At.Before(from) && r.At.Before(to) }},
		"all of them": {
			journal.Filter{Tenant: "school-17", Verdict: decision.Deny, Address: "203.0.113.7/32", Door: decision.DoorCheck, LimitName: "exports", From: from, To: rows[60].At},
			func(r *journal.Request) bool {
				return r.Tenant == "school-17" && r.Verdict == decision.Deny && r.Address == "203.0.113.7/32" && r.Door == decision.DoorCheck &&
					r.LimitName == "exports" && !r.At.Before(from) && r.At.Before(rows[60].At)
			},
		},
		"nobody": {journal.Filter{Tenant: "school-1"}, func(*journal.Request) bool { return false }},
	} {
		want := []uuid.UUID{}
		for i := len(rows) - 1; i >= 0; i-- {
			if c.holds(&rows[i]) {
				want = append(want, rows[i].ID)
			}
		}
		got := []uuid.UUID{}
		for _, r := range b.pages(t, c.filter, 3, func() {}) {
			got = append(got, r.ID)
		}
		require.Equal(t, want, got, name)
	}
}

// Guarantee: pages neither skip nor repeat, also rows of one moment, on both sides of midnight, while others write and a replica is late.
func TestRequestLogPagesNeitherSkipNorRepeat(t *testing.T) {
	t.Parallel()
	b := newJournalBench(t)
	midnight := time.Now().UTC().Truncate(24 * time.Hour)
	there := map[uuid.UUID]int{}
	var rows []journal.Request
	for i := range 200 {
		at := midnight // half of them in one microsecond
		if i%2 == 0 {
			at = midnight.Add(time.Duration(i-100) * time.Millisecond)
		}
		rows = append(rows, b.request(at, "school-17"))
		there[rows[i].ID] = 0
	}
	b.write(t, journal.Batch{Requests: rows})
	turned := 0
	for _, r := range b.pages(t, journal.Filter{Tenant: "school-17"}, 7, func() {
		turned++
		b.write(t, journal.Batch{Requests: []journal.Request{
			b.request(midnight.Add(time.Hour), "school-17"), b.request(midnight.Add(time.Duration(turned)*7*time.Millisecond), "school-17"),
		}})
	}) {
		if n, ok := there[r.ID]; ok {
			there[r.ID] = n + 1
		}
	}
	require.Greater(t, turned, 27)
	for id, n := range there {
		require.Equal(t, 1, n, id)
	}
}

// Guarantee: what is older than its retention goes, partition by partition, nothing else does, and room is made ahead.
func TestJournalRetention(t *testing.T) {
	t.Parallel()
	b := newJournalBench(t)
	now := micro(time.Now())
	for _, age := range []time.Duration{0, 20 * time.Hour, 31 * time.Hour, 80 * time.Hour, 200 * time.Hour, 300 * time.Hour} {
		at := now.Add(-age)
		b.write(t, journal.Batch{
			Requests: []journal.Request{b.request(at, "school-17")}, Explanations: []journal.Explanation{b.explanation(at)},
			Gaps: []journal.Gap{{Replica: "pegel-1", From: at, To: at, Requests: 1}},
		})
	}
	old, err := b.journal.ListRequests(t.Context(), journal.Filter{}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, old.Items, 6)
	require.EqualValues(t, 6, b.number(t, `SELECT count(*) FROM decisions`))
	require.EqualValues(t, 2, b.number(t, `SELECT count(*) FROM decisions WHERE last_at > now() - interval '24 hours'`))

	for range 2 {
		require.NoError(t, b.journal.MaintainJournal(t.Context(), 168*time.Hour))
	}
	kept, err := b.journal.ListRequests(t.Context(), journal.Filter{}, tenants.Page{})
	require.NoError(t, err)
	require.Equal(t, old.Items[:4], kept.Items)
	require.EqualValues(t, 2, b.number(t, `SELECT count(*) FROM decisions`), "a day, and at most six hours more")
	require.EqualValues(t, 4, b.number(t, `SELECT count(*) FROM journal_gaps`))
	require.EqualValues(t, 0, b.number(t, `SELECT count(*) FROM decisions WHERE at < now() - interval '31 hours'`))
	ahead := b.number(t, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'request_log'::regclass`)
	b.write(t, journal.Batch{Requests: []journal.Request{b.request(now.Add(24*time.Hour), "school-17")}})
	require.Equal(t, ahead, b.number(t, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'request_log'::regclass`), "tomorrow's was made ahead")

	// Somebody drops a partition by hand: one write fails, the next makes it again.
	b.exec(t, `TRUNCATE request_log`)
	b.exec(t, fmt.Sprintf(`DROP TABLE request_log_%s_00`, now.UTC().Format("20060102")))
	batch := journal.Batch{Writer: b.writer, Number: 1000, Requests: []journal.Request{b.request(now, "school-17")}}
	require.Error(t, b.journal.WriteJournal(t.Context(), &batch))
	require.NoError(t, b.journal.WriteJournal(t.Context(), &batch))
	require.EqualValues(t, 1, b.number(t, `SELECT count(*) FROM request_log`))
}

// Guarantee: a role that does not own the tables, with the rights that the documentation names, can do all of it; and others nothing.
func TestJournalOfARoleThatOwnsNothing(t *testing.T) {
	t.Parallel()
	b := newJournalBench(t)
	now := micro(time.Now())
	b.write(t, journal.Batch{Requests: []journal.Request{b.request(now.Add(-72*time.Hour), "school-17")}})
	journalOf := func(grants ...string) *postgres.Journal {
		role := fmt.Sprintf("pegel_%x", uuid.New())
		b.exec(t, `CREATE ROLE `+role)
		t.Cleanup(func() {
			_, _ = b.pool.Exec(context.WithoutCancel(t.Context()), `DROP OWNED BY `+role+`; DROP ROLE `+role)
		})
		for _, grant := range grants {
			b.exec(t, `GRANT `+grant+` TO `+role)
		}
		config, err := pgxpool.ParseConfig(b.url)
		require.NoError(t, err)
		config.ConnConfig.RuntimeParams["role"] = role
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		return postgres.NewJournal(pool, postgres.WithAnswerWithin(time.Minute))
	}
	rows := `SELECT, INSERT, UPDATE, DELETE ON request_log, decisions, journal_writers, journal_gaps`
	few := journalOf(rows)
	require.ErrorContains(t, few.MaintainJournal(t.Context(), time.Hour), "permission denied")

	one := journalOf(rows, `EXECUTE ON FUNCTION journal_make_partition, journal_drop_partition`)
	require.NoError(t, one.MaintainJournal(t.Context(), 24*time.Hour))
	require.NoError(t, one.WriteJournal(t.Context(), &journal.Batch{
		Writer: uuid.New(), Number: 1, Requests: []journal.Request{b.request(now, "school-17")}, Explanations: []journal.Explanation{b.explanation(now)},
		Gaps: []journal.Gap{{Replica: "pegel-1", From: now, To: now, Requests: 1}},
	}))
	list, err := one.ListRequests(t.Context(), journal.Filter{}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, list.Items, 1, "the old one is gone, the new one is there")
}

// Guarantee: replicas that start together make the same partitions without getting into each other's way.
func TestJournalPartitionsAreMadeOnce(t *testing.T) {
	t.Parallel()
	b := newJournalBench(t)
	errs := make(chan error, 6)
	for range cap(errs) {
		one := postgres.NewJournal(b.pool)
		go func() {
			errs <- one.MaintainJournal(context.WithoutCancel(t.Context()), time.Hour)
		}()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	require.GreaterOrEqual(t, b.number(t, `SELECT count(*) FROM pg_inherits WHERE inhparent IN ('request_log'::regclass, 'decisions'::regclass)`), int64(10))
}
