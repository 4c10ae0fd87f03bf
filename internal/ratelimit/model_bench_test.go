package ratelimit

import (
	"testing"
	"time"
)

// BenchmarkModel is the maths alone: look, take, report.
func BenchmarkModel(b *testing.B) {
	for _, a := range []Algorithm{TokenBucket, LeakyBucket, FixedWindow, SlidingWindowCounter, SlidingWindowLog} {
		b.Run(string(a), func(b *testing.B) {
			l := &Limit{Algorithm: a, Quota: 2_000_000, Window: time.Minute, Refill: Rate{Units: 1, Every: time.Microsecond}}
			c, now := newCell(a), int64(1_790_000_000_000_000)
			var out CounterState
			b.ReportAllocs()
			for b.Loop() {
				now += 30
				if c.look(l, now, 1).fit > 0 {
					c.take(l, now, 1)
				}
				c.report(l, now, 1, &out)
			}
		})
	}
}
