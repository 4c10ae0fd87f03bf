package pgstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/pgstore"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// BenchmarkDecide is calls by 64 callers on a pool of 16.
func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{1, 1000} {
		for _, batch := range []int{1, 16} {
			b.Run(fmt.Sprintf("keys=%d/batch=%d", n, batch), func(b *testing.B) {
				s := pgstore.New(newPool(b, testenv.Postgres(b), 16), pgstore.WithTimeout(patient))
				keys := make([]ratelimit.Counter, n)
				for i := range keys {
					keys[i] = counter(window(ratelimit.SlidingWindowLog, 1_000_000_000, time.Minute))
				}
				b.SetParallelism(32)
				b.ResetTimer()
				b.RunParallel(func(p *testing.PB) {
					charges := make([]ratelimit.Charge, batch)
					out := make([]ratelimit.Outcome, batch)
					i := 0
					for p.Next() {
						for j := range charges {
							i++
							charges[j] = take(1, 1, keys[(i*7919)%n])
						}
						if err := s.Decide(b.Context(), charges, out); err != nil {
							b.Error(err)
						}
					}
				})
				b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "charges/s")
			})
		}
	}
}
