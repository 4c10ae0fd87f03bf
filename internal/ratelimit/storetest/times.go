package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// times: windows end when they should, for everybody, and a clock that goes back frees nothing.
func (s *suite) times() {
	s.each("steady traffic within the quota is never refused", 10, func(c *caller) {
		// B003: 1.5 s apart at 10 per 10 s, for a minute.
		for i := range 40 {
			ok, _ := c.take(1)
			require.True(c, ok, "hit %d", i+1)
			c.advance(1500 * time.Millisecond)
		}
	})
	s.Run("a clock that goes back over an edge frees nothing", s.backOverTheEdge)
	s.Run("traffic above the quota gets the quota in every window", s.everyMinute)
	s.Run("a hit exactly one window old is gone", s.boundary)
	s.Run("the end of a fixed window does not move", s.fixedReset)
	s.Run("a window is identified by its start", s.windowIdentity)
	s.Run("no double burst at the edge", s.edgeBurst)
	s.each("waiting ResetAfter makes it whole", 10, func(c *caller) {
		c.take(3)
		c.advance(700 * time.Millisecond)
		_, state := c.take(4)
		c.advance(state.ResetAfter)
		_, state = c.peek(1)
		require.Zero(c, state.Used)
		require.Zero(c, state.ResetAfter)
		require.Equal(c, 10, c.admitted(20))
	})
	s.each("a clock that goes back frees nothing", 10, func(c *caller) {
		s.alignedTo(10*time.Second, 5*time.Second)
		require.Equal(c, 10, c.admitted(10))
		c.advance(-4 * time.Second)
		ok, state := c.take(1)
		require.False(c, ok)
		require.EqualValues(c, 10, state.Used)
		c.advance(state.RetryAfter)
		ok, _ = c.take(1)
		require.True(c, ok, "and the wait is still the right one")
	})
}

// backOverTheEdge: a window that has begun stays the current one when the clock steps back out of it.
func (s *suite) backOverTheEdge(t *testing.T) {
	for _, a := range algorithms() {
		if s.factory.Strictness == Segmented && a == ratelimit.FixedWindow {
			continue
		}
		c := s.caller(t, limit(a, 10, 10*time.Second))
		s.alignedTo(10*time.Second, time.Second)
		require.Equal(t, 10, c.admitted(10))
		c.advance(-3 * time.Second)
		ok, state := c.take(1)
		require.False(t, ok, a)
		require.EqualValues(t, 10, state.Used, a)
		require.GreaterOrEqual(t, state.ResetAfter, state.RetryAfter, a)
		c.advance(state.RetryAfter)
		require.Positive(t, c.admitted(1), a)
	}
}

// everyMinute: B003: 150 a minute at 100 per minute: 100 get through in each of three minutes.
func (s *suite) everyMinute(t *testing.T) {
	for _, a := range []ratelimit.Algorithm{ratelimit.SlidingWindowLog, ratelimit.FixedWindow} {
		c := s.caller(t, limit(a, 100, time.Minute))
		s.alignedTo(time.Minute, 0)
		for minute := range 3 {
			admitted := 0
			for range 150 {
				admitted += c.admitted(1)
				c.advance(400 * time.Millisecond)
			}
			if s.segmented(a) {
				require.LessOrEqual(t, admitted, 100, "%s, minute %d", a, minute)
				require.GreaterOrEqual(t, admitted, 80, "%s, minute %d", a, minute)
				continue
			}
			require.InDelta(t, 100, admitted, 1, "%s, minute %d", a, minute)
		}
	}
}

// boundary: B005: the boundary belongs to the new window.
func (s *suite) boundary(t *testing.T) {
	for _, quota := range []int64{5, 5000} {
		c := s.caller(t, limit(ratelimit.SlidingWindowLog, quota, 16*time.Second))
		s.alignedTo(16*time.Second, 0)
		out := c.charge(ratelimit.Take, quota, 1)
		require.Equal(t, quota, out.Admitted)
		end := 16 * time.Second
		if s.segmented(ratelimit.SlidingWindowLog) {
			end += 2 * time.Second
		}
		c.advance(end - time.Microsecond)
		ok, state := c.take(1)
		require.False(t, ok)
		require.Equal(t, time.Microsecond, state.RetryAfter)
		c.advance(time.Microsecond)
		ok, state = c.take(1)
		require.True(t, ok)
		require.Equal(t, quota-1, state.Remaining)
	}
}

// fixedReset: B007: the absolute end stays the same for all 30 calls of a window.
func (s *suite) fixedReset(t *testing.T) {
	c := s.caller(t, limit(ratelimit.FixedWindow, 20, 10*time.Second))
	s.alignedTo(10*time.Second, 100*time.Millisecond)
	end := s.clock.Now() + 9_900_000
	for range 30 {
		ok, state := c.take(1)
		require.Equal(t, end, s.clock.Now()+state.ResetAfter.Microseconds())
		if !ok {
			require.Equal(t, state.ResetAfter, state.RetryAfter)
		}
		c.advance(300 * time.Millisecond)
	}
}

// windowIdentity: B019: a call just after the edge starts a window of its own.
func (s *suite) windowIdentity(t *testing.T) {
	c := s.caller(t, limit(ratelimit.FixedWindow, 10, time.Minute))
	s.alignedTo(time.Minute, 58_700*time.Millisecond)
	require.Equal(t, 7, c.admitted(7))
	c.advance(1400 * time.Millisecond)
	_, state := c.take(1)
	require.EqualValues(t, 1, state.Used)
	c.charge(ratelimit.Refund, 1, 7)
	require.Equal(t, 10, c.admitted(20), "a refund of the old window does not reach into the new one's future")
}

