package redisstore_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/redisstore"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// A quota of a million a day with half of it used costs no more than a small one: 99 of 100 scripts take at most 5 ms as
// the server sees it, whatever they are asked. The best of a few rounds counts, because other processes take the CPU away.
func TestAMillionADay(t *testing.T) {
	t.Parallel()
	const used = 500_000
	server := testenv.RedisServer(t)
	limit, group := slidingLog(1_000_000, 24*time.Hour), tenant()
	halfUsed(t, server.URL(), limit, group, used)

	store, client := patient(t, server.URL()), raw(t, server.URL())
	best := 1e9
	for range 5 {
		require.NoError(t, client.ConfigResetStat(t.Context()).Err())
		for i := range 1000 {
			charge := take(group, 1+rand.Int64N(3), limit)
			switch i % 5 {
			case 1:
				charge.Kind, charge.Cost = ratelimit.Refund, 2
			case 2:
				charge.Kind = ratelimit.Peek
			case 3:
				charge.Cost = 600_000 // it has to search for when so much is free
			}
			out := decide(t, store, charge)[0]
			if charge.Kind == ratelimit.Take {
				require.Equal(t, charge.Cost == 1, out.Admitted > 0)
			}
			require.InDelta(t, used, out.Counters[0].Used, 20_000)
		}
		best = min(best, scriptMicros(t, client, "p99"))
		t.Logf("p99 %.0f µs", scriptMicros(t, client, "p99"))
		if best <= 5_000 {
			return
		}
	}
	require.LessOrEqual(t, best, 5_000.0)
}

// halfUsed uses so many units, spread over the last half of the window that ends now by the server's clock.
func halfUsed(t *testing.T, url string, limit *ratelimit.Limit, group string, units int64) {
	t.Helper()
	const steps = 1000
	server, err := raw(t, url).Time(t.Context()).Result()
	require.NoError(t, err)
	now := server.Add(-limit.Window / 2).UnixMicro()
	past := newStore(t, redisstore.Config{URL: url, Timeout: 10 * time.Second, TestClock: func() int64 { return now }})
	for range steps {
		require.Equal(t, units/steps, decide(t, past, take(group, units/steps, limit))[0].Admitted)
		now += limit.Window.Microseconds() / 2 / steps
	}
}

// B035: half a million expired entries neither block the server nor count.
func TestALargeTrimIsDoneInSteps(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	store, client, ctx := patient(t, server.URL()), raw(t, server.URL()), t.Context()
	limit, group := slidingLog(1_000_000, time.Hour), tenant()
	key := string(countersOf(group, limit)[0].Key)
	now, err := client.Time(ctx).Result()
	require.NoError(t, err)
	const planted = 500_000
	pipeline := client.Pipeline()
	for i := range planted {
		// The last thousand are live.
		at := now.Add(-90*time.Minute).UnixMicro() + int64(i)
		if i >= planted-1000 {
			at = now.Add(-30*time.Minute).UnixMicro() + int64(i)
		}
		pipeline.ZAdd(ctx, key, redis.Z{Score: float64(at), Member: entry(float64(at), float64(i+1), 1)})
		if pipeline.Len() == 10_000 {
			_, err := pipeline.Exec(ctx)
			require.NoError(t, err)
		}
	}
	require.NoError(t, client.ConfigResetStat(ctx).Err())
	out := decide(t, store, take(group, 1, limit))
	require.EqualValues(t, 1001, out[0].Counters[0].Used, "expired entries do not count while they are there")
	left := int64(planted)
	for i := range 200 {
		decide(t, store, take(group, 1, limit))
		n, err := client.ZCard(ctx, key).Result()
		require.NoError(t, err)
		require.Less(t, n, left, "every call trims, call %d", i)
		left = n
	}
	require.Less(t, scriptMicros(t, client, "p99.9"), 50_000.0)
}

// entry is a log's entry as charge.lua writes it: score, cum and weight.
func entry(score, cum, weight float64) []byte {
	var member []byte
	for _, x := range []float64{score, cum, weight} {
		member = binary.LittleEndian.AppendUint64(member, math.Float64bits(x))
	}
	return member
}

// scriptMicros is a percentile ("p99") of EVALSHA's latency as the server sees it.
func scriptMicros(t *testing.T, client *redis.Client, percentile string) float64 {
	t.Helper()
	info, err := client.Info(t.Context(), "latencystats").Result()
	require.NoError(t, err)
	m := regexp.MustCompile(`latency_percentiles_usec_evalsha:.*\b` + regexp.QuoteMeta(percentile) + `=([0-9.]+)`).FindStringSubmatch(info)
	require.Len(t, m, 2)
	var us float64
	_, err = fmt.Sscan(m[1], &us)
	require.NoError(t, err)
	return us
}
