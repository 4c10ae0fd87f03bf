package tenants_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pegel-dev/pegel/internal/tenants"
)

func networkList(entries ...string) *tenants.Snapshot {
	var c tenants.Changes
	for i, e := range entries {
		n := tenants.Network{ID: int64(i + 1), CIDR: netip.MustParsePrefix(e[1:]), Action: tenants.Deny}
		if e[0] == '+' {
			n.Action = tenants.Allow
		}
		c.Networks = append(c.Networks, n)
	}
	return tenants.NewSnapshot(c, noon)
}

func TestDeniedRangesHaveTheAllowedOnesSubtracted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		entries []string
		want    string
	}{
		{nil, "[]"},
		{[]string{"+10.0.0.0/8"}, "[]"},
		{[]string{"-203.0.113.0/24"}, "[203.0.113.0/24]"},
		{[]string{"-203.0.113.0/24", "+203.0.113.0/24"}, "[203.0.113.0/24]"},
		{[]string{"-203.0.113.0/24", "+203.0.113.128/25"}, "[203.0.113.0/25]"},
		{[]string{"-203.0.113.0/30", "+203.0.113.2/32"}, "[203.0.113.0/31 203.0.113.3/32]"},
		{[]string{"-203.0.113.0/24", "+203.0.113.128/25", "-203.0.113.200/32"}, "[203.0.113.0/25 203.0.113.200/32]"},
		{[]string{"-10.0.0.0/8", "-10.1.0.0/16"}, "[10.0.0.0/8]"},
		{[]string{"-0.0.0.0/0", "+128.0.0.0/1"}, "[0.0.0.0/1]"},
		{[]string{"-2001:db8::/32", "+2001:db8:8000::/33"}, "[2001:db8::/33]"},
	} {
		require.Equal(t, c.want, fmt.Sprint(networkList(c.entries...).DeniedRanges(noon)), c.entries)
	}
}

func TestLiveNetworksEndAndAreNarrowestFirst(t *testing.T) {
	t.Parallel()
	s := tenants.NewSnapshot(tenants.Changes{Networks: []tenants.Network{
		{ID: 1, CIDR: netip.MustParsePrefix("203.0.113.0/24"), Action: tenants.Deny, ExpiresAt: noon.Add(time.Minute)},
		{ID: 2, CIDR: netip.MustParsePrefix("203.0.113.7/32"), Action: tenants.Allow},
	}}, noon)
	ids := func(now time.Time) []int64 {
		var ids []int64
		for _, n := range s.LiveNetworks(now) {
			ids = append(ids, n.ID)
		}
		return ids
	}
	require.Equal(t, []int64{2, 1}, ids(noon))
	require.Equal(t, []int64{2}, ids(noon.Add(time.Minute)))
	require.Empty(t, s.DeniedRanges(noon.Add(time.Minute)))
}

// TestEveryListSaysTheSame: the decision, the ranges and the ordered list agree about every address.
func TestEveryListSaysTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		entries := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) string {
			addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(0, 31).Draw(rt, "last"))})
			p, _ := addr.Prefix(rapid.IntRange(26, 32).Draw(rt, "bits"))
			return rapid.SampledFrom([]string{"+", "-"}).Draw(rt, "action") + p.String()
		}), 0, 12).Draw(rt, "entries")
		s := networkList(entries...)
		ranges, live := s.DeniedRanges(noon), s.LiveNetworks(noon)
		for last := range 64 {
			addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(last)})
			denied := s.NetworkDenied(addr, noon)
			require.Equal(rt, denied, slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(addr) }), addr)
			first := slices.IndexFunc(live, func(n tenants.Network) bool { return n.CIDR.Contains(addr) })
			require.Equal(rt, denied, first >= 0 && live[first].Action == tenants.Deny, addr)
		}
	})
}
