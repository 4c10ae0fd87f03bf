package tenants_test

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

func limits(quota int64) []tenants.Rule {
	p := tenants.Plan{Limits: []tenants.Rule{{Limit: ratelimit.Limit{Name: "rpm", Quota: quota, Window: time.Minute}}, {Limit: ratelimit.Limit{Name: "daily", Quota: 10 * quota, Window: 24 * time.Hour}}}}
	p.SetDefaults()
	return p.Limits
}

func two() tenants.Changes {
	return tenants.Changes{
		Version: 5, Full: true,
		Plans:   []tenants.Plan{{ID: 1, Name: "light", Limits: limits(10)}, {ID: 2, Name: "pro", Limits: limits(20)}},
		Tenants: []tenants.Tenant{{ID: 1, Slug: "a", Plan: "light"}, {ID: 2, Slug: "b", Plan: "pro"}},
		APIKeys: []tenants.APIKey{{ID: "ka", TenantID: 1}, {ID: "kb", TenantID: 2}},
	}
}

func quotas(t *testing.T, s *tenants.Snapshot, slug string, at time.Time) []int64 {
	t.Helper()
	v, ok := s.Tenant(slug)
	require.True(t, ok, slug)
	out := make([]int64, len(v.Limits))
	for i := range v.Limits {
		out[i] = v.Limits[i].LimitAt(at).Quota
	}
	return out
}

func TestEmptyDirectory(t *testing.T) {
	t.Parallel()
	s := tenants.NewDirectory(0).Snapshot()
	require.Zero(t, s.Version)
	_, ok := s.Tenant("a")
	require.False(t, ok)
	_, ok = s.APIKey("k")
	require.False(t, ok)
	_, ok = s.Plan("light")
	require.False(t, ok)
	require.Zero(t, s.TenantCount())
	require.False(t, s.NetworkDenied(netip.MustParseAddr("10.0.0.1"), noon))
	require.False(t, s.TokensTrusted(noon), "nobody is trusted before the first load")
}

func TestChangesActOnThoseTheyConcern(t *testing.T) {
	t.Parallel()
	d := tenants.NewDirectory(0)
	require.Empty(t, d.Apply(two(), noon))
	first := d.Snapshot()
	require.Equal(t, []int64{10, 100}, quotas(t, first, "a", noon))
	b, _ := first.Tenant("b")

	// A plan changes: its tenants see it, with their overrides.
	d.Apply(tenants.Changes{
		Version: 6, Plans: []tenants.Plan{{ID: 1, Name: "light", Limits: limits(11)}},
		Overrides: []tenants.Override{{TenantID: 1, LimitName: "daily", Quota: 7, ExpiresAt: noon.Add(time.Hour)}, {TenantID: 2, LimitName: "no such", Quota: 1}},
	}, noon.Add(time.Second))
	s := d.Snapshot()
	require.EqualValues(t, 6, s.Version)
	require.Equal(t, noon.Add(time.Second), s.ConfirmedAt)
	require.Equal(t, []int64{11, 7}, quotas(t, s, "a", noon))
	require.Equal(t, []int64{11, 110}, quotas(t, s, "a", noon.Add(time.Hour)), "exactly at its expiry an override is over")
	require.Equal(t, []int64{20, 200}, quotas(t, s, "b", noon))
	require.Equal(t, []int64{10, 100}, quotas(t, first, "a", noon), "a published snapshot never changes")

	// A tenant moves and is reset; its override waits for the limit of its name.
	d.Apply(tenants.Changes{Version: 7, Tenants: []tenants.Tenant{{ID: 1, Slug: "a", Plan: "pro", Generation: 3}}}, noon)
	s = d.Snapshot()
	require.Equal(t, []int64{20, 7}, quotas(t, s, "a", noon))
	a, _ := s.TenantByID(1)
	require.EqualValues(t, 3, a.Generation)
	require.Equal(t, "pro", a.Plan.Name)

	// Deleted: gone with its keys and overrides; the slug may come back with another id in the same round.
	d.Apply(tenants.Changes{
		Version: 8, DeletedTenants: []int64{1, 99}, DeletedOverrides: []tenants.Override{{TenantID: 1, LimitName: "daily"}},
		Tenants: []tenants.Tenant{{ID: 3, Slug: "a", Plan: "light"}},
	}, noon)
	s = d.Snapshot()
	require.Equal(t, []int64{11, 110}, quotas(t, s, "a", noon))
	_, ok := s.TenantByID(1)
	require.False(t, ok)
	_, ok = s.APIKey("ka")
	require.False(t, ok)
	_, ok = s.APIKey("kb")
	require.True(t, ok)
	require.Equal(t, 2, s.TenantCount())

	// A plan is replaced by another of its name; a deleted one leaves its tenants on the built-in limits, and says so.
	d.Apply(tenants.Changes{Version: 9, DeletedPlans: []int64{1}, Plans: []tenants.Plan{{ID: 9, Name: "light", Limits: limits(99)}}}, noon)
	require.Equal(t, []int64{99, 990}, quotas(t, d.Snapshot(), "a", noon))
	broken := d.Apply(tenants.Changes{Version: 10, DeletedPlans: []int64{9}}, noon)
	require.Len(t, broken, 1)
	require.Equal(t, "a", broken[0].ID)
	require.Equal(t, []int64{2000}, quotas(t, d.Snapshot(), "a", noon))
	require.Equal(t, []int64{20, 200}, quotas(t, d.Snapshot(), "b", noon), "others are untouched")
	_, ok = d.Snapshot().Plan("light")
	require.False(t, ok)

	after, _ := d.Snapshot().Tenant("b")
	require.Equal(t, b.Tenant, after.Tenant)

	// A full load replaces everything.
	d.Apply(tenants.Changes{Version: 11, Full: true}, noon)
	require.Zero(t, d.Snapshot().TenantCount())
	_, ok = d.Snapshot().APIKey("kb")
	require.False(t, ok)
}

