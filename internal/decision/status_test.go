package decision_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

func TestStatusConsumesNothingAndShowsEveryLimit(t *testing.T) {
	t.Parallel()
	f := newFixture(t, slowed(minute("m", 4)))
	f.policy(scoped(minute("a", 1), ratelimit.ScopeAddress))
	hit := f.hit(t)
	hit.Address = prefix("203.0.113.7")
	f.decide(t, hit)
	d, err := f.Status(t.Context(), hit)
	require.NoError(t, err)
	require.Len(t, d.Limits, 2, "a full address hides no tenant limit")
	require.Equal(t, decision.Deny, d.Verdict, "what a hit would get")
	require.EqualValues(t, 1, d.Limits[0].State.Used)
	require.Len(t, f.recorder.events, 1)

	hit.Address, hit.Standing = prefix("203.0.113.8"), decision.Exempt
	for want := int64(1); want < 4; want++ {
		f.clock.advance(time.Second)
		d, err = f.Status(t.Context(), hit)
		require.NoError(t, err)
		require.Equal(t, want, d.Limits[0].State.Used)
		f.decide(t, hit)
	}
}

// Polling costs the store a few peeks a second, whoever polls how often; a changed configuration shows at once.
func TestStatusIsCheapAndFresh(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 10))
	store := &counting{Store: f.store}
	e := decision.New(decision.Config{Store: store, Directory: f.directory, Now: f.clock.now})
	status := func() *decision.Decision {
		d, err := e.Status(t.Context(), f.hit(t))
		require.NoError(t, err)
		return d
	}
	for range 1000 {
		status()
		f.clock.advance(time.Millisecond)
	}
	require.LessOrEqual(t, store.calls.Load(), int64(5))
	f.decide(t, f.hit(t))
	f.clock.advance(time.Second)
	require.EqualValues(t, 1, status().Limits[0].State.Used)

	f.changes.Plans = []tenants.Plan{{ID: 1, Name: "light", Limits: []tenants.Rule{minute("m", 20)}}}
	f.apply()
	require.EqualValues(t, 20, status().Limits[0].Limit.Quota)

	other := f.hit(t)
	other.User = "u"
	d, err := e.Status(t.Context(), other)
	require.NoError(t, err)
	require.NotEqual(t, status().ID, d.ID, "another subject has another answer")
}

func TestStatusOfASuspendedTenant(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.changes.Tenants[0].Status = tenants.Suspended
	f.apply()
	_, err := f.Status(t.Context(), f.hit(t))
	require.ErrorIs(t, err, decision.ErrSuspended)
}
