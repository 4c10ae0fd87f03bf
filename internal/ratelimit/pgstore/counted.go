package pgstore

import (
	"math"
	"slices"
	"time"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

const (
	// perSpan is how many segments a span is cut into: the error is one of them.
	perSpan = 8
	// minSpan is the least span counted, in µs: a bucket that is whole again sooner is counted by the second.
	minSpan = 1_000_000
)

// counted is how Postgres counts one limit for hits of one cost: as units in the segments of the last span. All times are µs.
type counted struct {
	limit *ratelimit.Limit
	// units one hit takes.
	units int64
	// quota is what may be used within a span. It is above the limit's own for a bucket that is whole again in less than
	// minSpan, which gives out more than its capacity in a second.
	quota int64
	// span is how far back units count; 0 for a fixed window, whose units count as long as their segment lasts.
	span int64
	// segment is the length of one row's time.
	segment int64
}

// segments are a counter's live rows, newest first.
type segments struct {
	starts, counts []int64
}

// add is a charge of units to the row that starts then. Usually it is the newest or a new one; after a backward step of
// the clock it may be any.
func (s *segments) add(start, units int64) {
	i := 0
	for i < len(s.starts) && s.starts[i] > start {
		i++
	}
	if i < len(s.starts) && s.starts[i] == start {
		s.counts[i] += units
		return
	}
	s.starts = slices.Insert(s.starts, i, start)
	s.counts = slices.Insert(s.counts, i, units)
}

// refund gives units back, oldest first.
func (s *segments) refund(units int64) {
	for i := len(s.counts) - 1; i >= 0; i-- {
		taken := min(units, s.counts[i])
		s.counts[i] -= taken
		units -= taken
	}
}

// countedBy is the form of the limit that rows can hold (ratelimit/README.md, the last paragraphs).
func countedBy(l *ratelimit.Limit, cost int64) counted {
	c := counted{limit: l, units: l.UnitsPerHit(cost), quota: l.Quota}
	if l.Algorithm == ratelimit.FixedWindow {
		c.segment = max(1, l.Window.Microseconds())
		return c
	}
	c.span = l.Span().Microseconds()
	if c.span < minSpan {
		c.span = minSpan
		if l.Algorithm.Bucket() && l.Quota > 0 {
			c.quota = max(l.Quota, perSecond(l.Refill))
		}
	}
	c.segment = c.span / perSpan
	return c
}

// perSecond is a rate's whole units in a second, at most MaxQuota.
func perSecond(r ratelimit.Rate) int64 {
	every := r.Every.Microseconds()
	if every <= 0 {
		return 0
	}
	return min(timesUpTo(r.Units, 1_000_000)/every, ratelimit.MaxQuota)
}

// room is the quota that hits of this cost see: none when a single hit is more than the limit can ever hold.
func (c counted) room() int64 {
	if c.units > c.limit.Quota {
		return 0
	}
	return c.quota
}

// rows is how many of the live rows count: of a fixed window only the newest, which after a backward step of the clock is
// not the only one.
func (c counted) rows() int32 {
	if c.span == 0 {
		return 1
	}
	return math.MaxInt32
}

// state is the answer for a counter whose live rows, after the charge, are these. passed is how many of the charge's hits
// this limit let through.
func (c counted) state(live segments, now, passed int64, kind ratelimit.Kind) ratelimit.CounterState {
	var used int64
	for _, n := range live.counts {
		used += n
	}
	state := ratelimit.CounterState{
		Used:       min(used, c.limit.Quota),
		Remaining:  max(0, c.limit.Quota-used),
		ResetAfter: c.resetAfter(live, now),
		RetryAfter: c.retryAfter(live, now, used),
		Effective:  ratelimit.SlidingWindowSegments,
	}
	if c.limit.Algorithm == ratelimit.FixedWindow {
		state.Effective = ratelimit.FixedWindow
	}
	if kind == ratelimit.Take && c.units > 0 {
		state.Charged = passed
	}
	if c.limit.Algorithm == ratelimit.LeakyBucket && kind != ratelimit.Refund && passed > 0 {
		state.Delay = c.outflow(used - state.Charged*c.units)
		state.DelayStep = c.outflow(c.units)
	}
	return state
}

// leaves is how long until the row that starts then counts no more.
func (c counted) leaves(start, now int64) time.Duration {
	return min(time.Duration(start+c.segment+c.span-now)*time.Microsecond, ratelimit.MaxSpan)
}

// resetAfter is how long until the newest row that holds anything has left.
func (c counted) resetAfter(live segments, now int64) time.Duration {
	for i, start := range live.starts {
		if live.counts[i] > 0 {
			return c.leaves(start, now)
		}
	}
	return 0
}

// retryAfter is how long until the oldest rows that free enough for one more hit have left.
func (c counted) retryAfter(live segments, now, used int64) time.Duration {
	if c.quota == 0 || c.units > c.limit.Quota {
		return ratelimit.Never
	}
	if c.units == 0 || used+c.units <= c.quota {
		return 0
	}
	for i := len(live.starts) - 1; i >= 0; i-- {
		used -= live.counts[i]
		if used+c.units <= c.quota {
			return c.leaves(live.starts[i], now)
		}
	}
	return 0
}

// outflow is how long a leaky bucket takes to let the units out, rounded up to µs.
func (c counted) outflow(units int64) time.Duration {
	r := c.limit.Refill
	if r.Units <= 0 || units <= 0 {
		return 0
	}
	us := float64(units) * float64(r.Every.Microseconds()) / float64(r.Units)
	d := time.Duration(us) * time.Microsecond
	if float64(d.Microseconds()) < us {
		d += time.Microsecond
	}
	return min(d, ratelimit.MaxSpan)
}