func TestPolicyAndModeStayWhenNotNamed(t *testing.T) {
	t.Parallel()
	d := tenants.NewDirectory(0)
	shadow, policy := ratelimit.Shadow, tenants.DefaultAddressPolicy()
	d.Apply(tenants.Changes{Version: 1, Full: true, Mode: &shadow, AddressPolicy: &policy}, noon)
	d.Apply(tenants.Changes{Version: 2}, noon)
	require.Equal(t, ratelimit.Shadow, d.Snapshot().StoredMode)
	require.Len(t, d.Snapshot().AddressRules, 3)
	enforce := ratelimit.Enforce
	d.Apply(tenants.Changes{Version: 3, Mode: &enforce, AddressPolicy: &tenants.AddressPolicy{}}, noon)
	require.Equal(t, ratelimit.Enforce, d.Snapshot().StoredMode)
	require.Empty(t, d.Snapshot().AddressRules)
}

func TestConfirm(t *testing.T) {
	t.Parallel()
	d := tenants.NewDirectory(time.Minute)
	d.Apply(two(), noon)
	before := d.Snapshot()
	require.False(t, before.TokensTrusted(noon.Add(time.Minute)))
	d.Confirm(5, noon.Add(30*time.Second))
	require.True(t, d.Snapshot().TokensTrusted(noon.Add(time.Minute)))
	require.False(t, before.TokensTrusted(noon.Add(time.Minute)), "a published snapshot never changes")
	d.Confirm(4, noon.Add(time.Hour))
	require.Equal(t, noon.Add(30*time.Second), d.Snapshot().ConfirmedAt, "another version confirms nothing")
	_, ok := d.Snapshot().Tenant("a")
	require.True(t, ok)
}

func TestReadersNeverSeeAHalfChange(t *testing.T) {
	t.Parallel()
	d := tenants.NewDirectory(0)
	d.Apply(two(), noon)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				s := d.Snapshot()
				a, _ := s.Tenant("a")
				b, _ := s.Tenant("b")
				if a.Limits[0].LimitAt(noon).Quota != b.Limits[0].LimitAt(noon).Quota-10 {
					t.Error("two tenants of one snapshot disagree")
					return
				}
			}
		})
	}
	for n := range int64(2000) {
		d.Apply(tenants.Changes{Version: 6 + n, Plans: []tenants.Plan{{ID: 1, Name: "light", Limits: limits(n)}, {ID: 2, Name: "pro", Limits: limits(n + 10)}}}, noon)
	}
	close(stop)
	wg.Wait()
}

func network(id int64, cidr string, action tenants.NetworkAction, expires time.Time) tenants.Network {
	return tenants.Network{ID: id, CIDR: netip.MustParsePrefix(cidr), Action: action, ExpiresAt: expires}
}

