package decision_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/usage"
)

// shared makes a store's answers those of Redis, and counts its calls.
type shared struct {
	ratelimit.Store

	calls int
}

func (*shared) Source() ratelimit.Source { return ratelimit.SourceRedis }

func (s *shared) Decide(ctx context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
	s.calls++
	err := s.Store.Decide(ctx, charges, out)
	for i := range charges {
		out[i].Source = ratelimit.SourceRedis
	}
	return err
}

// A refusal that the deny cache repeats has the id of the one that the store made, is counted like it, tells the wait that is
// left, and invents no number: another user's own limit stays without.
func TestRepeatedRefusals(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("tenant", 2), scoped(minute("user", 5), ratelimit.ScopeUser))
	store := &shared{Store: f.store}
	f.Engine = decision.New(decision.Config{
		Store: ratelimit.NewDenyCache(store, f.clock.now, 0), Directory: f.directory, Recorder: f.recorder, Now: f.clock.now,
	})
	hit := func(user string) decision.Hit {
		h := f.hit(t)
		h.User = user
		return h
	}
	first := f.decide(t, hit("a"))
	second := f.decide(t, hit("a"))
	require.NotEqual(t, first.ID, second.ID)
	refused := f.decide(t, hit("a"))
	require.Equal(t, decision.Deny, refused.Verdict)
	calls := store.calls

	f.clock.advance(300 * time.Millisecond)
	repeated := f.decide(t, hit("b"))
	require.Equal(t, calls, store.calls)
	require.Equal(t, decision.Deny, repeated.Verdict)
	require.Equal(t, refused.ID, repeated.ID)
	require.Equal(t, ratelimit.SourceRedis, repeated.Source)
	require.Equal(t, usage.Refused, f.recorder.last(t).Verdict)
	require.Equal(t, "tenant", f.recorder.last(t).Limits[0].Name)
	wait, ok := repeated.RetryAfter()
	require.True(t, ok)
	require.Equal(t, time.Minute-300*time.Millisecond, wait)
	body := decision.Denied(repeated, "r")
	used, known := body.Limits[0].Used.Value()
	require.True(t, known)
	require.EqualValues(t, 2, used)
	_, known = body.Limits[1].Used.Value()
	require.False(t, known, "nobody knows the numbers of user b")
	require.Nil(t, body.Limits[1].EffectiveAlgorithm)

	f.clock.advance(time.Second)
	later := f.decide(t, hit("b"))
	require.Equal(t, decision.Deny, later.Verdict)
	require.NotEqual(t, refused.ID, later.ID, "the store was asked again")
}
