package redisstore_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// BenchmarkDecide measures one charge, alone in its EVALSHA and as one of 32: wall time here, and with "redis-µs/op" what
// the server's main thread spends on it, sockets included. Other processes move the wall time; the latter holds.
func BenchmarkDecide(b *testing.B) {
	server := testenv.RedisServer(b)
	store, client := patient(b, server.URL()), raw(b, server.URL())
	limits := oneOfEach(1_000_000, time.Minute)
	exact := slidingLog(1000, time.Minute)
	full := slidingLog(1, time.Hour)
	for _, bench := range []struct {
		name   string
		limits []*ratelimit.Limit
		hits   int64
		groups int
	}{
		{"log/allowed", []*ratelimit.Limit{exact}, 1, 20_000},
		{"log/denied", []*ratelimit.Limit{full}, 1, 1},
		{"log/large quota, one hot counter", limits[:1], 1, 1},
		{"log/large quota, 16 hits merged", limits[:1], 16, 1},
		{"counter/allowed", limits[1:2], 1, 5_000},
		{"fixed/allowed", limits[2:3], 1, 5_000},
		{"bucket/allowed", limits[3:4], 1, 5_000},
		{"three limits/allowed", []*ratelimit.Limit{exact, limits[0], limits[3]}, 1, 5_000},
	} {
		charges := make([]ratelimit.Charge, bench.groups)
		for i := range charges {
			charges[i] = take(tenant(), bench.hits, bench.limits...)
		}
		for _, size := range []int{1, 32} {
			b.Run(fmt.Sprintf("%s/%d", bench.name, size), func(b *testing.B) {
				run(b, store, client, charges, size)
			})
		}
	}
}

func run(b *testing.B, store ratelimit.Store, client *redis.Client, charges []ratelimit.Charge, size int) {
	b.Helper()
	ctx := context.Background()
	batch, out := make([]ratelimit.Charge, size), make([]ratelimit.Outcome, size)
	before := serverCPU(b, client)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if n%size == 0 {
			for i := range batch {
				batch[i] = charges[rand.IntN(len(charges))]
			}
			require.NoError(b, store.Decide(ctx, batch, out))
		}
		n++
	}
	b.ReportMetric(float64((serverCPU(b, client)-before).Nanoseconds())/1000/float64(n), "redis-µs/op")
}

// serverCPU is how much CPU time the server's main thread has used.
func serverCPU(b *testing.B, client *redis.Client) time.Duration {
	b.Helper()
	info, err := client.Info(context.Background(), "cpu").Result()
	require.NoError(b, err)
	var sum float64
	for scanner := bufio.NewScanner(strings.NewReader(info)); scanner.Scan(); {
		name, value, _ := strings.Cut(scanner.Text(), ":")
		if name == "used_cpu_user_main_thread" || name == "used_cpu_sys_main_thread" {
			seconds, err := strconv.ParseFloat(value, 64)
			require.NoError(b, err)
			sum += seconds
		}
	}
	return time.Duration(sum * float64(time.Second))
}
