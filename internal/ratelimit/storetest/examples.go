package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// contract: what Decide promises whatever is counted.
func (s *suite) contract() {
	s.Run("an empty batch", func(t *testing.T) {
		require.NoError(t, s.store.Decide(context.Background(), nil, nil))
	})
	s.Run("a charge without counters is admitted", func(t *testing.T) {
		out := make([]ratelimit.Outcome, 1)
		require.NoError(t, s.store.Decide(context.Background(), []ratelimit.Charge{{Hits: 3, Cost: 1}}, out))
		require.NoError(t, out[0].Err)
		require.EqualValues(t, 3, out[0].Admitted)
	})
	s.Run("what was in out before does not matter", func(t *testing.T) {
		c := s.caller(t, limit(ratelimit.SlidingWindowLog, 5, 10*time.Second))
		out := []ratelimit.Outcome{
			{Admitted: 9, Err: errors.New("old"), Counters: []ratelimit.CounterState{{Used: 99, Charged: 99, Delay: time.Hour}, {Used: 98}}},
			{Admitted: 77},
		}
		charges := []ratelimit.Charge{{Kind: ratelimit.Take, Counters: c.counters, Hits: 1, Cost: 2}}
		require.NoError(t, s.store.Decide(context.Background(), charges, out))
		require.NoError(t, out[0].Err)
		require.EqualValues(t, 1, out[0].Admitted)
		require.Len(t, out[0].Counters, 1)
		require.EqualValues(t, 2, out[0].Counters[0].Used)
		require.EqualValues(t, 1, out[0].Counters[0].Charged)
		require.Zero(t, out[0].Counters[0].Delay)
		require.Equal(t, s.store.Source(), out[0].Source)
		require.EqualValues(t, 77, out[1].Admitted, "an outcome without a charge is left alone")
	})
	s.Run("a batch is settled in order", func(t *testing.T) {
		// Two users of one tenant share its counter; the second charge sees what the first wrote.
		c := s.caller(t, limit(ratelimit.SlidingWindowLog, 5, 10*time.Second), limit(ratelimit.FixedWindow, 9, 10*time.Second))
		charges := []ratelimit.Charge{
			{Kind: ratelimit.Take, Counters: c.counters, Hits: 3, Cost: 1},
			{Kind: ratelimit.Take, Counters: c.counters[:1], Hits: 3, Cost: 1},
			{Kind: ratelimit.Peek, Counters: c.counters, Hits: 9, Cost: 1},
			{Kind: ratelimit.Refund, Counters: c.counters[:1], Hits: 1, Cost: 1},
			{Kind: ratelimit.Take, Counters: c.counters, Hits: 9, Cost: 1},
		}
		out := make([]ratelimit.Outcome, len(charges))
		require.NoError(t, s.store.Decide(context.Background(), charges, out))
		admitted := make([]int64, len(out))
		for i := range out {
			require.NoError(t, out[i].Err)
			admitted[i] = out[i].Admitted
		}
		require.Equal(t, []int64{3, 2, 0, 1, 1}, admitted)
		require.EqualValues(t, 5, out[4].Counters[0].Used)
		require.EqualValues(t, 4, out[4].Counters[1].Used)
	})
	s.Run("a caller that left is not a failure of the store", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		c := s.caller(t, limit(ratelimit.SlidingWindowLog, 5, 10*time.Second))
		charges := []ratelimit.Charge{{Kind: ratelimit.Peek, Counters: c.counters, Hits: 1, Cost: 1}}
		if err := s.store.Decide(ctx, charges, make([]ratelimit.Outcome, 1)); err != nil {
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, ratelimit.ErrUnavailable)
		}
	})
}

