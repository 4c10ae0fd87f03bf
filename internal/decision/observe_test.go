package decision_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// observations keeps what it is told.
type observations struct{ seen []decision.Observation }

func (o *observations) Observe(seen decision.Observation) { o.seen = append(o.seen, seen) }

func (o *observations) take() []decision.Observation {
	seen := o.seen
	o.seen = nil
	return seen
}

func observed(t *testing.T, rules ...tenants.Rule) (*fixture, *observations) {
	t.Helper()
	f, seen := newFixture(t, rules...), &observations{}
	f.Engine = decision.New(decision.Config{Store: f.store, Directory: f.directory, Recorder: f.recorder, Observer: seen, Now: f.clock.now})
	return f, seen
}

// Guarantee: every finished decision is told of once, with the hit and the answer; status and refunds are not.
func TestEveryDecisionIsObservedOnce(t *testing.T) {
	t.Parallel()
	f, seen := observed(t, slowed(minute("m", 10)))
	hit := f.hit(t)
	hit.Door = decision.DoorCheck
	for range 11 {
		d := f.decide(t, hit)
		told := seen.take()
		require.Len(t, told, 1)
		require.Same(t, d, told[0].Decision)
		require.Equal(t, hit.Tenant, told[0].Hit.Tenant)
		require.Equal(t, decision.DoorCheck, told[0].Hit.Door)
		require.Equal(t, d.At, told[0].At)
		require.NotNil(t, d.Limits[0].Rule)
		require.NoError(t, told[0].Err)
	}

	hit.Peek = true
	require.Equal(t, decision.Deny, f.decide(t, hit).Verdict)
	told := seen.take()
	require.Len(t, told, 1, "a refused peek has an id that somebody may ask for")
	require.False(t, told[0].Hit.Consumes())

	_, err := f.Status(context.Background(), hit)
	require.NoError(t, err)
	hit.Peek = false
	_, err = f.Refund(context.Background(), hit)
	require.NoError(t, err)
	require.Empty(t, seen.take())

	for _, result := range f.DecideBatch(context.Background(), []decision.Hit{hit, hit}) {
		require.NoError(t, result.Err)
	}
	require.Len(t, seen.take(), 2)
}

// Guarantee: refusals without a decision are told of too, and what is nobody's refusal is not.
func TestRefusalsWithoutADecisionAreObserved(t *testing.T) {
	t.Parallel()
	f, seen := observed(t, minute("m", 10))
	f.changes.Tenants[1].Status = tenants.Suspended
	f.changes.Networks = []tenants.Network{{ID: 1, CIDR: mustPrefix("198.51.100.0/24"), Action: tenants.Deny}}
	f.policy(scoped(minute("a", 10), ratelimit.ScopeAddress))

	_, err := f.Decide(context.Background(), decision.Hit{Tenant: f.tenant(t, "school-18"), Cost: 1})
	require.ErrorIs(t, err, decision.ErrSuspended)
	_, err = f.Decide(context.Background(), decision.Hit{Address: prefix("198.51.100.9"), Cost: 1})
	require.ErrorIs(t, err, decision.ErrNetworkDenied)
	told := seen.take()
	require.Len(t, told, 2)
	require.ErrorIs(t, told[0].Err, decision.ErrSuspended)
	require.ErrorIs(t, told[1].Err, decision.ErrNetworkDenied)
	require.Nil(t, told[1].Decision)
	require.Equal(t, f.clock.now(), told[1].At)

	caller := f.Identify(decision.ReadCredentials(header("X-API-Key", forged(t, tenants.KindAPIKey)), false), prefix("203.0.113.7"))
	caller.Door = decision.DoorPing
	_, err = f.Admit(context.Background(), &caller, "GET", "/v1/ping")
	require.ErrorIs(t, err, decision.ErrUnauthorized)
	told = seen.take()
	require.Len(t, told, 1)
	require.True(t, told[0].Hit.Unauthorized, "counted, and refused whatever the count says")
	require.Equal(t, decision.Allow, told[0].Decision.Verdict)
	require.Equal(t, decision.DoorPing, told[0].Hit.Door)

	gone, leave := context.WithCancel(context.Background())
	leave()
	if _, err = f.Decide(gone, f.hit(t)); err != nil { // a memory store may answer all the same
		require.Empty(t, seen.take())
	}
}

// Guarantee: a slowed request that found no place to wait is told of as the refusal that it became.
func TestTooManyHeldIsObserved(t *testing.T) {
	t.Parallel()
	f, seen := observed(t, slowed(minute("m", 1)))
	hit := f.hit(t)
	d := f.decide(t, hit)
	require.Equal(t, decision.Slow, d.Verdict)
	refused := f.TooManyHeld(&hit, d)
	told := seen.take()
	require.Len(t, told, 2)
	require.Same(t, refused, told[1].Decision)
	require.True(t, told[1].Decision.Held)
	require.Equal(t, d.ID, told[1].Decision.ID)
}
