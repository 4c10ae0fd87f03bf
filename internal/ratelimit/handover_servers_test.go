package ratelimit_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/devmode"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/pgstore"
	"github.com/pegel-dev/pegel/internal/ratelimit/redisstore"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// fleet is replicas that share a Redis and a Postgres, each with its failover and a loop that mirrors and probes as app's does.
type fleet struct {
	*testing.T
	redis    *devmode.Redis
	database string
	replicas []*ratelimit.Failover
	stores   []*redisstore.Store
	lines    *logs
}

// patientBudget keeps a busy machine from looking like a fault: what is tested here is what is counted.
const patientBudget = 3 * time.Second

func newFleet(t *testing.T, n int, redisArgs ...string) *fleet {
	t.Helper()
	f := &fleet{T: t, redis: testenv.RedisServer(t, redisArgs...), database: testenv.Postgres(t), lines: &logs{}}
	for range n {
		f.start()
	}
	for _, r := range f.replicas {
		settles(t, r, ratelimit.SourceRedis)
	}
	return f
}

func (f *fleet) start() {
	log := f.lines.logger()
	store, err := redisstore.New(redisstore.Config{URL: f.redis.URL(), Timeout: patientBudget, Now: time.Now}, log)
	require.NoError(f, err)
	cfg, err := pgstore.PoolConfig(f.database, 8, patientBudget)
	require.NoError(f, err)
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(f, err)
	postgres := pgstore.New(pool, pgstore.WithTimeout(patientBudget))
	r := ratelimit.NewFailover(ratelimit.FailoverConfig{
		Stores: []*ratelimit.Guard{
			guard(store, patientBudget, func(c *ratelimit.GuardConfig) { c.Log = log }),
			guard(postgres, patientBudget, func(c *ratelimit.GuardConfig) { c.Log = log }),
		},
		Mirror: postgres, Lives: store.Lives,
		Local: ratelimit.NewMemory(ratelimit.MonotonicMicros(time.Now), 0), Now: time.Now, Log: log,
	})
	f.replicas, f.stores = append(f.replicas, r), append(f.stores, store)
	ctx, stop := context.WithCancel(context.Background())
	var loop sync.WaitGroup
	loop.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_ = r.Mirror(ctx)
				_ = store.Ping(ctx)
			}
		}
	})
	f.Cleanup(func() {
		stop()
		loop.Wait()
		require.NoError(f, r.Close(context.Background()))
		require.NoError(f, store.Close())
		pool.Close()
	})
}

func (f *fleet) budget(quota int64, window time.Duration) *ratelimit.Limit {
	l := perMinute("budget-"+strconv.FormatInt(time.Now().UnixNano(), 36), quota, ratelimit.FailClosed)
	l.Window = window
	return l
}

// take makes n hits, spread over the replicas, and says how many were admitted, and by whom.
func (f *fleet) take(n int, l *ratelimit.Limit) map[ratelimit.Source]int {
	f.Helper()
	admitted := map[ratelimit.Source]int{}
	for i := range n {
		out, err := decide(f, f.replicas[i%len(f.replicas)], hit(l))
		require.NoError(f, err)
		require.NoError(f, out.Err, "no error ever reaches a caller")
		admitted[out.Source] += int(out.Admitted)
	}
	return admitted
}

// mirrored waits until no replica has anything left to tell Postgres.
func (f *fleet) mirrored() {
	f.Helper()
	for _, r := range f.replicas {
		require.Eventually(f, func() bool { return r.Health().Handover.Pending == 0 }, 20*time.Second, 20*time.Millisecond)
	}
}

func (f *fleet) rawRedis() *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: f.redis.Addr()})
	f.Cleanup(func() { require.NoError(f, client.Close()) })
	return client
}

// pinged reports whether the counter by which a flush is noticed has come so far that it must be.
func (f *fleet) pinged() bool {
	for _, s := range f.stores {
		if s.Ping(f.Context()) != nil {
			return false
		}
	}
	value, err := f.rawRedis().Get(f.Context(), "pegel:{probe}:probe").Result()
	return err == nil && len(value) > 0 && !strings.HasSuffix(value, ":1") && !strings.HasSuffix(value, ":2")
}

// lives is how many servers, or emptied ones, the replicas have met in all.
func (f *fleet) lives() (n uint64) {
	for _, s := range f.stores {
		count, _ := s.Lives()
		n += count
	}
	return n
}

func (f *fleet) come(source ratelimit.Source) {
	f.Helper()
	for _, r := range f.replicas {
		settles(f.T, r, source)
	}
}

// Guarantee: what Redis has admitted counts in Postgres, and what Postgres admits counts on Redis when that returns, with its
// data or without.
func TestUsageIsHandedOver(t *testing.T) {
	for name, args := range map[string][]string{
		"Redis loses its data": nil,
		"Redis keeps its data": {"--appendonly", "yes", "--appendfsync", "always"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 3, args...)
			l := f.budget(100, 5*time.Minute)
			require.Equal(t, map[ratelimit.Source]int{ratelimit.SourceRedis: 60}, f.take(60, l))
			f.mirrored()

			require.NoError(t, f.redis.Kill())
			fallen := f.take(120, l)
			require.Zero(t, fallen[ratelimit.SourceRedis])
			require.InDelta(t, 40, fallen[ratelimit.SourcePostgres], 5, "more from Postgres")

			require.NoError(t, f.redis.Start())
			f.come(ratelimit.SourceRedis)
			back := f.take(60, l)
			require.LessOrEqual(t, back[ratelimit.SourceRedis]+back[ratelimit.SourcePostgres], 5, "more from Redis")
		})
	}
}

