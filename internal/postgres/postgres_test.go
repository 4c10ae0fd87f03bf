package postgres_test

import (
	"context"
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

func newBench(t testing.TB) *bench {
	t.Helper()
	return benchOn(t, testenv.Postgres(t))
}

func benchOn(t testing.TB, url string) *bench {
	t.Helper()
	pool, err := postgres.NewPool(url, postgres.PoolOptions{MaxConns: 24, MinIdle: 1})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return &bench{Repository: postgres.NewRepository(pool), pool: pool, url: url}
}

func (b *bench) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	_, err := b.pool.Exec(t.Context(), sql, args...)
	require.NoError(t, err, sql)
}

func (b *bench) number(t testing.TB, sql string, args ...any) (n int64) {
	t.Helper()
	require.NoError(t, b.pool.QueryRow(t.Context(), sql, args...).Scan(&n), sql)
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

func (b *bench) havePlan(t testing.TB, name string, quota int64) tenants.Plan {
	t.Helper()
	p, err := b.CreatePlan(t.Context(), alice, plan(name, quota))
	require.NoError(t, err)
	return p
}

func (b *bench) haveTenant(t testing.TB, slug, planName string) tenants.Tenant {
	t.Helper()
	stored, err := b.CreateTenant(t.Context(), alice, tenant(slug, planName))
	require.NoError(t, err)
	return stored
}

// lastEntry is the newest audit entry.
func (b *bench) lastEntry(t testing.TB) audit.Entry {
	t.Helper()
	list, err := b.ListAudit(t.Context(), audit.Filter{}, tenants.Page{Limit: 1})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
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
func (b *bench) snapshot(t testing.TB) *tenants.Snapshot {
	t.Helper()
	c, err := b.Load(context.Background(), 0)
	require.NoError(t, err)
	return tenants.NewSnapshot(c, time.Unix(1, 0))
}