// counting: hits one by one, up to the quota and not beyond it.
func (s *suite) counting() {
	s.each("exactly the quota", 5, func(c *caller) {
		// B004: all at the same instant.
		for i := range int64(8) {
			ok, state := c.take(1)
			require.Equal(c, i < 5, ok, "hit %d", i+1)
			require.Equal(c, min(i+1, 5), state.Used)
			require.Equal(c, max(0, 4-i), state.Remaining)
			require.Equal(c, i < 4, state.RetryAfter == 0, "after hit %d one more must wait iff it is full", i+1)
			require.Positive(c, state.ResetAfter)
			if i >= 5 {
				require.Zero(c, state.Charged)
			}
		}
	})
	s.each("merged hits", 10, func(c *caller) {
		out := c.charge(ratelimit.Take, 4, 2)
		require.EqualValues(c, 4, out.Admitted)
		require.EqualValues(c, 8, out.Counters[0].Used)
		out = c.charge(ratelimit.Take, 4, 2)
		require.EqualValues(c, 1, out.Admitted, "as many as fit")
		require.EqualValues(c, 10, out.Counters[0].Used)
		require.EqualValues(c, 1, out.Counters[0].Charged)
	})
	s.each("a peek writes nothing", 5, func(c *caller) {
		for range 20 {
			out := c.charge(ratelimit.Peek, 7, 1)
			require.EqualValues(c, 5, out.Admitted)
			require.Zero(c, out.Counters[0].Used)
			require.Zero(c, out.Counters[0].Charged)
			require.Zero(c, out.Counters[0].ResetAfter)
		}
		require.Equal(c, 5, c.admitted(9))
		ok, _ := c.peek(1)
		require.False(c, ok, "a peek says what a hit would get")
	})
	s.each("refused hits are not charged", 10, func(c *caller) {
		// B008: 40 refused calls leave no trace; a raised quota helps at once.
		require.Equal(c, 10, c.admitted(50))
		c.limits[0].Quota = 20
		require.Equal(c, 10, c.admitted(50))
		ok, state := c.take(1)
		require.False(c, ok)
		require.EqualValues(c, 20, state.Used)
	})
	s.Run("equal tuples meet, different ones do not", func(t *testing.T) {
		// B055 on the store: one identity in two spellings of its parts.
		l := limit(ratelimit.SlidingWindowLog, 1, 10*time.Second)
		group := s.group()
		of := func(id string) *caller {
			subject := ratelimit.Subject{Group: group, Scope: ratelimit.ScopeUser, ID: id}
			return &caller{T: t, suite: s, limits: []*ratelimit.Limit{l}, counters: []ratelimit.Counter{
				{Key: ratelimit.CounterKey(subject, l), Limit: l},
			}}
		}
		for _, id := range []string{"", "a", "a:b", "{a}", "a}", "*", "\x00", "é", "a\n", "%", "a b"} {
			require.Equal(t, 1, of(id).admitted(3), "%q", id)
			require.Zero(t, of(id).admitted(3), "%q again", id)
		}
	})
}

// costs: hits that take nothing, several units, or more than there are.
func (s *suite) costs() {
	s.each("above the quota", 10, func(c *caller) {
		// B010: refused for good, nothing counted.
		ok, state := c.take(11)
		require.False(c, ok)
		require.Equal(c, ratelimit.Never, state.RetryAfter)
		require.Zero(c, state.Used)
		ok, _ = c.take(ratelimit.MaxCost)
		require.False(c, ok)
		admitted := make([]bool, 4)
		for i, cost := range []int64{7, 2, 2, 1} {
			admitted[i], state = c.take(cost)
		}
		require.Equal(c, []bool{true, true, false, true}, admitted)
		require.EqualValues(c, 10, state.Used)
	})
	s.each("zero is a peek", 10, func(c *caller) {
		// B012.
		out := c.charge(ratelimit.Take, 1, 0)
		require.EqualValues(c, 1, out.Admitted)
		require.Zero(c, out.Counters[0].Used)
		require.Zero(c, out.Counters[0].Charged)
		require.Equal(c, 10, c.admitted(10))
		out = c.charge(ratelimit.Take, 1, 0)
		require.EqualValues(c, 1, out.Admitted, "nothing always fits")
		require.Zero(c, out.Counters[0].RetryAfter)
		require.EqualValues(c, 10, out.Counters[0].Used)
	})
	s.each("a limit multiplies the cost", 10, func(c *caller) {
		c.limits[0].Cost = 3
		ok, state := c.take(2)
		require.True(c, ok)
		require.EqualValues(c, 6, state.Used)
		ok, state = c.take(2)
		require.False(c, ok)
		require.Positive(c, state.RetryAfter)
		ok, state = c.take(4)
		require.False(c, ok)
		require.Equal(c, ratelimit.Never, state.RetryAfter)
		c.limits[0].Cost = 1 << 62
		ok, state = c.take(ratelimit.MaxCost)
		require.False(c, ok, "B014: a product beyond 2^63 is refused")
		require.Equal(c, ratelimit.Never, state.RetryAfter)
	})
	s.each("waits are for the cost asked", 10, func(c *caller) {
		require.Equal(c, 10, c.admitted(10))
		_, one := c.peek(1)
		_, all := c.peek(10)
		require.Positive(c, one.RetryAfter)
		require.GreaterOrEqual(c, all.RetryAfter, one.RetryAfter)
		c.advance(all.RetryAfter)
		ok, _ := c.take(10)
		require.True(c, ok)
	})
}

