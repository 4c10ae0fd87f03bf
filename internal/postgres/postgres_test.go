package postgres_test

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

var alice = audit.Actor{Kind: "admin_token", ID: "abc", Name: "Alice", Address: "203.0.113.7", RequestID: "req-1"}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// bench is a repository on a database of the test's own.
type bench struct {
	*postgres.Repository

	pool *pgxpool.Pool
	url  string
}

// newBench may take its time: what its tests are about is not how long a call takes.
func newBench(tb testing.TB) *bench {
	tb.Helper()
	return benchOn(tb, testenv.Postgres(tb), postgres.WithAnswerWithin(time.Minute))
}

func benchOn(tb testing.TB, url string, options ...postgres.Option) *bench {
	tb.Helper()
	pool, err := postgres.NewPool(url, postgres.PoolOptions{MaxConns: 24, MinIdle: 1})
	require.NoError(tb, err)
	tb.Cleanup(pool.Close)
	return &bench{Repository: postgres.NewRepository(pool, options...), pool: pool, url: url}
}

func (b *bench) exec(tb testing.TB, sql string, args ...any) {
	tb.Helper()
	_, err := b.pool.Exec(tb.Context(), sql, args...)
	require.NoError(tb, err, sql)
}

func (b *bench) number(tb testing.TB, sql string, args ...any) (n int64) {
	tb.Helper()
	require.NoError(tb, b.pool.QueryRow(tb.Context(), sql, args...).Scan(&n), sql)
	return n
}

func plan(name string, quota int64) tenants.Plan {
	p := tenants.Plan{Name: name, Title: "Plan " + name, Limits: []tenants.Rule{{Limit: ratelimit.Limit{Name: "requests-per-minute", Quota: quota, Window: time.Minute}}}}
	p.SetDefaults()
	return p
}

func tenant(slug, planName string) tenants.Tenant {
	t := tenants.Tenant{Slug: slug, Name: "Name of " + slug, Plan: planName}
	t.SetDefaults()
	return t
}

func (b *bench) havePlan(tb testing.TB, name string, quota int64) tenants.Plan {
	tb.Helper()
	p, err := b.CreatePlan(tb.Context(), alice, plan(name, quota))
	require.NoError(tb, err)
	return p
}

func (b *bench) haveTenant(tb testing.TB, slug, planName string) tenants.Tenant {
	tb.Helper()
	stored, err := b.CreateTenant(tb.Context(), alice, tenant(slug, planName))
	require.NoError(tb, err)
	return stored
}

// lastEntry is the newest audit entry.
func (b *bench) lastEntry(tb testing.TB) audit.Entry {
	tb.Helper()
	list, err := b.ListAudit(tb.Context(), audit.Filter{}, tenants.Page{Limit: 1})
	require.NoError(tb, err)
	require.Len(tb, list.Items, 1)
	return list.Items[0]
}

func field(e audit.Entry, name string) (from, to string) {
	for _, c := range e.Diff {
		if c.Field == name {
			return string(c.From), string(c.To)
		}
	}
	return "", ""
}

// snapshot loads everything from scratch.
func (b *bench) snapshot(tb testing.TB) *tenants.Snapshot {
	tb.Helper()
	c, err := b.Load(tb.Context(), 0)
	require.NoError(tb, err)
	return tenants.NewSnapshot(c, time.Now())
}
