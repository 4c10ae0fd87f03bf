package decision_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/usage"
)

// Incident 5: exactly the quota passes, however many ask at once.
func TestParallelHitsPassExactlyTheQuota(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 50))
	hit := f.hit(t)
	var passed atomic.Int64
	var group sync.WaitGroup
	for range 500 {
		group.Go(func() {
			if d, err := f.Decide(context.Background(), hit); err == nil && d.Verdict != decision.Deny {
				passed.Add(1)
			}
		})
	}
	group.Wait()
	require.EqualValues(t, 50, passed.Load())
}

// Incident 1: full speed up to 80 %, then a delay that grows by the formula, then a refusal.
func TestTheLoopIsSlowedThenRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, slowed(minute("requests-per-minute", 2000)))
	hit := f.hit(t)
	for n := 1; n <= 2000; n++ {
		d := f.decide(t, hit)
		if n <= 1600 {
			require.Equal(t, decision.Allow, d.Verdict, "hit %d", n)
			require.Zero(t, d.Delay)
			continue
		}
		require.Equal(t, decision.Slow, d.Verdict, "hit %d", n)
		require.Equal(t, time.Duration(n-1600)*5*time.Millisecond, d.Delay, "hit %d", n)
		require.Equal(t, usage.Slowed, f.recorder.last(t).Verdict)
	}
	d := f.decide(t, hit)
	require.Equal(t, decision.Deny, d.Verdict)
	require.Zero(t, d.Delay)
	event := f.recorder.last(t)
	require.Equal(t, usage.Refused, event.Verdict)
	require.Equal(t, []usage.LimitUse{{Name: "requests-per-minute", Used: 2000, Quota: 2000, Refused: true}}, event.Limits)
	require.Empty(t, event.Address, "the tenant refused, not the address")

	require.Equal(t, decision.Allow, f.decide(t, decision.Hit{Tenant: f.tenant(t, "school-18"), Cost: 1}).Verdict, "the others see no change")
}

func TestUnlimitedPlanMakesNoCounter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d := f.decide(t, f.hit(t))
	require.Equal(t, decision.Allow, d.Verdict)
	require.Equal(t, -1, d.Tightest)
	require.Equal(t, ratelimit.SourceMemory, d.Source, "the store that would have been asked")
	require.Zero(t, f.store.Len())
}

func TestQuotaOfZeroAlwaysRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 0), minute("other", 5))
	for _, cost := range []int64{0, 1, 7} {
		hit := f.hit(t)
		hit.Cost = cost
		d := f.decide(t, hit)
		require.Equal(t, decision.Deny, d.Verdict, "cost %d", cost)
		require.True(t, d.CostExceeds)
		limit, ok := d.TightestLimit()
		require.True(t, ok)
		require.InDelta(t, 1, limit.Utilization(), 0)
		_, waits := d.RetryAfter()
		require.False(t, waits)
	}
	require.Zero(t, f.store.Len(), "refused hits are charged nowhere")
}

// B010: a cost above the quota is a refusal that no waiting cures, and leaves the counter alone.
func TestCostAboveTheQuota(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 10))
	hit := f.hit(t)
	verdicts := make([]decision.Verdict, 0, 5)
	for _, cost := range []int64{11, 7, 2, 2, 1} {
		hit.Cost = cost
		d := f.decide(t, hit)
		require.Equal(t, cost == 11, d.CostExceeds)
		verdicts = append(verdicts, d.Verdict)
	}
	require.Equal(t, []decision.Verdict{decision.Deny, decision.Allow, decision.Allow, decision.Deny, decision.Allow}, verdicts)
}

func TestAnUnitsMultiplierCountsForTheCost(t *testing.T) {
	t.Parallel()
	rule := minute("m", 10)
	rule.Cost = 5
	f := newFixture(t, rule)
	require.EqualValues(t, 5, f.decide(t, f.hit(t)).Limits[0].State.Used)
	hit := f.hit(t)
	hit.Cost = 3
	require.True(t, f.decide(t, hit).CostExceeds)
}

// B012: cost 0 and peek consume nothing and answer for what was asked.
func TestPeekAndCostZeroConsumeNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, slowed(minute("m", 10)))
	hit := f.hit(t)
	hit.Cost = 8
	f.decide(t, hit)

	peek := f.hit(t)
	peek.Peek = true
	d := f.decide(t, peek)
	require.Equal(t, decision.Slow, d.Verdict, "a hit now would leave 9 of 10")
	require.Equal(t, time.Second, d.Delay)
	require.EqualValues(t, 8, d.Limits[0].State.Used)
	peek.Cost = 3
	d = f.decide(t, peek)
	require.Equal(t, decision.Deny, d.Verdict)
	wait, ok := d.RetryAfter()
	require.True(t, ok)
	require.Equal(t, time.Minute, wait)

	zero := f.hit(t)
	zero.Cost = 0
	require.Equal(t, decision.Allow, f.decide(t, zero).Verdict)
	require.EqualValues(t, 8, f.decide(t, zero).Limits[0].State.Used)
	require.Len(t, f.recorder.events, 1, "questions are not usage")
}

