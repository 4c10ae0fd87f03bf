package ratelimit_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/pgstore"
	"github.com/pegel-dev/pegel/internal/ratelimit/redisstore"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// BenchmarkDecorators puts the decorators together in several ways over real servers and has 64 callers ask. Beside the
// wall time, which other processes move, it says what a decision costs this process and Redis in CPU time, and how many hits
// a call of the store settled.
func BenchmarkDecorators(b *testing.B) {
	server := testenv.RedisServer(b)
	info := redis.NewClient(&redis.Options{Addr: server.Addr()})
	b.Cleanup(func() { _ = info.Close() })
	onRedis, err := redisstore.New(redisstore.Config{URL: server.URL(), Timeout: 5 * time.Second, Now: time.Now}, slog.New(slog.DiscardHandler))
	require.NoError(b, err)
	b.Cleanup(func() { _ = onRedis.Close() })
	cfg, err := pgstore.PoolConfig(testenv.Postgres(b), 16, 5*time.Second)
	require.NoError(b, err)
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(b, err)
	b.Cleanup(pool.Close)

	for name, store := range map[string]ratelimit.Store{"redis": onRedis, "postgres": pgstore.New(pool, pgstore.WithTimeout(5*time.Second))} {
		for _, keys := range []int{1000, 1} {
			for _, quota := range []int64{1_000_000_000, 0} {
				for _, flights := range []int{0, 1, 2, 4, 8} {
					what := map[bool]string{true: "denied", false: "allowed"}[quota == 0]
					b.Run(fmt.Sprintf("%s/keys=%d/%s/flights=%d", name, keys, what, flights), func(b *testing.B) {
						calls := &counting{Store: store}
						s := ratelimit.Store(ratelimit.NewFailover(ratelimit.FailoverConfig{
							Stores: []*ratelimit.Guard{guard(calls, 10*time.Second)}, Now: time.Now, Log: slog.New(slog.DiscardHandler),
							Local: ratelimit.NewMemory(ratelimit.MonotonicMicros(time.Now), 0),
						}))
						if flights > 0 {
							batcher := ratelimit.NewBatcher(s, ratelimit.BatcherConfig{Flights: flights})
							b.Cleanup(batcher.Close)
							s = batcher
						}
						crowd(b, ratelimit.NewDenyCache(s, time.Now, 0), calls, info, keys, quota)
					})
				}
			}
		}
	}
}

// counting counts the calls of a store.
type counting struct {
	ratelimit.Store

	calls atomic.Int64
}

func (c *counting) Decide(ctx context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
	c.calls.Add(1)
	return c.Store.Decide(ctx, charges, out)
}

// crowd has 64 callers make b.N decisions.
func crowd(b *testing.B, s ratelimit.Store, calls *counting, info *redis.Client, keys int, quota int64) {
	b.Helper()
	const callers = 64
	limit := perMinute("bench", quota, ratelimit.FailOpen)
	counters := make([][]ratelimit.Counter, keys)
	for i := range counters {
		key := ratelimit.CounterKey(ratelimit.Subject{Group: b.Name() + strconv.Itoa(i), Scope: limit.Scope}, limit)
		counters[i] = []ratelimit.Counter{{Key: key, Limit: limit}}
	}
	b.ReportAllocs()
	server, own := redisCPU(b, info), processCPU()
	b.ResetTimer()
	var wg sync.WaitGroup
	for n := range callers {
		wg.Go(func() {
			charges, out := make([]ratelimit.Charge, 1), make([]ratelimit.Outcome, 1)
			for i := n; i < b.N; i += callers {
				charges[0] = ratelimit.Charge{Kind: ratelimit.Take, Hits: 1, Cost: 1, Counters: counters[i*31%keys]}
				out[0] = ratelimit.Outcome{}
				if err := s.Decide(context.Background(), charges, out); err != nil || out[0].Err != nil || (out[0].Admitted == 1) != (quota > 0) {
					b.Error(err, out[0])
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	n := float64(b.N)
	b.ReportMetric(float64((processCPU()-own).Nanoseconds())/1000/n, "own-µs/op")
	b.ReportMetric(float64((redisCPU(b, info)-server).Nanoseconds())/1000/n, "redis-µs/op")
	b.ReportMetric(n/float64(max(1, calls.calls.Load())), "hits/call")
}

// processCPU is how much CPU time this process has used.
func processCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// redisCPU is how much the server's main thread has used.
func redisCPU(b *testing.B, client *redis.Client) time.Duration {
	b.Helper()
	text, err := client.Info(context.Background(), "cpu").Result()
	require.NoError(b, err)
	var sum float64
	for scanner := bufio.NewScanner(strings.NewReader(text)); scanner.Scan(); {
		name, value, _ := strings.Cut(scanner.Text(), ":")
		if name == "used_cpu_user_main_thread" || name == "used_cpu_sys_main_thread" {
			seconds, err := strconv.ParseFloat(value, 64)
			require.NoError(b, err)
			sum += seconds
		}
	}
	return time.Duration(sum * float64(time.Second))
}
