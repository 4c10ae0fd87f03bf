package redisstore_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/redisstore"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// BenchmarkGrowth shows how the server's CPU for a decision that nothing merges grows with the number of tenants and with
// the quota. Two worlds have their turns, and "ratio" is the median of what the second cost beside the first. Every hit is
// allowed, and time goes on with each, so that as much expires as is added.
func BenchmarkGrowth(b *testing.B) {
	for _, bench := range []struct {
		name          string
		first, second world
	}{
		{"10 to 100,000 tenants", world{tenants: 10, quota: 100, live: 4}, world{tenants: 100_000, quota: 100, live: 4}},
		{"quota 100 to 20,000", world{tenants: 100, quota: 100, live: 50}, world{tenants: 100, quota: 20_000, live: 10_000}},
	} {
		for _, size := range []int{1, 32} {
			b.Run(fmt.Sprintf("%s/%d", bench.name, size), func(b *testing.B) { grow(b, size, bench.first, bench.second) })
		}
	}
}

func grow(b *testing.B, size int, first, second world) {
	b.Helper()
	const turn = 3200 // decisions
	first.open(b)
	second.open(b)
	var ratios []float64
	var cost [2]time.Duration
	for b.Loop() {
		one, two := first.turn(b, turn, size), second.turn(b, turn, size)
		cost[0] += one
		cost[1] += two
		ratios = append(ratios, float64(two)/float64(one))
	}
	slices.Sort(ratios)
	each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / turn / float64(b.N) }
	b.ReportMetric(each(cost[0]), "redis-µs/first")
	b.ReportMetric(each(cost[1]), "redis-µs/second")
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
}

// world is tenants on a server of their own, each with one sliding log of an hour.
type world struct {
	tenants, quota int64
	live           int64 // units in each log

	now     int64 // µs
	pause   int64 // between two hits, µs
	store   ratelimit.Store
	cpu     func() time.Duration
	charges []ratelimit.Charge
	next    int // tenant
}

func (w *world) open(b *testing.B) {
	b.Helper()
	const window, slots = time.Hour, 900
	server := testenv.RedisServer(b)
	client := raw(b, server.URL())
	w.cpu = func() time.Duration { return serverCPU(b, client) }
	w.now = 1_790_000_000_000_000
	w.store = newStore(b, redisstore.Config{URL: server.URL(), Timeout: time.Minute, TestClock: func() int64 { return w.now }})
	limit := slidingLog(w.quota, window)
	for range w.tenants {
		w.charges = append(w.charges, take(tenant(), 1, limit))
	}
	// An hour passes, in which every log gets its units.
	steps := min(w.live, slots)
	for i := range w.charges {
		w.charges[i].Hits = w.live / steps
	}
	w.pause = window.Microseconds() / (steps * w.tenants)
	w.decide(b, steps*w.tenants, 64)
	for i := range w.charges {
		w.charges[i].Hits = 1
	}
	w.pause = window.Microseconds() / (w.live * w.tenants)
}

// turn makes n decisions and says what they cost the server.
func (w *world) turn(b *testing.B, n int64, size int) time.Duration {
	b.Helper()
	before := w.cpu()
	w.decide(b, n, size)
	return w.cpu() - before
}

// decide makes n decisions, each of the next tenant, with so many charges a call.
func (w *world) decide(b *testing.B, n int64, size int) {
	b.Helper()
	call, out := make([]ratelimit.Charge, size), make([]ratelimit.Outcome, size)
	for done := int64(0); done < n; done += int64(size) {
		for i := range call {
			call[i] = w.charges[w.next]
			w.next = (w.next + 1) % len(w.charges)
		}
		require.NoError(b, w.store.Decide(context.Background(), call, out))
		for i := range call {
			require.NoError(b, out[i].Err)
			require.Equal(b, call[i].Hits, out[i].Admitted)
		}
		w.now += w.pause * int64(size)
	}
}
