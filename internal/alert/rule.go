package alert

import "time"

// Rule says when a level is an incident and when the incident is over. Levels are seen now and then and hold for a while;
// the rule is about the curve they make.
//
// A stretch runs from the first moment at or above At to the last one, and survives Dip below it. An incident opens when a
// stretch has lasted For; it is over when the level has been below Below for Quiet without a break.
type Rule struct {
	// At is the level that counts as high; Below, less than At, is where it counts as low.
	At, Below       float64
	For, Quiet, Dip time.Duration
	// Hold is how long a level that was seen says something about the time after: a window, for a limit. After that the
	// level is 0, because nothing was seen any more.
	Hold time.Duration
	// Drains: the level falls evenly, by 1 in Hold (buckets), instead of standing until Hold is over.
	Drains bool
}

// Level is how high something stood at a moment: used ÷ quota for a limit, 0 or 1 for what is or is not.
type Level struct {
	Value float64
	At    time.Time
}

// State is what has to be remembered of one subject from one look to the next. The zero value knows nothing.
type State struct {
	// Last is the level that was seen last, AsOf how far the rule has been followed.
	Last Level
	AsOf time.Time
	// HighSince and HighAt are the first and the last high moment of the stretch; zero: there is none.
	HighSince, HighAt time.Time
	// Peak is the highest level of the stretch.
	Peak float64
	// Open: there is an incident. QuietSince is since when the level has been low meanwhile; zero: it is not.
	Open       bool
	QuietSince time.Time
}

// Turn is what happened to a subject.
type Turn uint8

// The turns.
const (
	Opened Turn = iota + 1
	Resolved
)

// Event is a turn and when it happened.
type Event struct {
	Turn Turn
	At   time.Time
	// Since and Peak are the stretch's.
	Since time.Time
	Peak  float64
}

// See takes a level into account, and everything that follows until its moment. A level that is older than what has been
// seen (from a replica that looked earlier and was heard later) can only raise: it never ends anything.
func (r *Rule) See(s *State, l Level) []Event {
	late := l.At.Before(s.AsOf)
	var events []Event
	if !late {
		events = r.Follow(s, l.At)
	}
	if !l.At.Before(s.Last.At) {
		s.Last = l
	}
	if l.Value >= r.At {
		r.raise(s, l)
	}
	switch {
	case l.Value >= r.Below && late && !s.QuietSince.IsZero():
		s.QuietSince = later(s.QuietSince, l.At)
	case l.Value >= r.Below:
		s.QuietSince = time.Time{}
	case !late && s.Open && s.QuietSince.IsZero():
		s.QuietSince = l.At
	}
	return events
}

// raise begins or continues a stretch.
func (r *Rule) raise(s *State, l Level) {
	switch {
	case s.HighSince.IsZero():
		s.HighSince, s.HighAt, s.Peak = l.At, l.At, l.Value
	case l.At.Before(s.HighSince) && s.HighSince.Sub(l.At) <= r.Dip:
		s.HighSince = l.At
	}
	s.HighAt, s.Peak = later(s.HighAt, l.At), max(s.Peak, l.Value)
}

// Follow takes the time until now into account, in which nothing new was seen. Between two levels the curve only falls, so at
// most one incident opens and then at most one ends.
func (r *Rule) Follow(s *State, now time.Time) (events []Event) {
	if s.AsOf.IsZero() || now.Before(s.AsOf) {
		s.AsOf = later(s.AsOf, now)
		return nil
	}
	s.AsOf = now
	if s.Last.Value >= r.At && !s.HighSince.IsZero() {
		s.HighAt = later(s.HighAt, earlier(now, r.fallsBelow(s.Last, r.At)))
	}
	if !s.Open && !s.HighSince.IsZero() && s.HighAt.Sub(s.HighSince) >= r.For {
		s.Open = true
		events = append(events, Event{Turn: Opened, At: s.HighSince.Add(r.For), Since: s.HighSince, Peak: s.Peak})
	}
	if !s.Open && !s.HighSince.IsZero() && now.Sub(s.HighAt) > r.Dip {
		s.HighSince, s.HighAt, s.Peak = time.Time{}, time.Time{}, 0
	}
	if !s.Open {
		return events
	}
	low := s.Last.At
	if s.Last.Value >= r.Below {
		low = r.fallsBelow(s.Last, r.Below)
	}
	if s.QuietSince.IsZero() && !now.Before(low) {
		s.QuietSince = low
	}
	if s.QuietSince.IsZero() || now.Sub(s.QuietSince) < r.Quiet {
		return events
	}
	events = append(events, Event{Turn: Resolved, At: s.QuietSince.Add(r.Quiet), Since: s.HighSince, Peak: s.Peak})
	*s = State{Last: s.Last, AsOf: now}
	return events
}

// fallsBelow is when a level that is at least `to` falls below it if nothing more is seen.
func (r *Rule) fallsBelow(l Level, to float64) time.Time {
	if !r.Drains {
		return l.At.Add(r.Hold)
	}
	return l.At.Add(time.Duration(min(1, l.Value-to) * float64(r.Hold)))
}

// LevelAt is the level at a moment after the last one seen.
func (r *Rule) LevelAt(s *State, now time.Time) float64 {
	since := now.Sub(s.Last.At)
	switch {
	case since > r.Hold:
		return 0
	case r.Drains && since > 0:
		return max(0, s.Last.Value-float64(since)/float64(r.Hold))
	}
	return s.Last.Value
}

// Idle reports whether a state says no more than the zero value: it need not be kept.
func (r *Rule) Idle(s *State, now time.Time) bool {
	return !s.Open && s.HighSince.IsZero() && r.LevelAt(s, now) < r.Below
}

// Bridge moves a state over a time in which nobody looked, so that it neither counts as low nor breaks a stretch.
func (s *State) Bridge(gap time.Duration) {
	s.AsOf, s.Last.At = s.AsOf.Add(gap), s.Last.At.Add(gap)
	if !s.HighAt.IsZero() {
		s.HighAt = s.HighAt.Add(gap)
	}
	if !s.QuietSince.IsZero() {
		s.QuietSince = s.QuietSince.Add(gap)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
