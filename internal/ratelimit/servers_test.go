package ratelimit_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/pgstore"
	"github.com/pegel-dev/pegel/internal/ratelimit/redisstore"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// The budgets of production: together with the time to notice, below the 250 ms that a check may take.
const (
	redisBudget    = 50 * time.Millisecond
	postgresBudget = 150 * time.Millisecond
	mostOfACheck   = 250 * time.Millisecond
)

// onServers is a failover over a Redis and a Postgres of its own schema, put together as in production.
func onServers(t *testing.T, redisURL, postgresURL string, redisBudget, postgresBudget time.Duration) *ratelimit.Failover {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	redis, err := redisstore.New(redisstore.Config{URL: redisURL, Timeout: redisBudget, Now: time.Now}, log)
	require.NoError(t, err)
	cfg, err := pgstore.PoolConfig(postgresURL, 16, postgresBudget)
	require.NoError(t, err)
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(t, err)
	f := ratelimit.NewFailover(ratelimit.FailoverConfig{
		Mirror: pgstore.New(pool, pgstore.WithTimeout(2*time.Second)), Lives: redis.Lives,
		Stores: []*ratelimit.Guard{
			guard(redis, redisBudget),
			guard(pgstore.New(pool, pgstore.WithTimeout(postgresBudget)), postgresBudget,
				func(c *ratelimit.GuardConfig) { c.MaxInFlight = 32 }),
		},
		Local: ratelimit.NewMemory(ratelimit.MonotonicMicros(time.Now), 0), Now: time.Now, Log: log,
	})
	t.Cleanup(func() {
		require.NoError(t, f.Close(context.Background()))
		require.NoError(t, redis.Close())
		pool.Close()
	})
	return f
}

// settles waits until a source decides: after a start or a fault, connections have to be made first.
func settles(t *testing.T, f *ratelimit.Failover, source ratelimit.Source) {
	t.Helper()
	warm := perMinute("warm", 1_000_000, ratelimit.FailOpen)
	require.Eventually(t, func() bool {
		out, err := decide(t, f, hit(warm))
		return err == nil && out.Source == source && f.Source() == source
	}, 30*time.Second, 20*time.Millisecond, "decisions never come from %s", source)
}

type timed struct {
	outcome ratelimit.Outcome
	took    time.Duration
}

// barrage makes n decisions from a few callers and returns them, slowest last.
func barrage(t *testing.T, f *ratelimit.Failover, n int, limits ...*ratelimit.Limit) []timed {
	t.Helper()
	const callers = 4
	var mu sync.Mutex
	var all []timed
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range n / callers {
				out := make([]ratelimit.Outcome, 1)
				start := time.Now()
				err := f.Decide(context.Background(), hit(limits...), out)
				took := time.Since(start)
				if err != nil || out[0].Err != nil {
					t.Errorf("a decision failed: %v, %v", err, out[0].Err)
				}
				mu.Lock()
				all = append(all, timed{out[0], took})
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.SortFunc(all, func(a, b timed) int { return int(a.took - b.took) })
	return all
}

func sources(all []timed) map[ratelimit.Source]int {
	n := map[ratelimit.Source]int{}
	for i := range all {
		n[all[i].outcome.Source]++
	}
	return n
}

// B024, B043: servers that hang, with their sockets open, cost no check more than its budget, from the first one on.
func TestServersThatHang(t *testing.T) {
	redis := testenv.RedisServer(t)
	f := onServers(t, redis.URL(), testenv.Postgres(t), redisBudget, postgresBudget)
	settles(t, f, ratelimit.SourceRedis)

	require.NoError(t, redis.Pause())
	resumed := false
	defer func() {
		if !resumed {
			require.NoError(t, redis.Resume())
		}
	}()
	all := barrage(t, f, 400, perMinute("hung", 1_000_000, ratelimit.FailOpen))
	require.LessOrEqual(t, all[len(all)*99/100].took, mostOfACheck, "p99 of a check")
	require.Zero(t, sources(all)[ratelimit.SourceRedis])
	require.GreaterOrEqual(t, sources(all)[ratelimit.SourcePostgres], 380, "Postgres decides, but where this machine is too busy")
	require.Equal(t, ratelimit.SourcePostgres, f.Source())

	require.NoError(t, redis.Resume())
	resumed = true
	settles(t, f, ratelimit.SourceRedis)
}

func TestServersThatAreGone(t *testing.T) {
	redis, postgres := testenv.RedisServer(t), testenv.PostgresServer(t)
	// This Postgres has no schema, so it is as good as gone: nobody decides but Redis.
	f := onServers(t, redis.URL(), postgres.URL(), redisBudget, postgresBudget)
	settles(t, f, ratelimit.SourceRedis)
	open, local := perMinute("open", 10, ratelimit.FailOpen), perMinute("local", 10, ratelimit.FailLocal)
	closed := perMinute("closed", 10, ratelimit.FailClosed)

	require.NoError(t, redis.Stop())
	require.NoError(t, postgres.Stop())
	all := barrage(t, f, 40, open)
	require.Equal(t, 40, sources(all)[ratelimit.SourceNone])
	require.LessOrEqual(t, all[len(all)-1].took, mostOfACheck)
	admitted := int64(0)
	for _, d := range barrage(t, f, 40, local) {
		require.Equal(t, ratelimit.SourceMemory, d.outcome.Source)
		admitted += d.outcome.Admitted
	}
	require.EqualValues(t, 10, admitted, "this replica counts")
	out, err := decide(t, f, hit(closed))
	require.NoError(t, err)
	require.ErrorIs(t, out.Err, ratelimit.ErrClosed)

	require.NoError(t, redis.Start())
	settles(t, f, ratelimit.SourceRedis)
}

// B031: Redis need not be there at the start; Postgres decides, exactly, until it is.
func TestServersThatStartLate(t *testing.T) {
	redis := testenv.RedisServer(t)
	require.NoError(t, redis.Stop())
	f := onServers(t, redis.URL(), testenv.Postgres(t), redisBudget, patientBudget)
	settles(t, f, ratelimit.SourcePostgres)
	admitted := int64(0)
	for _, d := range barrage(t, f, 100, perMinute("late", 25, ratelimit.FailClosed)) {
		require.Equal(t, ratelimit.SourcePostgres, d.outcome.Source)
		admitted += d.outcome.Admitted
	}
	require.EqualValues(t, 25, admitted)
	require.NoError(t, redis.Start())
	settles(t, f, ratelimit.SourceRedis)
}
