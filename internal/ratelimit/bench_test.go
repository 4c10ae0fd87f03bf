package ratelimit_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// BenchmarkMemory is a whole decision in this process, clock included: what `local` limits cost.
func BenchmarkMemory(b *testing.B) {
	for _, a := range []ratelimit.Algorithm{
		ratelimit.TokenBucket, ratelimit.LeakyBucket, ratelimit.FixedWindow, ratelimit.SlidingWindowCounter, ratelimit.SlidingWindowLog,
	} {
		for _, quota := range []int64{1000, 1_000_000_000} {
			name := fmt.Sprintf("%s/%s", a, map[bool]string{true: "denied", false: "allowed"}[quota == 1000])
			b.Run(name, func(b *testing.B) {
				m := ratelimit.NewMemory(ratelimit.MonotonicMicros(time.Now), 0)
				l := perMinute("a", quota, ratelimit.FailLocal)
				l.Algorithm = a
				if a.Bucket() {
					l.Window, l.Refill = 0, ratelimit.Rate{Units: 1, Every: time.Minute}
				}
				charges, out := hit(l), make([]ratelimit.Outcome, 1)
				b.ReportAllocs()
				for b.Loop() {
					if err := m.Decide(context.Background(), charges, out); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkMemoryParallel spreads over 1,000 subjects, as one tenant's traffic never is but a platform's is.
func BenchmarkMemoryParallel(b *testing.B) {
	m := ratelimit.NewMemory(ratelimit.MonotonicMicros(time.Now), 0)
	l := perMinute("a", 1_000_000_000, ratelimit.FailLocal)
	l.Algorithm = ratelimit.TokenBucket
	l.Refill = ratelimit.Rate{Units: 1, Every: time.Second}
	all := make([][]ratelimit.Charge, 1000)
	for i := range all {
		all[i] = chargeOf(fmt.Sprint(i), l)
	}
	var next atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		i := next.Add(7919)
		out := make([]ratelimit.Outcome, 1)
		for pb.Next() {
			i++
			if err := m.Decide(context.Background(), all[i%1000], out); err != nil {
				b.Error(err)
			}
		}
	})
}

// BenchmarkFailover is what the guard, its deadline and its breaker add to a store call.
func BenchmarkFailover(b *testing.B) {
	m := ratelimit.NewMemory(ratelimit.MonotonicMicros(time.Now), 0)
	f := ratelimit.NewFailover(ratelimit.FailoverConfig{
		Stores: []*ratelimit.Guard{guard(m, 10*time.Second)}, Local: m, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	charges := hit(perMinute("a", 1_000_000_000, ratelimit.FailLocal))
	b.ReportAllocs()
	b.SetParallelism(32) // as many callers as a busy replica has
	b.RunParallel(func(pb *testing.PB) {
		out := make([]ratelimit.Outcome, 1)
		for pb.Next() {
			if err := f.Decide(context.Background(), charges, out); err != nil {
				b.Error(err)
			}
		}
	})
	if err := f.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkCounterKey(b *testing.B) {
	l := perMinute("requests-per-minute", 2000, ratelimit.FailOpen)
	s := ratelimit.Subject{Group: "1234", Scope: ratelimit.ScopeUser, ID: "user-42"}
	b.ReportAllocs()
	for b.Loop() {
		_ = ratelimit.CounterKey(s, l)
	}
}
