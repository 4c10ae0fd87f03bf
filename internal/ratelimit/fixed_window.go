package ratelimit

// windowState is a fixed window: the units of the window that began at start, which is aligned to the epoch.
type windowState struct{ start, count int64 }

// at moves on to the window that now is in, by the rules of pairState.at.
func (s windowState) at(window, now int64) windowState {
	aligned := now / window * window
	if s.start > now+window || aligned > s.start {
		return windowState{start: aligned}
	}
	return s
}

func (s windowState) look(l *Limit, now, units int64) look {
	return look{fit: hitsThatFit(l.Quota, s.at(windowOf(l), now).count, units)}
}

func (s windowState) take(l *Limit, now, units int64) windowState {
	if units <= 0 {
		return s
	}
	s = s.at(windowOf(l), now)
	s.count += units
	return s
}

func (s windowState) refund(l *Limit, now, units int64) windowState {
	moved := s.at(windowOf(l), now)
	if units <= 0 || moved.count == 0 {
		return s
	}
	moved.count = max(0, moved.count-units)
	return moved
}

func (s windowState) raise(l *Limit, now int64, known []Portion) windowState {
	moved := s.at(windowOf(l), now)
	if used := sinceThen(known, max(0, now-moved.start)+1); used > moved.count {
		moved.count = used
		return moved
	}
	return s
}

func (s windowState) report(l *Limit, now, units int64, out *CounterState) {
	window := windowOf(l)
	s = s.at(window, now)
	fill(out, l, s.count)
	if s.count > 0 {
		out.ResetAfter = waitOf(s.start + window - now)
	}
	switch {
	case neverUnlessFits(l, units) == Never:
		out.RetryAfter = Never
	case units > 0 && s.count > l.Quota-units:
		out.RetryAfter = waitOf(s.start + window - now)
	}
}

func (s windowState) deadAt(l *Limit, _ int64) int64 { return s.start + windowOf(l) + 1_000_000 }
