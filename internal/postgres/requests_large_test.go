package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/journal"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// rowsEnv sizes the log of BenchmarkListRequests; docs/performance.md has its figures for ten million.
const rowsEnv = "PEGEL_BENCH_ROWS"

// fill writes n rows of the last two days: 2,000 tenants of which the first takes a quarter of all, one call in a thousand slowed,
// one in four refused.
func (b *journalBench) fill(tb testing.TB, n int) {
	tb.Helper()
	require.NoError(tb, b.journal.MaintainJournal(tb.Context(), 168*time.Hour))
	for _, ago := range []string{"0", "24 hours", "48 hours"} {
		b.exec(tb, `SELECT journal_make_partition('request_log', now() - $1::interval, '24 hours')`, ago)
	}
	const step = 250_000
	for from := 0; from < n; from += step {
		b.exec(tb, `
			INSERT INTO request_log
			SELECT (left(journal_id(at)::text, 14) || '7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, at, gen_random_uuid(), 1,
				CASE WHEN i % 1000 = 7 THEN 'slow' WHEN i % 4 = 1 THEN 'deny' ELSE 'allow' END, false, '',
				'school-' || CASE WHEN i % 4 = 0 THEN 0 ELSE (i * 7919::bigint) % 2000 END, 'light', 'u' || i % 5000, '', '10.' || i % 200 || '.' || i % 251 || '.7/32', 'edge',
				'GET', '/v1/messages/' || i % 1000, (ARRAY['check', 'proxy', 'authz'])[1 + i % 3], CASE WHEN i % 50 = 0 THEN 'exports' ELSE 'requests-per-minute' END,
				i % 2000, 2000, 1, 0, 'redis', 'pegel-1'
			FROM (SELECT i, now() - (i::float8 / $3) * interval '40 hours' AS at FROM generate_series($1::bigint, $2::bigint) AS i) AS n`,
			from, min(from+step, n)-1, float64(n))
	}
	b.exec(tb, `ANALYZE request_log`)
}

// lists are what an operator asks for, by name.
func lists() map[string]journal.Filter {
	day := time.Now().Add(-20 * time.Hour)
	return map[string]journal.Filter{
		"everything":           {},
		"a large tenant":       {Tenant: "school-0"},
		"a small tenant":       {Tenant: "school-17"},
		"an unknown tenant":    {Tenant: "school-x"},
		"refused":              {Verdict: decision.Deny},
		"slowed":               {Verdict: decision.Slow},
		"an address":           {Address: "10.7.7.7/32"},
		"a door":               {Door: decision.DoorAuthz},
		"a door nobody used":   {Door: decision.DoorEnvoy},
		"a limit":              {LimitName: "exports"},
		"an hour":              {From: day, To: day.Add(time.Hour)},
		"refused of a tenant":  {Tenant: "school-17", Verdict: decision.Deny},
		"a tenant in an hour":  {Tenant: "school-0", From: day, To: day.Add(time.Hour)},
		"tenant, door, denied": {Tenant: "school-3", Door: decision.DoorProxy, Verdict: decision.Deny},
		// The worst: many rows of each, none of both.
		"a large tenant, never refused": {Tenant: "school-0", Verdict: decision.Deny},
		"a large tenant, never slowed":  {Tenant: "school-0", Verdict: decision.Slow},
	}
}

// Guarantee: a page of a large request log is found by an index in the order of the list, whatever the filter: it touches a few
// hundred pages of Postgres at most, not the log. 10,000,000 rows are measured by hand (docs/performance.md): BenchmarkListRequests.
func TestALargeRequestLogIsListedByIndex(t *testing.T) {
	t.Parallel()
	b := newJournalBench(t)
	b.fill(t, 120_000)
	total := b.number(t, `SELECT sum(pg_relation_size(inhrelid)) / 8192 FROM pg_inherits WHERE inhparent = 'request_log'::regclass`)
	require.Greater(t, total, int64(2_500), "or the bound below says nothing")
	for name, filter := range lists() {
		plan, touched := b.explain(t, filter)
		require.Contains(t, plan, "Index", name)
		require.LessOrEqual(t, touched, int64(250), "%s: pages\n%s", name, plan)
	}
}

// explain runs what a list really sends for its first page: Postgres' plan, and how many of its pages that touched.
func (b *journalBench) explain(tb testing.TB, f journal.Filter) (plan string, touched int64) {
	tb.Helper()
	sql, args := postgres.RequestsSQL(&f, uuid.Nil, 51)
	require.NoError(tb, pgx.BeginFunc(tb.Context(), b.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(tb.Context(), postgres.Unsorted); err != nil {
			return err
		}
		return tx.QueryRow(tb.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+sql, args...).Scan(&plan)
	}))
	var explained []struct {
		Plan struct {
			Hit  int64 `json:"Shared Hit Blocks"`
			Read int64 `json:"Shared Read Blocks"`
		}
	}
	require.NoError(tb, json.Unmarshal([]byte(plan), &explained))
	require.Len(tb, explained, 1)
	return plan, explained[0].Plan.Hit + explained[0].Plan.Read
}

// BenchmarkListRequests is what one page costs: the first, and one from the middle.
func BenchmarkListRequests(b *testing.B) {
	n := 1_000_000
	if given, err := strconv.Atoi(os.Getenv(rowsEnv)); err == nil {
		n = given
	}
	log := newJournalBench(b)
	log.fill(b, n)
	for name, filter := range lists() {
		b.Run(fmt.Sprintf("%s of %d", name, n), func(b *testing.B) {
			slowest := time.Duration(0)
			for b.Loop() {
				start := time.Now()
				list, err := log.journal.ListRequests(context.Background(), filter, tenants.Page{})
				require.NoError(b, err)
				if list.Next != "" {
					_, err = log.journal.ListRequests(context.Background(), filter, tenants.Page{Cursor: list.Next})
					require.NoError(b, err)
				}
				slowest = max(slowest, time.Since(start))
			}
			b.ReportMetric(float64(slowest.Microseconds())/1000, "slowest-ms")
		})
	}
}
