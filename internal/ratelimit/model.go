package ratelimit

import (
	"math"
	"time"
)

// model is one algorithm's maths on the state S of one counter. Every method is pure: `now` is an argument, S is a
// value, and a method that changes it returns the new one (like append, a log may reuse the old one's memory). The zero
// S is a counter that does not exist. All times are integer microseconds, never negative.
//
// The formulas, and the order of operations on doubles that Lua shares, are in README.md.
type model[S any] interface {
	// look reads how many hits of `units` fit at now; it may be far more than anybody asks for.
	look(l *Limit, now, units int64) look
	// take charges units that look said fit. Zero units are a Take that this counter lets nothing through for.
	take(l *Limit, now, units int64) S
	// refund takes up to units off, oldest first.
	refund(l *Limit, now, units int64) S
	// raise adds what the state shows less than is known, youngest first.
	raise(l *Limit, now int64, known []Portion) S
	// report answers for one more hit of `units`.
	report(l *Limit, now, units int64, out *CounterState)
	// deadAt is when the counter can be forgotten: it is whole by then, with a margin for small steps of the clock.
	deadAt(l *Limit, now int64) int64
}

// look is what a counter says before anything is written.
type look struct {
	fit int64
	// delay and step are a leaky bucket's: the wait of the first hit, and how much longer each next one waits.
	delay, step time.Duration
}

// boundless is the fit of hits that take nothing.
const boundless = int64(math.MaxInt64)

// hitsThatFit is ⌊(quota − used) ÷ units⌋, at least 0.
func hitsThatFit(quota, used, units int64) int64 {
	switch {
	case quota <= 0 || units > quota:
		return 0
	case units <= 0:
		return boundless
	}
	return max(0, quota-used) / units
}

// fill sets what follows from the quota and the use.
func fill(out *CounterState, l *Limit, used int64) {
	quota := max(0, l.Quota)
	*out = CounterState{Used: min(max(0, used), quota), Effective: l.Algorithm}
	out.Remaining = quota - out.Used
}

// waitOf turns microseconds into a Duration of 0…MaxSpan.
func waitOf(us int64) time.Duration {
	return time.Duration(min(max(0, us), MaxSpan.Microseconds())) * time.Microsecond
}

// waitOfFloat is waitOf for a double that may be beyond any integer.
func waitOfFloat(us float64) time.Duration {
	if us >= float64(MaxSpan.Microseconds()) {
		return MaxSpan
	}
	return waitOf(int64(us))
}

// windowOf is a limit's window in microseconds, never 0.
func windowOf(l *Limit) int64 { return max(1, l.Window.Microseconds()) }

// sinceThen is what was used less than `most` µs ago.
func sinceThen(known []Portion, most int64) (units int64) {
	for _, p := range known {
		if p.Age.Microseconds() < most {
			units += p.Units
		}
	}
	return units
}