// Guarantee: windows of an hour and more survive the loss of everything in Redis, also when nobody saw Redis down, within what
// was not mirrored yet; and what a replica that starts afterwards is told is no less.
func TestALossNobodySawIsToppedUp(t *testing.T) {
	for name, lose := range map[string]func(f *fleet) error{
		"restarted empty": func(f *fleet) error { require.NoError(f, f.redis.Kill()); return f.redis.Start() },
		"flushed":         func(f *fleet) error { return f.rawRedis().FlushAll(f.Context()).Err() },
		"with the replicas": func(f *fleet) error {
			require.NoError(f, f.redis.Kill())
			require.NoError(f, f.redis.Start())
			f.replicas = nil // these go on, but nobody asks them
			f.start()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 2)
			var limits []*ratelimit.Limit
			for _, a := range []ratelimit.Algorithm{ratelimit.SlidingWindowLog, ratelimit.SlidingWindowCounter, ratelimit.FixedWindow} {
				l := f.budget(100, 24*time.Hour)
				l.Algorithm = a
				limits = append(limits, l)
			}
			bucket := f.budget(100, 0)
			bucket.Algorithm, bucket.Refill = ratelimit.TokenBucket, ratelimit.Rate{Units: 1, Every: time.Hour}
			limits = append(limits, bucket)
			for _, l := range limits {
				require.Equal(t, 90, f.take(90, l)[ratelimit.SourceRedis])
			}
			f.mirrored()
			require.Eventually(t, func() bool { return f.pinged() }, 10*time.Second, 20*time.Millisecond)
			before := f.lives()

			require.NoError(t, lose(f))
			f.come(ratelimit.SourceRedis)
			if name == "flushed" {
				require.Eventually(t, func() bool { return f.lives() > before }, 10*time.Second, 20*time.Millisecond, "a ping notices")
			}
			for _, l := range limits {
				more := f.take(100, l)
				require.InDelta(t, 10, more[ratelimit.SourceRedis]+more[ratelimit.SourcePostgres], 2, "%s", l)
			}
		})
	}
}

// Guarantee: however often Redis comes and goes, with nothing in it each time, a budget is exceeded by no more than what is in
// flight and unmirrored at each switch; callers see no error, and each transition is one line.
func TestRedisComesAndGoes(t *testing.T) {
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	comesAndGoes(t, 12_000, func(f *fleet, decided func(int64)) int {
		for range rounds {
			decided(1000)
			require.NoError(t, f.redis.Kill())
			f.come(ratelimit.SourcePostgres)
			decided(1000)
			require.NoError(t, f.redis.Start())
			f.come(ratelimit.SourceRedis)
		}
		return rounds
	})
}

// The same with Redis gone and back every 3 s for two minutes, whoever decides by then.
func TestSoakRedisToggled(t *testing.T) {
	rounds := int(min(testenv.Soak(t), 2*time.Minute) / (6 * time.Second))
	comesAndGoes(t, 250_000, func(f *fleet, _ func(int64)) int {
		for range rounds {
			require.NoError(t, f.redis.Kill())
			time.Sleep(3 * time.Second)
			require.NoError(t, f.redis.Start())
			time.Sleep(3 * time.Second)
		}
		f.come(ratelimit.SourceRedis)
		return rounds
	})
}

// comesAndGoes lets three replicas decide 500 times a second each while play takes Redis away and brings it back, so many times;
// decided waits for so many more decisions. No caller sees an error, and what is admitted in all stays within the bound.
func comesAndGoes(t *testing.T, budget int64, play func(f *fleet, decided func(int64)) int) {
	t.Helper()
	f := newFleet(t, 3)
	l := f.budget(budget, time.Hour)
	var decided, admitted atomic.Int64
	stop := make(chan struct{})
	var load sync.WaitGroup
	for _, r := range f.replicas {
		load.Go(func() {
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				out := make([]ratelimit.Outcome, 1)
				if err := r.Decide(context.Background(), hit(l), out); err != nil || out[0].Err != nil {
					t.Errorf("an error reached a caller: %v, %v", err, out[0].Err)
					return
				}
				decided.Add(1)
				admitted.Add(out[0].Admitted)
			}
		})
	}
	more := func(n int64) {
		least := decided.Load() + n
		require.Eventually(t, func() bool { return decided.Load() >= least }, time.Minute, 10*time.Millisecond)
	}
	rounds := play(f, more)
	require.Less(t, admitted.Load(), l.Quota, "there was something to lose all along")
	for full := false; !full; {
		before := admitted.Load()
		more(300)
		full = admitted.Load() == before
	}
	close(stop)
	load.Wait()
	t.Logf("%d of %d admitted", admitted.Load(), l.Quota)
	// What is unmirrored at a switch is a second's hits of the other two replicas: 500 a second at most.
	require.LessOrEqual(t, admitted.Load(), l.Quota+int64(rounds)*2*500)
	require.LessOrEqual(t, f.lines.lines("no longer asked"), 3*rounds)
	require.LessOrEqual(t, f.lines.lines("decides again"), 3*rounds)
}