// quotas: none, one, huge ones, and ones that change.
func (s *suite) quotas() {
	s.each("zero always refuses", 0, func(c *caller) {
		// B013.
		for _, cost := range []int64{0, 1, 5} {
			ok, state := c.take(cost)
			require.False(c, ok)
			require.Zero(c, state.Used)
			require.Zero(c, state.Remaining)
			require.Equal(c, ratelimit.Never, state.RetryAfter)
			require.Zero(c, state.ResetAfter)
		}
		out := c.charge(ratelimit.Refund, 1, 1)
		require.Zero(c, out.Counters[0].Used)
	})
	for _, a := range algorithms() {
		s.Run("extremes/"+string(a), func(t *testing.T) { s.extremes(t, a) })
	}
	s.each("lowered below what is used", 10, func(c *caller) {
		require.Equal(c, 8, c.admitted(8))
		c.limits[0].Quota = 5
		ok, state := c.take(1)
		require.False(c, ok)
		require.EqualValues(c, 5, state.Used, "B017: clamped to the quota")
		require.Zero(c, state.Remaining)
		c.advance(state.RetryAfter)
		ok, _ = c.take(1)
		require.True(c, ok)
	})
	s.Run("a changed window starts a new counter", func(t *testing.T) {
		l := limit(ratelimit.SlidingWindowLog, 2, 10*time.Second)
		changed := *l
		changed.Window = 20 * time.Second
		group := s.group()
		for _, l := range []*ratelimit.Limit{l, &changed} {
			key := ratelimit.CounterKey(ratelimit.Subject{Group: group}, l)
			c := &caller{T: t, suite: s, counters: []ratelimit.Counter{{Key: key, Limit: l}}}
			require.Equal(t, 2, c.admitted(3))
		}
	})
}

// extremes: B014, B015: the largest and smallest quotas and windows count to the unit.
func (s *suite) extremes(t *testing.T, a ratelimit.Algorithm) {
	t.Helper()
	for _, quota := range []int64{1, 3, 1<<31 - 1, 1 << 31, ratelimit.MaxQuota - 1, ratelimit.MaxQuota} {
		for _, window := range []time.Duration{ratelimit.MinWindow, 31 * 24 * time.Hour, ratelimit.MaxWindow} {
			c := s.caller(t, limit(a, quota, window))
			want := min(3, quota)
			require.EqualValues(t, want, c.admitted(3), "quota %d window %s", quota, window)
			_, state := c.peek(1)
			require.Equal(t, want, state.Used, "quota %d window %s", quota, window)
			require.Equal(t, quota-want, state.Remaining, "quota %d window %s", quota, window)
			out := c.charge(ratelimit.Take, quota, 1)
			require.Equal(t, quota-want, out.Admitted)
			require.Zero(t, out.Counters[0].Remaining)
			require.Positive(t, out.Counters[0].RetryAfter)
			require.LessOrEqual(t, out.Counters[0].RetryAfter, 2*ratelimit.MaxWindow)
		}
	}
}

