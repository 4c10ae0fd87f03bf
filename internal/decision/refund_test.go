package decision_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/ratelimit"
)

func (f *fixture) refund(t *testing.T, h decision.Hit, cost int64) *decision.Decision {
	t.Helper()
	h.Cost = cost
	d, err := f.Refund(t.Context(), h)
	require.NoError(t, err)
	return d
}

// A refund gives back to every limit that was charged, also when nothing is left, the oldest units first, and never more than
// what is used. What it answers is the status after it.
func TestRefund(t *testing.T) {
	t.Parallel()
	double := scoped(minute("user", 8), ratelimit.ScopeUser)
	double.Cost = 2
	f := newFixture(t, minute("tenant", 4), double)
	f.policy(scoped(minute("address", 9), ratelimit.ScopeAddress))
	hit := f.hit(t)
	hit.User, hit.Address = "u", prefix("203.0.113.7")
	for range 4 {
		f.decide(t, hit)
		f.clock.advance(time.Second)
	}
	require.Equal(t, decision.Deny, f.decide(t, hit).Verdict)
	events := len(f.recorder.events)

	d := f.refund(t, hit, 1)
	require.Equal(t, decision.Allow, d.Verdict)
	used := func(d *decision.Decision) (all []int64) {
		for i := range d.Limits {
			all = append(all, d.Limits[i].State.Used)
		}
		return all
	}
	require.Equal(t, []int64{3, 6, 4}, used(d), "tenant, user by its own cost, address (which the refused hit had charged)")
	require.Len(t, f.recorder.events, events, "a refund is no request")
	require.Equal(t, decision.Allow, f.decide(t, hit).Verdict, "it works at remaining 0")
	refused := f.decide(t, hit)
	wait, _ := refused.RetryAfter()
	require.Equal(t, time.Minute-3*time.Second, wait, "the oldest unit left: the second hit is the first to go")

	require.Equal(t, []int64{4, 8, 6}, used(f.refund(t, hit, 0)), "nothing")
	require.Equal(t, []int64{0, 0, 0}, used(f.refund(t, hit, ratelimit.MaxCost)), "never below zero")
	require.Equal(t, []int64{0, 0, 0}, used(f.refund(t, hit, 1)))

	d = f.refund(t, f.hit(t), 1)
	require.Len(t, d.Limits, 1, "only the limits that hold for the hit")
}

// What no store takes is an error, whatever the limits say about failures: nothing was given back.
func TestRefundWithoutAStore(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("tenant", 4))
	for name, fail := range map[string]func(charges []ratelimit.Charge, out []ratelimit.Outcome) error{
		"nobody decides": func(charges []ratelimit.Charge, out []ratelimit.Outcome) error {
			for i := range charges {
				out[i] = ratelimit.Outcome{Admitted: 1, Source: ratelimit.SourceNone, Counters: make([]ratelimit.CounterState, len(charges[i].Counters))}
			}
			return nil
		},
		"a damaged counter": func(_ []ratelimit.Charge, out []ratelimit.Outcome) error {
			for i := range out {
				out[i] = ratelimit.Outcome{Err: ratelimit.ErrCounter}
			}
			return nil
		},
		"no store": func([]ratelimit.Charge, []ratelimit.Outcome) error { return ratelimit.ErrUnavailable },
	} {
		e := decision.New(decision.Config{Store: scripted{fail}, Directory: f.directory, Now: f.clock.now})
		_, err := e.Refund(t.Context(), f.hit(t))
		require.ErrorIs(t, err, decision.ErrNotRefunded, name)
		slug, _, ok := decision.ProblemOf(err)
		require.True(t, ok)
		require.Equal(t, 503, slug.Status())
	}
	left, leave := context.WithCancel(t.Context())
	leave()
	e := decision.New(decision.Config{Store: scripted{func([]ratelimit.Charge, []ratelimit.Outcome) error { return context.Canceled }}, Directory: f.directory, Now: f.clock.now})
	_, err := e.Refund(left, f.hit(t))
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, decision.ErrNotRefunded)
}

type scripted struct {
	decide func(charges []ratelimit.Charge, out []ratelimit.Outcome) error
}

func (scripted) Source() ratelimit.Source { return ratelimit.SourceNone }

func (s scripted) Decide(_ context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
	return s.decide(charges, out)
}
