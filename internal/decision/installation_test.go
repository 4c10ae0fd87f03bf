package decision_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// Guarantee: two installations on one Redis, or a new database on an old one, share no counter, although their tenants
// have the same ids and their callers the same addresses.
func TestInstallationsShareNoCounter(t *testing.T) {
	t.Parallel()
	first, second := newFixture(t, minute("m", 1)), newFixture(t, minute("m", 1))
	second.Engine = decision.New(decision.Config{Store: first.store, Directory: second.directory, Now: second.clock.now})
	for i, f := range []*fixture{first, second} {
		f.changes.Installation = string(rune('a' + i))
		f.policy(tenants.Rule{Limit: ratelimit.Limit{Name: "a", Scope: ratelimit.ScopeAddress, Algorithm: ratelimit.FixedWindow, Quota: 1, Window: ratelimit.MaxWindow}})
	}
	hit := func(f *fixture) decision.Verdict {
		d, err := f.Decide(t.Context(), decision.Hit{Tenant: f.tenant(t, "school-17"), Address: netip.MustParsePrefix("203.0.113.7/32"), Cost: 1})
		require.NoError(t, err)
		return d.Verdict
	}
	require.Equal(t, decision.Allow, hit(first))
	require.Equal(t, decision.Deny, hit(first))
	require.Equal(t, decision.Allow, hit(second))
	require.Equal(t, 4, first.store.Len())
}