func TestNetworkDenied(t *testing.T) {
	t.Parallel()
	soon := noon.Add(time.Hour)
	s := tenants.NewSnapshot(tenants.Changes{Version: 1, Networks: []tenants.Network{
		network(1, "10.0.0.0/8", tenants.Deny, time.Time{}),
		network(2, "10.1.0.0/16", tenants.Allow, time.Time{}),
		network(3, "10.1.2.0/24", tenants.Deny, soon),
		network(4, "192.0.2.0/24", tenants.Deny, time.Time{}),
		network(5, "192.0.2.0/24", tenants.Allow, time.Time{}),
		network(6, "198.51.100.0/24", tenants.Allow, time.Time{}),
		network(7, "2001:db8::/32", tenants.Deny, time.Time{}),
	}}, noon)
	for _, c := range []struct {
		addr string
		at   time.Time
		want bool
	}{
		{"10.0.0.1", noon, true},
		{"10.1.0.1", noon, false},
		{"10.1.2.3", noon, true},
		{"10.1.2.3", soon, false},
		{"11.0.0.1", noon, false},
		{"192.0.2.1", noon, true},
		{"198.51.100.1", noon, false},
		{"2001:db8::1", noon, true},
		{"2001:db8::1%eth0", noon, true},
		{"2001:db9::1", noon, false},
		{"::ffff:10.0.0.1", noon, true},
	} {
		require.Equal(t, c.want, s.NetworkDenied(netip.MustParseAddr(c.addr), c.at), "%s at %v", c.addr, c.at)
	}
	require.False(t, s.NetworkDenied(netip.Addr{}, noon))
}

// The table answers what looking at every entry would.
func TestNetworkDeniedAgainstTheRule(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var entries []tenants.Network
		seen := map[string]bool{}
		for i := range rapid.IntRange(0, 12).Draw(t, "entries") {
			addr := netip.AddrFrom4([4]byte{10, byte(rapid.IntRange(0, 1).Draw(t, "b")), byte(rapid.IntRange(0, 1).Draw(t, "c")), byte(rapid.IntRange(0, 3).Draw(t, "d"))})
			cidr := netip.PrefixFrom(addr, rapid.IntRange(6, 32).Draw(t, "bits")).Masked()
			action := rapid.SampledFrom([]tenants.NetworkAction{tenants.Deny, tenants.Allow}).Draw(t, "action")
			if seen[cidr.String()+string(action)] {
				continue
			}
			seen[cidr.String()+string(action)] = true
			expires := time.Time{}
			if rapid.Bool().Draw(t, "expired") {
				expires = noon
			}
			entries = append(entries, tenants.Network{ID: int64(i + 1), CIDR: cidr, Action: action, ExpiresAt: expires})
		}
		s := tenants.NewSnapshot(tenants.Changes{Version: 1, Networks: entries}, noon)
		addr := netip.AddrFrom4([4]byte{10, byte(rapid.IntRange(0, 1).Draw(t, "B")), byte(rapid.IntRange(0, 1).Draw(t, "C")), byte(rapid.IntRange(0, 3).Draw(t, "D"))})
		want, narrowest := false, -1
		for _, e := range entries {
			if !e.CIDR.Contains(addr) || !e.ExpiresAt.IsZero() || e.CIDR.Bits() < narrowest {
				continue
			}
			denied := e.Action == tenants.Deny
			if e.CIDR.Bits() > narrowest || denied {
				want = denied
			}
			narrowest = e.CIDR.Bits()
		}
		require.Equal(t, want, s.NetworkDenied(addr, noon), "%v in %v", addr, entries)
	})
}

func BenchmarkApplyOneTenant(b *testing.B) {
	for _, n := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			d := tenants.NewDirectory(0)
			c := tenants.Changes{Version: 1, Full: true, Plans: []tenants.Plan{{ID: 1, Name: "light", Limits: limits(10)}}}
			for i := range n {
				c.Tenants = append(c.Tenants, tenants.Tenant{ID: int64(i + 1), Slug: fmt.Sprintf("school-%d", i), Plan: "light"})
			}
			d.Apply(c, noon)
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; b.Loop(); i++ {
				d.Apply(tenants.Changes{Version: int64(i + 2), Tenants: []tenants.Tenant{{ID: int64(i%n + 1), Slug: fmt.Sprintf("school-%d", i%n), Plan: "light"}}}, noon)
			}
		})
	}
}

func BenchmarkApplyPlan(b *testing.B) {
	const n = 100_000
	d := tenants.NewDirectory(0)
	c := tenants.Changes{Version: 1, Full: true, Plans: []tenants.Plan{{ID: 1, Name: "light", Limits: limits(10)}}}
	for i := range n {
		c.Tenants = append(c.Tenants, tenants.Tenant{ID: int64(i + 1), Slug: fmt.Sprintf("school-%d", i), Plan: "light"})
	}
	d.Apply(c, noon)
	for i := 0; b.Loop(); i++ {
		d.Apply(tenants.Changes{Version: int64(i + 2), Plans: []tenants.Plan{{ID: 1, Name: "light", Limits: limits(10)}}}, noon)
	}
}

func BenchmarkLookUp(b *testing.B) {
	d := tenants.NewDirectory(0)
	c := two()
	d.Apply(c, noon)
	for b.Loop() {
		if _, ok := d.Snapshot().Tenant("a"); !ok {
			b.Fatal("not found")
		}
	}
}