// allOrNothing: a hit that one enforcing limit refuses is charged to none.
func (s *suite) allOrNothing() {
	for _, a := range algorithms() {
		s.Run(string(a), func(t *testing.T) {
			wide, narrow := limit(a, 10, 10*time.Second), limit(a, 3, 20*time.Second)
			c := s.caller(t, wide, narrow)
			out := c.charge(ratelimit.Take, 5, 1)
			require.EqualValues(t, 3, out.Admitted)
			require.EqualValues(t, 3, out.Counters[0].Used)
			require.EqualValues(t, 3, out.Counters[1].Used)
			require.Zero(t, out.Counters[0].RetryAfter)
			require.Positive(t, out.Counters[1].RetryAfter)
			out = c.charge(ratelimit.Take, 1, 1)
			require.Zero(t, out.Admitted)
			require.EqualValues(t, 3, out.Counters[0].Used)
			require.Zero(t, out.Counters[0].Charged)
		})
		s.Run("shadow/"+string(a), func(t *testing.T) {
			enforced, watched := limit(a, 10, 10*time.Second), limit(a, 3, 10*time.Second)
			watched.Mode = ratelimit.Shadow
			c := s.caller(t, watched, enforced)
			out := c.charge(ratelimit.Take, 5, 1)
			require.EqualValues(t, 5, out.Admitted, "a shadow limit refuses nothing")
			require.EqualValues(t, 3, out.Counters[0].Used, "and is charged with what fits")
			require.EqualValues(t, 3, out.Counters[0].Charged)
			require.EqualValues(t, 5, out.Counters[1].Used)
			out = c.charge(ratelimit.Take, 9, 1)
			require.EqualValues(t, 5, out.Admitted)
			require.EqualValues(t, 3, out.Counters[0].Used)
			require.Zero(t, out.Counters[0].Charged)
			require.Positive(t, out.Counters[0].RetryAfter)
		})
	}
	s.Run("mixed algorithms", func(t *testing.T) {
		var limits []*ratelimit.Limit
		for i, a := range algorithms() {
			limits = append(limits, limit(a, int64(10-i), 10*time.Second))
		}
		c := s.caller(t, limits...)
		out := c.charge(ratelimit.Take, 99, 1)
		require.EqualValues(t, 6, out.Admitted, "the smallest quota")
		for i := range out.Counters {
			require.EqualValues(t, 6, out.Counters[i].Used)
		}
	})
}

// refunds: units come back, oldest first, and never more than there are.
func (s *suite) refunds() {
	s.each("give room back", 10, func(c *caller) {
		require.Equal(c, 10, c.admitted(11))
		out := c.charge(ratelimit.Refund, 1, 4) // B012: it works at remaining 0
		require.EqualValues(c, 1, out.Admitted)
		require.EqualValues(c, 6, out.Counters[0].Used)
		require.Zero(c, out.Counters[0].Charged)
		require.Zero(c, out.Counters[0].RetryAfter, "four fit again")
		require.Equal(c, 4, c.admitted(9))
	})
	s.each("never below nothing used", 10, func(c *caller) {
		out := c.charge(ratelimit.Refund, 3, 5)
		require.EqualValues(c, 3, out.Admitted)
		require.Zero(c, out.Counters[0].Used)
		require.Equal(c, 2, c.admitted(2))
		out = c.charge(ratelimit.Refund, 1_000_000, ratelimit.MaxCost)
		require.Zero(c, out.Counters[0].Used)
		require.EqualValues(c, 10, out.Counters[0].Remaining)
		require.Equal(c, 10, c.admitted(20), "no quota was made")
	})
	s.each("of an expired counter does nothing", 10, func(c *caller) {
		require.Equal(c, 5, c.admitted(5))
		c.advance(25 * time.Second)
		out := c.charge(ratelimit.Refund, 1, 3)
		require.Zero(c, out.Counters[0].Used)
		require.Equal(c, 10, c.admitted(20))
	})
	s.Run("oldest first", func(t *testing.T) {
		c := s.caller(t, limit(ratelimit.SlidingWindowLog, 10, 10*time.Second))
		s.alignedTo(10*time.Second, 0)
		c.take(4)
		c.advance(5 * time.Second)
		c.take(6)
		c.charge(ratelimit.Refund, 1, 5)
		_, state := c.peek(6)
		require.EqualValues(t, 5, state.Used)
		require.Greater(t, state.RetryAfter, 5*time.Second, "the first four are gone; what is left is the later hit's")
	})
}
