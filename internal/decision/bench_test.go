package decision_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/usage"
)

// Everything a decision costs besides the store's round trip: identity, limits, the memory store, verdict, usage.
func BenchmarkDecide(b *testing.B) {
	for _, c := range []struct {
		name   string
		change func(f *fixture, h *decision.Hit)
	}{
		{"tenant", func(*fixture, *decision.Hit) {}},
		{"tenant-user-key", func(_ *fixture, h *decision.Hit) { h.User, h.Key = "u42", "k1" }},
		{"tenant-address", func(f *fixture, h *decision.Hit) {
			f.changes.AddressPolicy = &tenants.AddressPolicy{Limits: []tenants.Rule{scoped(minute("a", 1_000_000_000), ratelimit.ScopeAddress)}}
			f.apply()
			h.Address = prefix("203.0.113.7")
		}},
		{"denied", func(f *fixture, _ *decision.Hit) {
			f.changes.Overrides = []tenants.Override{{TenantID: 17, LimitName: "m", Quota: 0}}
			f.apply()
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			window := func(r tenants.Rule) tenants.Rule { r.Algorithm = ratelimit.FixedWindow; return r }
			f := newFixture(b, window(slowed(minute("m", 1_000_000_000))), window(scoped(minute("u", 1_000_000_000), ratelimit.ScopeUser)), window(scoped(minute("k", 1_000_000_000), ratelimit.ScopeKey)))
			f.Engine = decision.New(decision.Config{Store: f.store, Directory: f.directory, Recorder: usage.NewAggregator(0), Now: f.clock.now})
			hit := f.hit(b)
			c.change(f, &hit)
			hit.Tenant = f.tenant(b, "school-17")
			b.ReportAllocs()
			b.ResetTimer()
			for b.Loop() {
				if _, err := f.Decide(context.Background(), hit); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkIdentify(b *testing.B) {
	f := newFixture(b)
	h := header("Authorization", "Bearer "+f.apiKey(b, 17))
	b.ReportAllocs()
	for b.Loop() {
		caller := f.Identify(decision.ReadCredentials(h, false), prefix("203.0.113.7"))
		require.NotNil(b, caller.APIKey)
	}
}

func BenchmarkAnswer(b *testing.B) {
	f := newFixture(b, slowed(minute("m", 1_000_000_000)))
	d := f.decide(b, f.hit(b))
	b.ReportAllocs()
	for b.Loop() {
		h := headersOf(d)
		if len(h) == 0 {
			b.Fatal("no headers")
		}
	}
}

func BenchmarkBody(b *testing.B) {
	f := newFixture(b, slowed(minute("m", 1)))
	f.decide(b, f.hit(b))
	d := f.decide(b, f.hit(b))
	for name, build := range map[string]func() any{
		"allowed": func() any { return decision.Body(d) },
		"denied":  func() any { return decision.Denied(d, "0192a5c1") },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := json.Marshal(build()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
