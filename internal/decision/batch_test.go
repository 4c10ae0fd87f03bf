package decision_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// failing is a store that cannot decide.
type failing struct {
	err     error
	perItem bool
}

func (s failing) Source() ratelimit.Source { return ratelimit.SourceRedis }

func (s failing) Decide(_ context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
	if !s.perItem {
		return s.err
	}
	for i := range charges {
		out[i] = ratelimit.Outcome{Err: s.err}
	}
	return nil
}

// B026: a store that cannot decide is never a 429 and never a 500.
func TestStoreFailureFollowsEachLimit(t *testing.T) {
	t.Parallel()
	open, closed, watched := minute("open", 1), minute("closed", 1), minute("watched", 1)
	closed.OnStoreFailure, watched.OnStoreFailure = ratelimit.FailClosed, ratelimit.FailClosed
	watched.Mode = ratelimit.Shadow
	for _, store := range []failing{
		{err: fmt.Errorf("%w: timeout", ratelimit.ErrUnavailable)},
		{err: fmt.Errorf("%w: wrong type", ratelimit.ErrCounter), perItem: true},
		{err: errors.New("something new"), perItem: true},
	} {
		f := newFixture(t, open, watched)
		e := decision.New(decision.Config{Store: store, Directory: f.directory, Now: f.clock.now})
		d, err := e.Decide(t.Context(), f.hit(t))
		require.NoError(t, err)
		require.Equal(t, decision.Allow, d.Verdict)
		require.Equal(t, ratelimit.SourceNone, d.Source)
		require.Equal(t, -1, d.Tightest)

		f = newFixture(t, open, closed)
		e = decision.New(decision.Config{Store: store, Directory: f.directory, Now: f.clock.now})
		_, err = e.Decide(t.Context(), f.hit(t))
		require.ErrorIs(t, err, decision.ErrClosed)
		results := e.DecideBatch(t.Context(), []decision.Hit{f.hit(t), {Cost: 1}})
		require.ErrorIs(t, results[0].Err, decision.ErrClosed)
		require.NoError(t, results[1].Err, "nobody's fault but the first one's")

		e = decision.New(decision.Config{Store: store, Directory: f.directory, Now: f.clock.now, Mode: ratelimit.Shadow})
		d, err = e.Decide(t.Context(), f.hit(t))
		require.NoError(t, err, "in shadow mode nothing is closed")
		require.Equal(t, decision.Allow, d.Verdict)
	}
}

func TestCallersOwnCancellationIsItsOwn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e := decision.New(decision.Config{Store: failing{err: ctx.Err()}, Directory: f.directory, Now: f.clock.now})
	_, err := e.Decide(ctx, f.hit(t))
	require.ErrorIs(t, err, context.Canceled)
	_, _, ok := decision.ProblemOf(err)
	require.False(t, ok)
}

// counting counts the calls that reach the store.
type counting struct {
	ratelimit.Store

	calls, charges atomic.Int64
}

func (s *counting) Decide(ctx context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
	s.calls.Add(1)
	s.charges.Add(int64(len(charges)))
	return s.Store.Decide(ctx, charges, out)
}

// A batch equals its hits one by one, in at most two calls of the store.
func TestBatchActsInOrderInTwoCalls(t *testing.T) {
	t.Parallel()
	f, single := newFixture(t, minute("m", 7), scoped(minute("u", 3), ratelimit.ScopeUser)), newFixture(t, minute("m", 7), scoped(minute("u", 3), ratelimit.ScopeUser))
	store := &counting{Store: f.store}
	e := decision.New(decision.Config{Store: store, Directory: f.directory, Now: f.clock.now})
	suspended := named("school-18", 18, "light")
	suspended.Status = tenants.Suspended
	for _, x := range []*fixture{f, single} {
		x.changes.Tenants[1] = suspended
		x.policy(scoped(minute("a", 4), ratelimit.ScopeAddress))
	}
	var hits []decision.Hit
	for n := range 20 {
		hit := decision.Hit{User: fmt.Sprint("u", n%2), Cost: int64(n%3) + 1}
		if n%4 == 0 {
			hit.Address = prefix("203.0.113.7")
		}
		hits = append(hits, hit)
	}
	hits = append(hits, decision.Hit{Cost: 1}, decision.Hit{Cost: 1})
	results := e.DecideBatch(t.Context(), withTenant(t, f, hits))
	require.EqualValues(t, 2, store.calls.Load())
	require.Len(t, results, len(hits))
	for i, hit := range withTenant(t, single, hits) {
		d, err := single.Decide(t.Context(), hit)
		require.Equal(t, err, results[i].Err, "hit %d", i)
		if err == nil {
			require.Equal(t, d.Verdict, results[i].Decision.Verdict, "hit %d", i)
			require.NotEqual(t, d.ID, results[i].Decision.ID)
		}
	}
	require.ErrorIs(t, results[21].Err, decision.ErrSuspended)
	require.Empty(t, e.DecideBatch(t.Context(), nil))
}

// withTenant gives each hit school-17, the last one school-18.
func withTenant(t *testing.T, f *fixture, hits []decision.Hit) []decision.Hit {
	t.Helper()
	out := append([]decision.Hit(nil), hits...)
	for i := range out {
		out[i].Tenant = f.tenant(t, "school-17")
	}
	out[len(out)-1].Tenant = f.tenant(t, "school-18")
	return out
}

func TestDecisionIDsAreUniqueAndSorted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	last := ""
	for range 1000 {
		id := f.decide(t, f.hit(t)).ID
		require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, id)
		require.Greater(t, id, last)
		last = id
		f.clock.advance(time.Millisecond)
	}
}
