package decision_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/usage"
)

// BenchmarkTenants is BenchmarkDecide with the tenants asked in turns: what many of them cost besides the store's round trip.
func BenchmarkTenants(b *testing.B) {
	for _, n := range []int{10, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			rule := minute("m", 1_000_000_000)
			rule.Algorithm = ratelimit.FixedWindow
			f := newFixture(b, slowed(rule))
			f.changes.Tenants = nil
			for i := range n {
				f.changes.Tenants = append(f.changes.Tenants, named(fmt.Sprintf("tenant-%d", i), int64(i+1), "light"))
			}
			f.apply()
			f.Engine = decision.New(decision.Config{Store: f.store, Directory: f.directory, Recorder: usage.NewAggregator(0), Now: f.clock.now})
			hits := make([]decision.Hit, n)
			for i := range hits {
				hits[i] = decision.Hit{Tenant: f.tenant(b, fmt.Sprintf("tenant-%d", i)), Cost: 1}
			}
			ask := func(i int) {
				if _, err := f.Decide(context.Background(), hits[i%n]); err != nil {
					b.Fatal(err)
				}
			}
			for i := range n { // a tenant's first decision makes its numbers
				ask(i)
			}
			for i := 0; b.Loop(); i += 7919 { // far apart
				ask(i)
			}
		})
	}
}
