package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// raise makes sure that the caller's counters show at least what is known of each.
func (c *caller) raise(known ...ratelimit.Portion) {
	c.Helper()
	charge := ratelimit.Charge{Kind: ratelimit.Raise, Counters: c.counters, Hits: 1, Cost: 1}
	for range c.counters {
		charge.Known = append(charge.Known, known)
	}
	out := c.decide(charge)
	require.EqualValues(c, 1, out.Admitted, "a raise never refuses")
	require.Equal(c, make([]ratelimit.CounterState, len(c.counters)), out.Counters)
}

func (c *caller) used() int64 {
	c.Helper()
	_, state := c.peek(0)
	return state.Used
}

// raises: usage that another store has counted is carried over by its total: once, however often, and never on top.
func (s *suite) raises() {
	now := func(units int64) ratelimit.Portion { return ratelimit.Portion{Units: units} }
	s.alignedTo(10*time.Second, time.Millisecond) // no edge of a window in between
	s.each("ToATotal", 100, func(c *caller) {
		c.raise(now(60))
		require.EqualValues(c, 60, c.used(), "of nothing")
		c.raise(now(60))
		require.EqualValues(c, 60, c.used(), "repeated")
		c.raise(now(20))
		require.EqualValues(c, 60, c.used(), "less than there is")
		require.Equal(c, 10, c.admitted(10))
		c.raise(now(65))
		require.EqualValues(c, 70, c.used(), "less than there is by now")
		c.raise(now(90))
		require.EqualValues(c, 90, c.used(), "the difference")
		c.raise()
		require.EqualValues(c, 90, c.used(), "nothing known")
		require.Equal(c, 10, c.admitted(50), "what is left")
	})
	s.each("BeforeATake", 100, func(c *caller) {
		out := make([]ratelimit.Outcome, 3)
		require.NoError(c, c.suite.store.Decide(c.Context(), []ratelimit.Charge{
			{Kind: ratelimit.Raise, Counters: c.counters, Hits: 1, Known: [][]ratelimit.Portion{{now(95)}}},
			{Kind: ratelimit.Take, Counters: c.counters, Hits: 10, Cost: 1},
			{Kind: ratelimit.Raise, Counters: c.counters, Hits: 1, Known: [][]ratelimit.Portion{{now(97)}}},
		}, out))
		require.EqualValues(c, 5, out[1].Admitted, "charges of a batch act in order")
		require.EqualValues(c, 100, c.used())
	})
	s.each("Expires", 100, func(c *caller) {
		c.raise(now(100))
		require.Zero(c, c.admitted(1))
		c.advance(10*time.Second + 10*time.Second/8)
		if c.limits[0].Algorithm == ratelimit.SlidingWindowCounter {
			c.advance(10 * time.Second)
		}
		require.Equal(c, 100, c.admitted(100), "a window later it is gone")
	})
	s.each("Accounts", 100, func(c *caller) {
		require.Equal(c, 7, c.admitted(7))
		out := c.charge(ratelimit.Account, 1, 1)
		require.EqualValues(c, 1, out.Admitted)
		require.Equal(c, []int64{7}, totals(out.Portions), "all that is used has an age")
		c.raise(out.Portions[0]...)
		require.EqualValues(c, 7, c.used())
	})
	if s.factory.Strictness == Exact { // rows take the portions together
		s.Run("ByAge", s.raisesByAge)
	}
	s.Run("NeverLoosens", s.raisesNeverLoosen)
}

// raisesByAge: what is raised leaves when it would have left where it was counted.
func (s *suite) raisesByAge(t *testing.T) {
	c := s.caller(t, limit(ratelimit.SlidingWindowLog, 100, 10*time.Second))
	c.raise(ratelimit.Portion{Units: 10}, ratelimit.Portion{Age: 4 * time.Second, Units: 30}, ratelimit.Portion{Age: 10 * time.Second, Units: 50})
	require.EqualValues(t, 40, c.used(), "what is a window old counts no more")
	c.advance(6 * time.Second)
	require.EqualValues(t, 10, c.used())
	c.advance(4 * time.Second)
	require.Zero(t, c.used())
	require.Equal(t, 20, c.admitted(20))
	c.raise(ratelimit.Portion{Units: 10}, ratelimit.Portion{Age: 4 * time.Second, Units: 30})
	require.EqualValues(t, 40, c.used())
	c.advance(6 * time.Second)
	require.EqualValues(t, 40, c.used(), "older than the newest entry there is: it lives as long as that")
}

// raisesNeverLoosen: whatever is known, afterwards at least as much is used as before, and as is known.
func (s *suite) raisesNeverLoosen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLimit(t, "limit")
		l.Quota, l.Cost = max(1, l.Quota), 1
		s.begin(t)
		counters := []ratelimit.Counter{{Key: ratelimit.CounterKey(ratelimit.Subject{Group: s.group()}, l), Limit: l}}
		look := func() int64 {
			return s.one(t, ratelimit.Charge{Kind: ratelimit.Peek, Counters: counters, Hits: 1}).Counters[0].Used
		}
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			s.clock.Advance(drawPause(t, max(time.Second, l.Span())))
			hits := rapid.SampledFrom([]int64{1, max(1, l.Quota/3), l.Quota}).Draw(t, "hits")
			s.one(t, ratelimit.Charge{Kind: ratelimit.Take, Counters: counters, Hits: hits, Cost: 1})
			before := look()
			units := rapid.Int64Range(0, l.Quota).Draw(t, "units")
			raise := ratelimit.Charge{Kind: ratelimit.Raise, Counters: counters, Hits: 1, Known: [][]ratelimit.Portion{{{Units: units}}}}
			s.one(t, raise)
			after := look()
			// Rows may show more than the limit's own algorithm would, and are raised by what that would show.
			same := before < units || after == before || s.segmented(l.Algorithm)
			if after < max(before, units) || !same {
				t.Fatalf("%s: %d used, raised to %d: %d", l, before, units, after)
			}
			s.one(t, raise)
			if again := look(); again != after {
				t.Fatalf("%s: raised to %d twice: %d, then %d", l, units, after, again)
			}
		}
	})
}

func totals(portions [][]ratelimit.Portion) []int64 {
	all := make([]int64, len(portions))
	for i := range portions {
		for _, p := range portions[i] {
			all[i] += p.Units
		}
	}
	return all
}
