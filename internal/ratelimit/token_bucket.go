package ratelimit

import (
	"math"
	"time"
)

const (
	// bucketMaxAhead is how far in the future a bucket's time is believed: until the clock catches up nothing is credited.
	bucketMaxAhead = int64(60_000_000)
	// bucketMargin is how much longer than its refill a bucket is remembered, so that no step of the clock by less fills it.
	bucketMargin = 2 * bucketMaxAhead
)

// bucketState is a bucket by its level: the units taken and not yet refilled, as of ts.
type bucketState struct {
	ts    int64
	level float64
}

// rateOf is a bucket's refill: units every so many microseconds, neither of them 0.
func rateOf(l *Limit) (units, every float64) {
	return float64(max(1, l.Refill.Units)), float64(max(1, l.Refill.Every.Microseconds()))
}

// at credits what has been refilled by now. The result's ts is now, or later when the clock went back.
func (s bucketState) at(l *Limit, now int64) bucketState {
	ts := s.ts
	if ts > now+bucketMaxAhead {
		ts = now
	}
	if ts >= now {
		return bucketState{ts: ts, level: s.level}
	}
	units, every := rateOf(l)
	return bucketState{ts: now, level: max(0, s.level-float64(float64(now-ts)*units)/every)}
}

// tolerance absorbs the rounding of doubles between two readings of one stored level, in units.
func (s bucketState) tolerance(l *Limit) float64 {
	return max(1e-6, 4e-15*max(float64(l.Quota), s.level))
}

// drain is how long so many units take to be refilled, in whole microseconds.
func drain(l *Limit, level float64) float64 {
	units, every := rateOf(l)
	return math.Ceil(float64(level*every) / units)
}

// fit is how many hits of `units` fit; level is s.level after crediting.
func (s bucketState) fit(l *Limit, level float64, units int64) int64 {
	switch {
	case l.Quota <= 0 || units > l.Quota:
		return 0
	case units <= 0:
		return boundless
	}
	return max(0, int64(math.Floor((float64(l.Quota)-level+s.tolerance(l))/float64(units))))
}

func (s bucketState) look(l *Limit, now, units int64) look {
	return look{fit: s.fit(l, s.at(l, now).level, units)}
}

func (s bucketState) take(l *Limit, now, units int64) bucketState {
	if units > 0 {
		s = s.at(l, now)
		s.level += float64(units)
		return s
	}
	if s.ts > now+bucketMaxAhead {
		s.ts = now // the repair: or a full bucket would stay full until the wrong clock's time comes
	}
	return s
}

func (s bucketState) refund(l *Limit, now, units int64) bucketState {
	credited := s.at(l, now)
	if units <= 0 || credited.level == 0 {
		return s
	}
	credited.level = max(0, credited.level-float64(units))
	return credited
}

// raise lifts the level to what is left of what is known: it has been draining since.
func (s bucketState) raise(l *Limit, now int64, known []Portion) bucketState {
	credited := s.at(l, now)
	level := min(float64(l.Quota), levelOf(l, known))
	if level <= credited.level {
		return s
	}
	credited.level = level
	return credited
}

// levelOf is a bucket's level after portions that were taken so long ago.
func levelOf(l *Limit, known []Portion) (level float64) {
	units, every := rateOf(l)
	for i := len(known) - 1; i >= 0; i-- {
		younger := int64(0)
		if i > 0 {
			younger = known[i-1].Age.Microseconds()
		}
		level += float64(known[i].Units)
		level = max(0, level-float64(float64(known[i].Age.Microseconds()-younger)*units)/every)
	}
	return level
}

func (s bucketState) report(l *Limit, now, units int64, out *CounterState) {
	credited := s.at(l, now)
	ahead := float64(credited.ts - now)
	fill(out, l, int64(math.Ceil(credited.level-s.tolerance(l))))
	if credited.level > 0 {
		out.ResetAfter = waitOfFloat(ahead + drain(l, credited.level))
	}
	switch {
	case neverUnlessFits(l, units) == Never:
		out.RetryAfter = Never
	case s.fit(l, credited.level, units) < 1:
		wait := ahead + drain(l, credited.level+float64(units)-float64(l.Quota))
		out.RetryAfter = max(time.Microsecond, waitOfFloat(wait))
	}
}

func (s bucketState) deadAt(l *Limit, now int64) int64 {
	credited := s.at(l, now)
	return credited.ts + waitOfFloat(drain(l, credited.level)).Microseconds() + bucketMargin
}
