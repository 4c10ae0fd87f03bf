package storetest

import (
	"fmt"
	"time"

	"pgregory.net/rapid"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// oracle knows no algorithm: it keeps every unit ever admitted by one limit with its time.
type oracle struct {
	limit *ratelimit.Limit
	at    []int64 // µs, in the order admitted
	units []int64
}

func (o *oracle) admit(now, units int64) {
	if units > 0 {
		o.at = append(o.at, now)
		o.units = append(o.units, units)
	}
}

// since is how many units were admitted after the given time.
func (o *oracle) since(after int64) int64 {
	sum := int64(0)
	for i := len(o.at) - 1; i >= 0; i-- {
		if o.at[i] > after {
			sum += o.units[i]
		}
	}
	return sum
}

// tooLoose says what is wrong when more was admitted up to now than the limit's algorithm may ever let through.
func (o *oracle) tooLoose(now int64, segmented bool) string {
	l := o.limit
	window := l.Span().Microseconds()
	exact := map[string]int64{}
	switch {
	case l.Algorithm == ratelimit.FixedWindow:
		exact["any two windows' edge"] = 2*l.Quota - o.since(now-window)
		exact["one aligned window"] = l.Quota - o.since(now/window*window-1)
	case l.Algorithm.Bucket() && segmented:
		// A bucket that refills within a second is counted over a whole one, with what a second refills.
		most := max(l.Quota, int64(float64(l.Refill.Units)*1e6/float64(l.Refill.Every.Microseconds())))
		exact["any trailing span"] = most - o.since(now-max(l.Span(), time.Second).Microseconds())
	case l.Algorithm.Bucket():
		return o.bucketTooLoose(now)
	case l.Algorithm == ratelimit.SlidingWindowCounter && !segmented:
		exact["any trailing window"] = max(0, 2*l.Quota-1) - o.since(now-window)
		exact["one aligned window"] = l.Quota - o.since(now/window*window-1)
	default:
		exact["any trailing window"] = l.Quota - o.since(now-window)
	}
	for where, room := range exact {
		if room < 0 {
			return fmt.Sprintf("%s: %d units too many within %s at %d", l, -room, where, now)
		}
	}
	return ""
}

// bucketTooLoose: over any span of time a bucket lets its capacity through, and what is refilled meanwhile.
func (o *oracle) bucketTooLoose(now int64) string {
	sum := int64(0)
	for i := len(o.at) - 1; i >= 0; i-- {
		sum += o.units[i]
		refilled := float64(now-o.at[i]) * float64(o.limit.Refill.Units) / float64(o.limit.Refill.Every.Microseconds())
		if excess := float64(sum) - float64(o.limit.Quota) - refilled; excess > 1e-3+1e-9*float64(o.limit.Quota) {
			return fmt.Sprintf("%s: %g units too many from %d to %d", o.limit, excess, o.at[i], now)
		}
	}
	return ""
}

// tooStrict says what is wrong when one more hit of units was refused now although even the stated worst case leaves
// room for it. Only the log states one.
func (o *oracle) tooStrict(now, units int64, segmented bool) string {
	l := o.limit
	window := l.Span().Microseconds()
	var margin int64
	switch {
	case units > l.Quota:
		return ""
	case l.Algorithm == ratelimit.FixedWindow:
		if used := o.since(now/window*window - 1); used+units <= l.Quota {
			return fmt.Sprintf("%s: %d units refused at %d with %d used in this window", l, units, now, used)
		}
		return ""
	case segmented && !l.Algorithm.Bucket():
		margin = window / 8
	case l.Algorithm == ratelimit.SlidingWindowLog:
		// Entries of one instant are a microsecond apart, slots of a large quota 1/900 of the window long.
		margin = int64(len(o.at))
		if l.Quota > 1024 {
			margin += window/900 + 1
		}
	default:
		return ""
	}
	if used := o.since(now - window - margin - 1); used+units <= l.Quota {
		return fmt.Sprintf("%s: %d units refused at %d with %d used in the last window and margin", l, units, now, used)
	}
	return ""
}

// neverLooser: time goes forward, quotas stay, and the oracle holds the store to the bound of each algorithm.
func (s *suite) neverLooser() {
	rapid.Check(s.T, func(t *rapid.T) {
		l := drawLimit(t, "limit")
		l.Quota = rapid.SampledFrom([]int64{1, 2, 3, 5, 10, 60, 100, 1024, 1025, 20_000}).Draw(t, "quota")
		l.Mode = ratelimit.Enforce
		if l.Algorithm.Bucket() {
			l.Refill = drawRefill(t, l.Quota)
		}
		segmented := s.factory.Strictness == Segmented
		o := &oracle{limit: l}
		counter := []ratelimit.Counter{{Key: ratelimit.CounterKey(ratelimit.Subject{Group: s.group()}, l), Limit: l}}
		span := max(time.Second, l.Span())
		s.begin(t)
		s.alignedTo(span, -50*time.Millisecond) // bursts aimed at the edge
		for range rapid.IntRange(1, 2*s.factory.Steps).Draw(t, "steps") {
			s.clock.Advance(drawPause(t, span))
			hits := rapid.SampledFrom([]int64{1, 1, 2, max(1, l.Quota/3), l.Quota}).Draw(t, "hits")
			cost := rapid.SampledFrom([]int64{1, 1, 2, max(1, l.Quota/4)}).Draw(t, "cost")
			got := s.one(t, ratelimit.Charge{Kind: ratelimit.Take, Counters: counter, Hits: hits, Cost: cost})
			now, units := s.clock.Now(), l.UnitsPerHit(cost)
			o.admit(now, got.Admitted*units)
			if wrong := o.tooLoose(now, segmented); wrong != "" {
				t.Fatal(wrong)
			}
			if got.Admitted < hits {
				if wrong := o.tooStrict(now, units, segmented); wrong != "" {
					t.Fatal(wrong)
				}
			}
		}
	})
}

// drawPause is mostly short, so that counters fill, and otherwise around the edges of the span.
func drawPause(t *rapid.T, span time.Duration) time.Duration {
	pause := rapid.SampledFrom([]time.Duration{
		0, 0, 10 * time.Millisecond, 50 * time.Millisecond, span / 900, span / 20, span / 8, span / 3,
		span - 20*time.Millisecond, span - time.Microsecond, span,
	}).Draw(t, "pause")
	return max(0, pause).Truncate(time.Microsecond)
}

// one decides a single charge on the store under test.
func (s *suite) one(t *rapid.T, charge ratelimit.Charge) ratelimit.Outcome {
	out := make([]ratelimit.Outcome, 1)
	if err := s.store.Decide(s.Context(), []ratelimit.Charge{charge}, out); err != nil {
		t.Fatalf("the store failed: %v", err)
	}
	if out[0].Err != nil {
		t.Fatalf("the charge failed: %v", out[0].Err)
	}
	return out[0]
}

// honestWaits: B016: in any state that refuses, waiting as long as it says lets one more hit in, and waiting a little
// less does not.
func (s *suite) honestWaits() {
	rapid.Check(s.T, func(t *rapid.T) {
		l := drawLimit(t, "limit")
		l.Quota = max(1, l.Quota)
		l.Mode = ratelimit.Enforce
		counter := []ratelimit.Counter{{Key: ratelimit.CounterKey(ratelimit.Subject{Group: s.group()}, l), Limit: l}}
		span := max(time.Second, l.Span())
		s.begin(t)
		for range rapid.IntRange(1, s.factory.Steps).Draw(t, "steps") {
			s.clock.Advance(drawPause(t, span))
			if s.factory.Strictness == Exact && rapid.IntRange(0, 9).Draw(t, "back") == 0 {
				s.clock.Advance(-(span / 5).Truncate(time.Microsecond))
			}
			charge := ratelimit.Charge{
				Kind: ratelimit.Take, Counters: counter,
				Hits: rapid.SampledFrom([]int64{1, 3, max(1, l.Quota/3), l.Quota}).Draw(t, "hits"),
				Cost: rapid.SampledFrom([]int64{1, 1, 2, min(ratelimit.MaxCost, max(1, l.Quota/4))}).Draw(t, "cost"),
			}
			got := s.one(t, charge)
			s.checkWait(t, charge, got.Counters[0].RetryAfter)
		}
	})
}

// checkWait moves the clock to just before and just after the wait, peeks, and moves it back.
func (s *suite) checkWait(t *rapid.T, charge ratelimit.Charge, wait time.Duration) {
	l := charge.Counters[0].Limit
	charge.Kind, charge.Hits = ratelimit.Peek, 1
	if wait == ratelimit.Never {
		if l.UnitsPerHit(charge.Cost) <= l.Quota {
			t.Fatalf("%s: never, for a cost of %d", l, charge.Cost)
		}
		return
	}
	if s.fitsAfter(t, charge, wait) != 1 {
		t.Fatalf("%s: refused after waiting %s for a cost of %d", l, wait, charge.Cost)
	}
	short := 2 * time.Microsecond
	if l.Algorithm.Bucket() && !s.segmented(l.Algorithm) {
		// A bucket may let a hit in a millionth of a unit early.
		tolerance := max(1e-6, 4e-15*float64(l.Quota)) * float64(l.Refill.Every) / float64(l.Refill.Units)
		short += time.Duration(tolerance) + time.Microsecond
	}
	if wait > short && s.fitsAfter(t, charge, wait-short) != 0 {
		t.Fatalf("%s: told to wait %s for a cost of %d, but %s less was enough", l, wait, charge.Cost, short)
	}
}

func (s *suite) fitsAfter(t *rapid.T, charge ratelimit.Charge, wait time.Duration) int64 {
	before := s.clock.Now()
	defer s.clock.Set(before)
	s.clock.Advance(wait)
	return s.one(t, charge).Admitted
}