// edgeBurst: B018: bursts aimed at 50 ms around the edge of round minutes.
func (s *suite) edgeBurst(t *testing.T) {
	for _, test := range []struct {
		algorithm ratelimit.Algorithm
		most      int
	}{
		{ratelimit.SlidingWindowLog, 10},
		{ratelimit.SlidingWindowCounter, 10},
		{ratelimit.FixedWindow, 20},
	} {
		c := s.caller(t, limit(test.algorithm, 10, time.Minute))
		s.alignedTo(time.Minute, -50*time.Millisecond)
		admitted := c.admitted(15)
		require.Equal(t, 10, admitted)
		for range 10 {
			c.advance(10 * time.Millisecond)
			admitted += c.admitted(5)
		}
		require.Equal(t, test.most, admitted, test.algorithm)
	}
}

// buckets: bursts are earned, refill is steady however slow, and a queue says how long to wait.
func (s *suite) buckets() {
	if s.factory.Strictness == Segmented {
		s.Run("slow refill", func(t *testing.T) { s.slowRefill(t, time.Second, 13) })
		return
	}
	s.Run("capacity and refill are two settings", func(t *testing.T) {
		l := limit(ratelimit.TokenBucket, 10, time.Second)
		l.Refill.Units = 1
		c := s.caller(t, l)
		require.Equal(t, 10, c.admitted(11))
		_, state := c.peek(1)
		require.Equal(t, time.Second, state.RetryAfter)
		require.Equal(t, 10*time.Second, state.ResetAfter)
		c.advance(time.Second)
		require.Equal(t, 1, c.admitted(5))
		c.advance(time.Hour)
		require.Equal(t, 10, c.admitted(20), "never more than its capacity")
	})
	s.Run("slow refill", func(t *testing.T) {
		s.slowRefill(t, time.Second, 11)
		s.slowRefill(t, 6*time.Minute, 11)
	})
	s.Run("a leaky bucket queues", func(t *testing.T) {
		l := limit(ratelimit.LeakyBucket, 60, time.Second)
		l.Refill.Units = 30
		c := s.caller(t, l)
		out := c.charge(ratelimit.Take, 1, 1)
		require.Zero(t, out.Counters[0].Delay, "the first one does not wait")
		out = c.charge(ratelimit.Take, 2, 1)
		require.Equal(t, 33334*time.Microsecond, out.Counters[0].Delay)
		require.Equal(t, 33334*time.Microsecond, out.Counters[0].DelayStep)
		out = c.charge(ratelimit.Peek, 1, 3)
		require.Equal(t, 100*time.Millisecond, out.Counters[0].Delay)
		require.Equal(t, 100*time.Millisecond, out.Counters[0].DelayStep)
		out = c.charge(ratelimit.Take, 99, 1)
		require.EqualValues(t, 57, out.Admitted)
		require.Equal(t, 100*time.Millisecond, out.Counters[0].Delay)
		out = c.charge(ratelimit.Take, 1, 1)
		require.Zero(t, out.Admitted, "a full queue refuses")
		require.Zero(t, out.Counters[0].Delay)
		require.Zero(t, out.Counters[0].DelayStep)
	})
	s.Run("a clock that was wrong holds a bucket up for a minute at most", func(t *testing.T) {
		for _, a := range []ratelimit.Algorithm{ratelimit.TokenBucket, ratelimit.LeakyBucket} {
			c := s.caller(t, limit(a, 10, 10*time.Second))
			c.advance(365 * 24 * time.Hour)
			require.Equal(t, 10, c.admitted(12))
			c.advance(-365 * 24 * time.Hour)
			ok, state := c.take(1)
			require.False(t, ok, "going back frees nothing")
			require.Equal(t, time.Second, state.RetryAfter)
			c.advance(time.Second)
			require.Equal(t, 1, c.admitted(5))
			c.advance(-30 * time.Second)
			ok, state = c.take(1)
			require.False(t, ok)
			require.Equal(t, 31*time.Second, state.RetryAfter, "nothing is credited until the clock catches up")
			c.advance(31 * time.Second)
			require.Equal(t, 1, c.admitted(5))
		}
	})
}

// slowRefill: polling far more often than the refill neither starves nor rounds to nothing: ten units of refill let ten
// more hits in. most is how many may get through in all after the first ten.
func (s *suite) slowRefill(t *testing.T, every time.Duration, most int) {
	t.Helper()
	for _, a := range []ratelimit.Algorithm{ratelimit.TokenBucket, ratelimit.LeakyBucket} {
		l := limit(a, 10, every)
		l.Refill.Units = 1
		c := s.caller(t, l)
		require.Equal(t, 10, c.admitted(10))
		admitted := 0
		for range 500 {
			c.advance(every / 50)
			admitted += c.admitted(1)
		}
		require.LessOrEqual(t, admitted, most)
		if s.segmented(a) {
			require.Positive(t, admitted+c.afterReset())
			continue
		}
		require.InDelta(t, 10, admitted, 1)
	}
}

// afterReset waits until the counter is whole and returns how many hits then get through.
func (c *caller) afterReset() int {
	c.Helper()
	_, state := c.peek(1)
	c.advance(state.ResetAfter)
	return c.admitted(1)
}
