package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/pgstore"
	"github.com/pegel-dev/pegel/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// patient is a timeout for tests that are not about timeouts, on a machine that other tests keep busy.
const patient = 20 * time.Second

// newPool is a decision pool that ends with the test.
func newPool(tb testing.TB, url string, size int) *pgxpool.Pool {
	tb.Helper()
	cfg, err := pgstore.PoolConfig(url, size, pgstore.DefaultTimeout)
	require.NoError(tb, err)
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(tb, err)
	tb.Cleanup(pool.Close)
	return pool
}

// newStore is a patient store on a fresh database, and the pool under it.
func newStore(tb testing.TB, options ...pgstore.Option) (*pgstore.Store, *pgxpool.Pool) {
	tb.Helper()
	pool := newPool(tb, testenv.Postgres(tb), 8)
	return pgstore.New(pool, append([]pgstore.Option{pgstore.WithTimeout(patient)}, options...)...), pool
}

// clock is a clock that only the test moves.
type clock struct{ t time.Time }

func newClock() *clock { return &clock{time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time          { return c.t }
func (c *clock) advance(d time.Duration) { c.t = c.t.Add(d) }

func window(a ratelimit.Algorithm, quota int64, w time.Duration) *ratelimit.Limit {
	return &ratelimit.Limit{Name: "test", Scope: ratelimit.ScopeTenant, Algorithm: a, Quota: quota, Window: w, Cost: 1}
}

func bucket(a ratelimit.Algorithm, quota, units int64, every time.Duration) *ratelimit.Limit {
	return &ratelimit.Limit{
		Name: "test", Scope: ratelimit.ScopeTenant, Algorithm: a, Quota: quota, Cost: 1,
		Refill: ratelimit.Rate{Units: units, Every: every},
	}
}

// counter is the limit's counter of some tenant that no other test has.
func counter(l *ratelimit.Limit) ratelimit.Counter {
	tenant := fmt.Sprintf("tenant-%x", rand.Uint64())
	return ratelimit.Counter{Key: ratelimit.CounterKey(ratelimit.Subject{Group: tenant, Scope: l.Scope}, l), Limit: l}
}

func take(hits, cost int64, counters ...ratelimit.Counter) ratelimit.Charge {
	return ratelimit.Charge{Kind: ratelimit.Take, Hits: hits, Cost: cost, Counters: counters}
}

func peek(counters ...ratelimit.Counter) ratelimit.Charge {
	return ratelimit.Charge{Kind: ratelimit.Peek, Hits: 1, Cost: 1, Counters: counters}
}

func refund(units int64, counters ...ratelimit.Counter) ratelimit.Charge {
	return ratelimit.Charge{Kind: ratelimit.Refund, Hits: 1, Cost: units, Counters: counters}
}

// one settles a single charge.
func one(tb testing.TB, s ratelimit.Store, c ratelimit.Charge) ratelimit.Outcome {
	tb.Helper()
	out := make([]ratelimit.Outcome, 1)
	require.NoError(tb, s.Decide(tb.Context(), []ratelimit.Charge{c}, out))
	require.NoError(tb, out[0].Err)
	return out[0]
}

func used(out ratelimit.Outcome) []int64 {
	var all []int64
	for _, c := range out.Counters {
		all = append(all, c.Used)
	}
	return all
}

func charged(out ratelimit.Outcome) []int64 {
	var all []int64
	for _, c := range out.Counters {
		all = append(all, c.Charged)
	}
	return all
}

func rowCount(tb testing.TB, pool *pgxpool.Pool) int64 {
	tb.Helper()
	var n int64
	require.NoError(tb, pool.QueryRow(tb.Context(), `SELECT count(*) FROM rate_limit_windows`).Scan(&n))
	return n
}

// sqlState is the code of Postgres's error, if it is one.
func sqlState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}