func TestOverrideHoldsUntilItExpires(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 2))
	f.changes.Overrides = []tenants.Override{{TenantID: 17, LimitName: "m", Quota: 4, Reason: "migration", ExpiresAt: f.clock.now().Add(30 * time.Second)}}
	f.apply()
	hit := f.hit(t)
	for range 4 {
		d := f.decide(t, hit)
		require.Equal(t, decision.Allow, d.Verdict)
		require.NotNil(t, d.Limits[0].Override)
	}
	require.Equal(t, decision.Deny, f.decide(t, hit).Verdict)
	f.clock.advance(30 * time.Second)
	d := f.decide(t, hit)
	require.Nil(t, d.Limits[0].Override)
	require.EqualValues(t, 2, d.Limits[0].Limit.Quota)
	require.EqualValues(t, 2, d.Limits[0].State.Used, "clamped to the quota that holds")
	require.Equal(t, decision.Allow, f.decide(t, decision.Hit{Tenant: f.tenant(t, "school-18"), Cost: 1}).Verdict)
}

// B008: a raised quota acts on the live counter at once.
func TestRaisedQuotaActsAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 10))
	for range 50 {
		f.decide(t, f.hit(t))
	}
	f.changes.Plans = []tenants.Plan{{ID: 1, Name: "light", Limits: []tenants.Rule{minute("m", 20)}}}
	f.apply()
	for range 10 {
		require.Equal(t, decision.Allow, f.decide(t, f.hit(t)).Verdict)
	}
	require.Equal(t, decision.Deny, f.decide(t, f.hit(t)).Verdict)
}

func TestResetAndRecreationStartAfresh(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 1))
	f.decide(t, f.hit(t))
	require.Equal(t, decision.Deny, f.decide(t, f.hit(t)).Verdict)

	again := named("school-17", 17, "light")
	again.Generation = 1
	f.changes.Tenants = []tenants.Tenant{again}
	f.apply()
	require.Equal(t, decision.Allow, f.decide(t, f.hit(t)).Verdict, "reset")
	require.Equal(t, decision.Deny, f.decide(t, f.hit(t)).Verdict)

	f.changes.Tenants = []tenants.Tenant{named("school-17", 170, "light")}
	f.apply()
	require.Equal(t, decision.Allow, f.decide(t, f.hit(t)).Verdict, "another tenant under the old name")
}

func TestMovingBetweenPlansKeepsUsage(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 2))
	f.decide(t, f.hit(t))
	f.changes.Plans = append(f.changes.Plans, tenants.Plan{ID: 2, Name: "pro", Limits: []tenants.Rule{minute("m", 5)}})
	f.changes.Tenants = []tenants.Tenant{named("school-17", 17, "pro")}
	f.apply()
	d := f.decide(t, f.hit(t))
	require.Equal(t, "pro", d.Plan)
	require.EqualValues(t, 2, d.Limits[0].State.Used)
}

