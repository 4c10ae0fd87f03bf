package ratelimit

import "math"

// pairState is a sliding window counter: the units of the window that began at start, and of the one before it.
type pairState struct{ start, prev, cur int64 }

// at moves the pair on to the window that now is in. A clock that went back stays in the newest window; a start more
// than one window ahead was written under a wrong clock and reads as empty.
func (s pairState) at(window, now int64) pairState {
	aligned := now / window * window
	switch {
	case s.start > now+window:
		return pairState{start: aligned}
	case aligned <= s.start:
		return s
	case aligned-s.start == window:
		return pairState{start: aligned, prev: s.cur}
	}
	return pairState{start: aligned}
}

// weighted is what of the previous window's units still counts at e microseconds into the current one, rounded up.
func weighted(prev, window, e int64) int64 {
	return int64(math.Ceil(float64(prev) * (float64(window-e) / float64(window))))
}

// fadesTo is the least e in 0…window at which no more than rest of prev units count. The guess is within a few steps of
// it, because `weighted` rounds by less than the share of one microsecond or two.
func fadesTo(prev, window, rest int64) int64 {
	if prev <= rest {
		return 0
	}
	e := window - int64(math.Floor(float64(float64(rest)*float64(window))/float64(prev)))
	e = min(max(0, e), window)
	for e > 0 && weighted(prev, window, e-1) <= rest {
		e--
	}
	for e < window && weighted(prev, window, e) > rest {
		e++
	}
	return e
}

// used is the estimate over the trailing window. s has been moved to now.
func (s pairState) used(window, now int64) int64 {
	return weighted(s.prev, window, max(0, now-s.start)) + s.cur
}

func (s pairState) look(l *Limit, now, units int64) look {
	window := windowOf(l)
	return look{fit: hitsThatFit(l.Quota, s.at(window, now).used(window, now), units)}
}

func (s pairState) take(l *Limit, now, units int64) pairState {
	if units <= 0 {
		return s
	}
	s = s.at(windowOf(l), now)
	s.cur += units
	return s
}

// refund takes from the previous window first: as many of its whole units as lower the estimate by no more than the
// refund; what the estimate did not fall by comes off the current one.
func (s pairState) refund(l *Limit, now, units int64) pairState {
	window := windowOf(l)
	moved := s.at(window, now)
	if units <= 0 || (moved.prev == 0 && moved.cur == 0) {
		return s
	}
	e := max(0, now-moved.start)
	before := weighted(moved.prev, window, e)
	off := math.Floor(float64(float64(units)*float64(window)) / float64(window-e))
	if off >= float64(moved.prev) {
		moved.prev = 0
	} else {
		moved.prev -= int64(off)
	}
	rest := max(0, units-(before-weighted(moved.prev, window, e)))
	moved.cur = max(0, moved.cur-rest)
	return moved
}

// raise puts what is missing into the previous window, as far as it is known to be from there, and else into the current one.
func (s pairState) raise(l *Limit, now int64, known []Portion) pairState {
	window := windowOf(l)
	moved := s.at(window, now)
	e := max(0, now-moved.start)
	cur := sinceThen(known, e+1)
	prev := sinceThen(known, e+window+1) - cur
	want := weighted(prev, window, e) + cur
	missing := want - moved.used(window, now)
	if missing <= 0 {
		return s
	}
	if prev > moved.prev {
		fills := math.Floor(float64(float64(missing)*float64(window)) / float64(window-e))
		moved.prev = int64(min(float64(prev), float64(moved.prev)+fills))
	}
	moved.cur += max(0, want-moved.used(window, now))
	return moved
}

func (s pairState) report(l *Limit, now, units int64, out *CounterState) {
	window := windowOf(l)
	s = s.at(window, now)
	used := s.used(window, now)
	fill(out, l, used)
	switch {
	case s.cur > 0:
		out.ResetAfter = waitOf(s.start + 2*window - now)
	case s.prev > 0:
		out.ResetAfter = waitOf(s.start + window - now)
	}
	switch {
	case neverUnlessFits(l, units) == Never:
		out.RetryAfter = Never
	case units <= 0 || used <= l.Quota-units:
	case s.cur <= l.Quota-units:
		out.RetryAfter = waitOf(s.start + fadesTo(s.prev, window, l.Quota-units-s.cur) - now)
	default:
		out.RetryAfter = waitOf(s.start + window + fadesTo(s.cur, window, l.Quota-units) - now)
	}
}

func (s pairState) deadAt(l *Limit, _ int64) int64 { return s.start + 2*windowOf(l) + 1_000_000 }
