package storetest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// quotasOfInterest are around every bound that an algorithm changes its behaviour at.
func quotasOfInterest() []int64 {
	return []int64{0, 1, 2, 3, 5, 10, 60, 100, 1023, 1024, 1025, 20_000, 1_000_000, ratelimit.MaxQuota}
}

// drawLimit draws a limit; a bucket's rate is one that refills it within a few days, so that no wait reaches MaxSpan.
func drawLimit(t *rapid.T, name string) *ratelimit.Limit {
	l := &ratelimit.Limit{
		Name:      name,
		Scope:     ratelimit.ScopeTenant,
		Algorithm: rapid.SampledFrom(algorithms()).Draw(t, "algorithm"),
		Quota:     drawQuota(t),
		Cost:      rapid.SampledFrom([]int64{1, 1, 1, 1, 3, 1000}).Draw(t, "multiplier"),
		Mode:      rapid.SampledFrom([]ratelimit.Mode{ratelimit.Enforce, ratelimit.Enforce, ratelimit.Shadow}).Draw(t, "mode"),
	}
	if l.Algorithm.Bucket() {
		l.Refill = drawRefill(t, l.Quota)
		return l
	}
	l.Window = rapid.SampledFrom([]time.Duration{
		time.Second, 1_234_567 * time.Microsecond, 5 * time.Second, 10 * time.Second, time.Minute, time.Hour, 24 * time.Hour, ratelimit.MaxWindow,
	}).Draw(t, "window")
	return l
}

func drawQuota(t *rapid.T) int64 {
	if rapid.Bool().Draw(t, "any quota") {
		return rapid.Int64Range(0, 200).Draw(t, "quota")
	}
	return rapid.SampledFrom(quotasOfInterest()).Draw(t, "quota")
}

func drawRefill(t *rapid.T, quota int64) ratelimit.Rate {
	fast := quota / 100_000
	return ratelimit.Rate{
		Units: fast + rapid.SampledFrom([]int64{1, 2, 3, 7, 30, 1000}).Draw(t, "refill"),
		Every: rapid.SampledFrom([]time.Duration{100 * time.Millisecond, time.Second, 7 * time.Second, time.Minute}).Draw(t, "every"),
	}
}

// world is one run of the differential property: two groups with a few limits each, on the store and on the reference.
type world struct {
	*suite
	reference ratelimit.Store
	groups    [2][]ratelimit.Counter
	backward  time.Duration // how far one step may go back; 0: not at all
	log       []string
}

// sameAsReference: whatever comes in whatever order, the store and the reference answer the same, to the microsecond.
func (s *suite) sameAsReference() {
	rapid.Check(s.T, func(t *rapid.T) {
		s.begin(t)
		w := s.newWorld(t)
		for range rapid.IntRange(1, s.factory.Steps).Draw(t, "steps") {
			w.step(t)
		}
	})
}

func (s *suite) newWorld(t *rapid.T) *world {
	w := &world{suite: s, reference: ratelimit.NewMemory(s.clock.Now, 0), backward: 24 * time.Hour}
	if s.factory.Strictness == Segmented {
		w.reference = newSegments(s.clock.Now)
	}
	for g := range w.groups {
		group := s.group()
		for i := range rapid.IntRange(1, 4).Draw(t, "limits") {
			l := drawLimit(t, fmt.Sprintf("limit-%d", i))
			if s.factory.Strictness == Segmented && l.Algorithm == ratelimit.FixedWindow {
				w.backward = 0
			}
			w.groups[g] = append(w.groups[g], ratelimit.Counter{
				Key: ratelimit.CounterKey(ratelimit.Subject{Group: group}, l), Limit: l, Shadow: l.Mode == ratelimit.Shadow,
			})
		}
	}
	return w
}

func (w *world) step(t *rapid.T) {
	switch rapid.IntRange(0, 9).Draw(t, "step") {
	case 0:
		w.changeQuota(t)
	case 1, 2, 3:
		w.moveClock(t)
	default:
		w.decide(t, w.drawBatch(t))
	}
}

func (w *world) anyCounter(t *rapid.T) *ratelimit.Counter {
	counters := w.groups[rapid.IntRange(0, 1).Draw(t, "group")]
	return &counters[rapid.IntRange(0, len(counters)-1).Draw(t, "counter")]
}

// changeQuota replaces a counter's limit by one with another quota (and rate): it acts on the live counter.
func (w *world) changeQuota(t *rapid.T) {
	c := w.anyCounter(t)
	changed := *c.Limit
	changed.Quota = drawQuota(t)
	if changed.Algorithm.Bucket() {
		changed.Refill = drawRefill(t, changed.Quota)
	}
	c.Limit = &changed
	w.note("limit is now %s", c.Limit)
}

// moveClock moves to the interesting moments of some counter, or back.
func (w *world) moveClock(t *rapid.T) {
	span := w.anyCounter(t).Limit.Span()
	d := time.Duration(0)
	switch rapid.IntRange(0, 5).Draw(t, "move") {
	case 0:
		d = rapid.SampledFrom([]time.Duration{
			time.Microsecond, 2 * time.Microsecond, time.Millisecond, span / 900, span / 8, span / 2,
			span - time.Microsecond, span, span + time.Microsecond, span + span/8, 2 * span,
		}).Draw(t, "forward")
	case 1, 2, 3:
		d = time.Duration(rapid.Int64Range(0, max(1, span.Microseconds()/4)).Draw(t, "µs")) * time.Microsecond
	case 4:
		d = time.Duration(rapid.Int64Range(0, 2*span.Microseconds()).Draw(t, "µs")) * time.Microsecond
	case 5:
		most := min(w.backward, 3*span)
		d = -time.Duration(rapid.Int64Range(0, most.Microseconds()).Draw(t, "µs back")) * time.Microsecond
	}
	w.clock.Advance(d.Truncate(time.Microsecond))
	w.note("clock moves by %s to %d", d, w.clock.Now())
}