func TestScopesAndMatch(t *testing.T) {
	t.Parallel()
	exports := scoped(minute("exports", 1), ratelimit.ScopeUser)
	exports.Match = tenants.Match{Methods: []string{"POST"}, Paths: []string{"/v1/exports/*"}}
	f := newFixture(t, minute("all", 100), scoped(minute("user", 2), ratelimit.ScopeUser), scoped(minute("key", 3), ratelimit.ScopeKey), exports)
	names := func(change func(h *decision.Hit)) (out []string) {
		hit := f.hit(t)
		hit.Peek = true
		change(&hit)
		for _, l := range f.decide(t, hit).Limits {
			out = append(out, l.Limit.Name)
		}
		return out
	}
	require.Equal(t, []string{"all"}, names(func(*decision.Hit) {}))
	require.Equal(t, []string{"all", "user"}, names(func(h *decision.Hit) { h.User = "u" }))
	require.Equal(t, []string{"all", "key"}, names(func(h *decision.Hit) { h.Key = "k" }))
	require.Equal(t, []string{"all", "user"}, names(func(h *decision.Hit) { h.User, h.Path = "u", "/v1/exports/1" }), "no method given")
	require.Equal(t, []string{"all", "user"}, names(func(h *decision.Hit) { h.User, h.Method = "u", "POST" }), "no path given")
	require.Equal(t, []string{"all"}, names(func(h *decision.Hit) { h.Method, h.Path = "POST", "/v1/exports/1" }), "no user given")
	for _, path := range []string{"/v1/exports/1", "/v1//exports/1", "/V1/Exports/1/", "/v1/%65xports/1", "/v1/x/../exports/1?q", "/v1/exports;a=b/1", "/v1/exports%2F1"} {
		require.Equal(t, []string{"all", "user", "exports"}, names(func(h *decision.Hit) { h.User, h.Method, h.Path = "u", "post", path }), "%s (B052)", path)
	}
	require.Equal(t, []string{"all", "user"}, names(func(h *decision.Hit) { h.User, h.Method, h.Path = "u", "POST", "/v1/other" }))

	user := f.hit(t)
	for _, name := range []string{"u1", "u2"} { // each user has a counter of their own
		user.User = name
		require.Equal(t, decision.Allow, f.decide(t, user).Verdict)
		require.Equal(t, decision.Allow, f.decide(t, user).Verdict)
		require.Equal(t, decision.Deny, f.decide(t, user).Verdict)
	}
	require.EqualValues(t, 4, f.decide(t, decision.Hit{Tenant: user.Tenant, Peek: true, Cost: 1}).Limits[0].State.Used, "a refusal is charged to none")
	elsewhere := decision.Hit{Tenant: f.tenant(t, "school-18"), User: "u1", Cost: 1}
	require.Equal(t, decision.Allow, f.decide(t, elsewhere).Verdict, "the same user of another tenant is somebody else")
}

func TestShadowLimitIsOnlyRecorded(t *testing.T) {
	t.Parallel()
	watch := slowed(minute("watch", 3))
	watch.Mode = ratelimit.Shadow
	f := newFixture(t, watch, minute("real", 10))
	hit := f.hit(t)
	for n := range 10 {
		d := f.decide(t, hit)
		require.Equal(t, decision.Allow, d.Verdict)
		require.Zero(t, d.Delay)
		require.Equal(t, 1, d.Tightest)
		require.Equal(t, n >= 3, d.Limits[0].Refused, "hit %d", n)
	}
	require.EqualValues(t, 3, f.decide(t, hit).Limits[0].State.Used, "charged when it fits and the hit is admitted")
}

func TestShadowModeRefusesAndDelaysNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, slowed(minute("m", 10)))
	f.policy(scoped(minute("a", 15), ratelimit.ScopeAddress))
	shadow := ratelimit.Shadow
	f.changes.Mode = &shadow
	f.apply()
	require.Equal(t, ratelimit.Shadow, f.Mode())
	hit := f.hit(t)
	hit.Address = prefix("203.0.113.7")
	would := map[decision.Verdict]int{}
	for range 20 {
		d := f.decide(t, hit)
		require.Equal(t, decision.Allow, d.Verdict)
		require.Zero(t, d.Delay)
		require.Len(t, d.Limits, 2, "both groups are asked")
		if d.Shadowed {
			would[d.Would]++
		}
	}
	require.Equal(t, map[decision.Verdict]int{decision.Slow: 2, decision.Deny: 10}, would)
	event := f.recorder.last(t)
	require.Equal(t, usage.Refused, event.Verdict)
	require.True(t, event.Shadow)

	enforce := ratelimit.Enforce
	f.changes.Mode = &enforce
	f.apply()
	require.Equal(t, decision.Deny, f.decide(t, hit).Verdict, "usage was kept all the while")
}

func TestConfiguredModeHoldsUntilOneIsStored(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 0))
	e := decision.New(decision.Config{Store: f.store, Directory: f.directory, Now: f.clock.now, Mode: ratelimit.Shadow})
	d, err := e.Decide(t.Context(), f.hit(t))
	require.NoError(t, err)
	require.Equal(t, decision.Allow, d.Verdict)
	require.Equal(t, decision.Deny, d.Would)
	enforce := ratelimit.Enforce
	f.changes.Mode = &enforce
	f.apply()
	d, err = e.Decide(t.Context(), f.hit(t))
	require.NoError(t, err)
	require.Equal(t, decision.Deny, d.Verdict)
}

// The address group is charged first and stays charged when the tenant refuses.
func TestAddressFirstThenTenant(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 3))
	f.policy(scoped(minute("a", 5), ratelimit.ScopeAddress))
	hit := f.hit(t)
	hit.Address = prefix("203.0.113.7")
	for n := range 5 {
		d := f.decide(t, hit)
		require.Equal(t, n >= 3, d.Verdict == decision.Deny)
		require.Equal(t, "m", d.Limits[0].Limit.Name, "the plan's limits come first")
		require.EqualValues(t, n+1, d.Limits[1].State.Used)
	}
	d := f.decide(t, hit)
	require.Equal(t, decision.Deny, d.Verdict)
	require.Len(t, d.Limits, 1, "the tenant was not asked")
	require.Equal(t, ratelimit.ScopeAddress, d.Limits[0].Limit.Scope)
	require.Equal(t, "school-17", d.Tenant)
	require.Equal(t, "203.0.113.7/32", f.recorder.last(t).Address)
	require.Empty(t, f.recorder.last(t).Limits, "an address's limit says nothing about the tenant's height")

	hit.Address = prefix("2001:db8::1")
	f.decide(t, hit)
	hit.Address = prefix("2001:db8::ffff")
	require.EqualValues(t, 2, f.decide(t, hit).Limits[1].State.Used, "one /64 is one subject")
}

func TestTightestLimit(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("first", 10), minute("second", 10), minute("half", 20))
	d := f.decide(t, f.hit(t))
	require.Equal(t, 0, d.Tightest, "ties by plan order")

	long := minute("long", 1)
	long.Window = time.Hour
	f = newFixture(t, minute("short", 1), long, minute("wide", 100))
	f.decide(t, f.hit(t))
	d = f.decide(t, f.hit(t))
	limit, _ := d.TightestLimit()
	require.Equal(t, "long", limit.Limit.Name, "of those that refuse the one with the longest wait")
	f = newFixture(t, minute("nearly", 10), long)
	hit := f.hit(t)
	for range 9 {
		_, _ = f.Decide(t.Context(), hit)
	}
	limit, _ = f.decide(t, hit).TightestLimit()
	require.Equal(t, "long", limit.Limit.Name, "one that refuses comes before one that is fuller")
}

func TestLeakyBucketDelaysByItsWait(t *testing.T) {
	t.Parallel()
	rule := tenants.Rule{Limit: ratelimit.Limit{Name: "burst", Scope: ratelimit.ScopeAddress, Algorithm: ratelimit.LeakyBucket, Quota: 60, Refill: ratelimit.Rate{Units: 30, Every: time.Second}}}
	f := newFixture(t)
	f.policy(rule)
	hit := decision.Hit{Address: prefix("203.0.113.7"), Cost: 1}
	require.Equal(t, decision.Allow, f.decide(t, hit).Verdict)
	d := f.decide(t, hit)
	require.Equal(t, decision.Slow, d.Verdict)
	require.Equal(t, 33*time.Millisecond, d.Delay)
	for range 58 {
		d = f.decide(t, hit)
	}
	require.Equal(t, 1967*time.Millisecond, d.Delay)
	require.Equal(t, decision.Deny, f.decide(t, hit).Verdict, "a full queue refuses")
}

func TestSuspendedAndDenied(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 10))
	suspended := named("school-17", 17, "light")
	suspended.Status = tenants.Suspended
	f.changes.Tenants[0] = suspended
	f.changes.Networks = []tenants.Network{{ID: 1, CIDR: prefix("2001:db8:0:1::42"), Action: tenants.Deny}}
	f.changes.Networks[0].CIDR = f.changes.Networks[0].CIDR.Masked()
	f.apply()
	_, err := f.Decide(t.Context(), f.hit(t))
	require.ErrorIs(t, err, decision.ErrSuspended)
	hit := decision.Hit{Tenant: f.tenant(t, "school-18"), Address: prefix("2001:db8:0:1::7"), Cost: 1}
	_, err = f.Decide(t.Context(), hit)
	require.ErrorIs(t, err, decision.ErrNetworkDenied)
	hit.Address = prefix("2001:db8:0:2::7")
	require.Equal(t, decision.Allow, f.decide(t, hit).Verdict)
	require.Equal(t, 1, f.store.Len(), "what was refused unasked was charged nowhere")
}

// A deny entry narrower than the prefix that addresses are counted by hits exactly its own address.
func TestNetworkListsSeeTheWholeAddress(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 10))
	f.changes.Networks = []tenants.Network{{ID: 1, CIDR: mustPrefix("2001:db8::bad/128"), Action: tenants.Deny}}
	f.apply()
	hit := f.hit(t)
	hit.Address = prefix("2001:db8::bad")
	_, err := f.Decide(t.Context(), hit)
	require.ErrorIs(t, err, decision.ErrNetworkDenied)
	hit.Address = prefix("2001:db8::900d")
	f.decide(t, hit)
}