func (w *world) drawBatch(t *rapid.T) []ratelimit.Charge {
	charges := make([]ratelimit.Charge, rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "charges"))
	for i := range charges {
		counters := w.groups[rapid.IntRange(0, 1).Draw(t, "group")]
		first := rapid.IntRange(0, len(counters)-1).Draw(t, "first")
		last := rapid.IntRange(first, len(counters)-1).Draw(t, "last")
		quota := counters[first].Limit.Quota
		charges[i] = ratelimit.Charge{
			Kind: rapid.SampledFrom([]ratelimit.Kind{
				ratelimit.Take, ratelimit.Take, ratelimit.Take, ratelimit.Take, ratelimit.Peek, ratelimit.Refund,
				ratelimit.Raise, ratelimit.Account,
			}).Draw(t, "kind"),
			Counters: counters[first : last+1],
			Hits:     rapid.SampledFrom([]int64{1, 1, 1, 1, 2, 3, 17, 1000, 5_000_000, max(1, quota)}).Draw(t, "hits"),
			Cost: min(ratelimit.MaxCost, rapid.SampledFrom([]int64{
				1, 1, 1, 1, 2, 5, 0, quota / 2, quota, quota + 1, ratelimit.MaxCost,
			}).Draw(t, "cost")),
		}
		if charges[i].Kind == ratelimit.Raise {
			charges[i].Known = drawKnown(t, charges[i].Counters)
		}
	}
	return charges
}

// drawKnown draws what a raise knows of each counter, youngest first, from nothing to more than the quota.
func drawKnown(t *rapid.T, counters []ratelimit.Counter) [][]ratelimit.Portion {
	known := make([][]ratelimit.Portion, len(counters))
	for i := range counters {
		l := counters[i].Limit
		age := time.Duration(0)
		for range rapid.SampledFrom([]int{0, 1, 1, 2, 9}).Draw(t, "portions") {
			known[i] = append(known[i], ratelimit.Portion{
				Age: age, Units: rapid.SampledFrom([]int64{1, 1, 2, 10, max(1, l.Quota/9), max(1, l.Quota/2), max(1, l.Quota)}).Draw(t, "units"),
			})
			age += time.Duration(rapid.Int64Range(0, l.Span().Microseconds()/4).Draw(t, "older")) * time.Microsecond
		}
	}
	return known
}

// decide asks both and compares.
func (w *world) decide(t *rapid.T, charges []ratelimit.Charge) {
	got, want := make([]ratelimit.Outcome, len(charges)), make([]ratelimit.Outcome, len(charges))
	if err := w.store.Decide(context.Background(), charges, got); err != nil {
		t.Fatalf("the store failed: %v", err)
	}
	if err := w.reference.Decide(context.Background(), charges, want); err != nil {
		t.Fatalf("the reference failed: %v", err)
	}
	for i := range charges {
		w.note("charge %s → %s", describe(&charges[i]), describeOutcome(&got[i]))
		if got[i].Err != nil {
			t.Fatalf("charge %d failed: %v\n%s", i, got[i].Err, w.history())
		}
		same := got[i].Admitted == want[i].Admitted && len(got[i].Counters) == len(want[i].Counters)
		for j := 0; same && j < len(want[i].Counters); j++ {
			same = got[i].Counters[j] == want[i].Counters[j]
		}
		if charges[i].Kind == ratelimit.Account {
			same = same && slices.EqualFunc(got[i].Portions, want[i].Portions, slices.Equal)
		}
		if !same {
			t.Fatalf("charge %d of %d at %d:\n got %s\nwant %s\nhistory:\n%s", i+1, len(charges), w.clock.Now(),
				describeOutcome(&got[i]), describeOutcome(&want[i]), w.history())
		}
	}
}

func (w *world) note(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) history() string {
	s := ""
	for g, counters := range w.groups {
		for i := range counters {
			s += fmt.Sprintf("  group %d: %s %s, cost × %d, shadow %t\n", g, counters[i].Key, counters[i].Limit,
				counters[i].Limit.Cost, counters[i].Shadow)
		}
	}
	for _, line := range w.log {
		s += "  " + line + "\n"
	}
	return s
}

func describe(c *ratelimit.Charge) string {
	kind := [...]string{"take", "peek", "refund", "raise", "account"}[c.Kind]
	s := fmt.Sprintf("%s %d × %d on", kind, c.Hits, c.Cost)
	for i := range c.Counters {
		s += " " + c.Counters[i].Limit.Name
	}
	if c.Kind == ratelimit.Raise {
		s += fmt.Sprintf(" to %v", c.Known)
	}
	return s + " of " + string(c.Counters[0].Key)[:18]
}

func describeOutcome(o *ratelimit.Outcome) string {
	s := fmt.Sprintf("admitted %d", o.Admitted)
	for i := range o.Counters {
		c := &o.Counters[i]
		s += fmt.Sprintf(" {used %d remaining %d charged %d reset %s retry %s delay %s+%s %s}",
			c.Used, c.Remaining, c.Charged, c.ResetAfter, c.RetryAfter, c.Delay, c.DelayStep, c.Effective)
	}
	if o.Portions != nil {
		s += fmt.Sprintf(" portions %v", o.Portions)
	}
	return s
}
