package ratelimit

import (
	"sync/atomic"
	"time"
)

// batch is the charges of one flight of a Batcher. It is filled under the Batcher's lock, and read-only once it has landed.
type batch struct {
	charges []Charge
	out     []Outcome
	seats   []seat
	err     error
	landed  chan struct{}
	opened  time.Time // when its first charge came; zero when nobody asks
	// aboard counts the callers that have not taken their answer yet, and the flight itself.
	aboard atomic.Int32
	// last finds the newest charge that one like it may be merged into.
	last map[identity]int
	// groups counts the charges of each group, from the moment one of them could exceed its share.
	groups map[string]int
}

// identity is what identical charges have in common, up to a comparison of their further counters.
type identity struct {
	first Key
	cost  int64
}

// seat is where a hit is: in which charge, and behind how many others.
type seat struct {
	charge int
	behind int64
}

// batchKept is up to how many charges a batch's memory is kept: what one crowd needed is not held for good.
const batchKept = 256

// open makes a batch ready to be boarded.
func (b *batch) open() {
	b.landed = make(chan struct{})
	b.aboard.Store(1)
	if b.last == nil {
		b.last = make(map[identity]int)
	}
}

// close forgets what the batch was about and reports whether it is worth keeping.
func (b *batch) close() bool {
	if len(b.charges) > batchKept || len(b.seats) > 4*batchKept {
		return false
	}
	clear(b.charges) // callers' memory
	clear(b.last)
	for i := range b.out {
		b.out[i] = Outcome{Counters: b.out[i].Counters[:0]}
	}
	b.charges, b.seats, b.groups, b.err = b.charges[:0], b.seats[:0], nil, nil
	return true
}

// board finds a place for every charge of one call, or for none of them, and returns the first of its seats.
func (b *batch) board(charges []Charge, cfg *BatcherConfig) (at int, ok bool) {
	at = len(b.seats)
	if len(charges) == 1 {
		if into, ok := b.twin(&charges[0], 0); ok {
			b.join(into, &charges[0])
			b.aboard.Add(1)
			return at, true
		}
	}
	if len(b.charges) > 0 && !b.roomFor(charges, cfg) {
		return 0, false
	}
	floor := 0 // a charge never goes in front of an earlier one of its own call
	for i := range charges {
		into, ok := b.twin(&charges[i], floor)
		if ok {
			b.join(into, &charges[i])
		} else {
			into = len(b.charges)
			b.append(&charges[i])
		}
		floor = into
	}
	b.aboard.Add(1)
	return at, true
}

// roomFor reports whether a call fits, and leaves room for other groups.
func (b *batch) roomFor(charges []Charge, cfg *BatcherConfig) bool {
	if len(b.charges)+len(charges) > cfg.Size {
		return false
	}
	if len(b.charges) < cfg.Share {
		return true // no group can have more than its share
	}
	if b.groups == nil {
		b.groups = make(map[string]int)
		for i := range b.charges {
			b.groups[b.charges[i].group()]++
		}
	}
	for i := range charges {
		if b.groups[charges[i].group()] >= cfg.Share {
			return false
		}
	}
	return true
}

// join merges a charge into one like it.
func (b *batch) join(into int, c *Charge) {
	b.seats = append(b.seats, seat{charge: into, behind: b.charges[into].Hits})
	b.charges[into].Hits += c.Hits
}

func (b *batch) append(c *Charge) {
	if c.mergeable() {
		b.last[identity{c.Counters[0].Key, c.Cost}] = len(b.charges)
	}
	if b.groups != nil {
		b.groups[c.group()]++
	}
	b.seats = append(b.seats, seat{charge: len(b.charges)})
	b.charges = append(b.charges, *c)
}

// twin finds an identical charge at or behind floor.
func (b *batch) twin(c *Charge, floor int) (int, bool) {
	if !c.mergeable() {
		return 0, false
	}
	into, ok := b.last[identity{c.Counters[0].Key, c.Cost}]
	if !ok || into < floor || !sameCounters(b.charges[into].Counters, c.Counters) {
		return 0, false
	}
	return into, true
}

// group is the group a charge belongs to; empty for one without counters.
func (c *Charge) group() string {
	if len(c.Counters) == 0 {
		return ""
	}
	return c.Counters[0].Key.group()
}

// mergeable reports whether hits of this charge can be decided together with others: they take something.
func (c *Charge) mergeable() bool { return c.Kind == Take && c.Cost > 0 && len(c.Counters) > 0 }

func sameCounters(a, b []Counter) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Key != b[i].Key || a[i].Shadow != b[i].Shadow || !sameLimit(a[i].Limit, b[i].Limit) {
			return false
		}
	}
	return true
}

// sameLimit reports whether two limits decide alike. Equal slow-downs of two snapshots count as different: that is seldom,
// and harmless.
func sameLimit(a, b *Limit) bool { return a == b || *a == *b }

// answer gives a caller the outcome of its own hits out of the merged one's.
func (b *batch) answer(s seat, c *Charge, out *Outcome) {
	all := &b.out[s.charge]
	counters := append(out.Counters[:0], all.Counters...)
	*out = Outcome{Admitted: all.Admitted, Counters: counters, Source: all.Source, Err: all.Err}
	if !c.mergeable() || b.charges[s.charge].Hits == c.Hits {
		return
	}
	out.Admitted = min(max(0, all.Admitted-s.behind), c.Hits)
	if len(all.Counters) < len(c.Counters) {
		return // it could not be decided: Err says why
	}
	for i := range counters {
		counters[i].place(c.Counters[i].Limit, c.Cost, s.behind, c.Hits, min(all.Admitted, all.Counters[i].Charged))
	}
}

// place turns the state after all merged hits into the one after the hits behind…behind+hits, of which the first
// `charged` of all were charged here.
func (s *CounterState) place(l *Limit, cost, behind, hits, charged int64) {
	mine := min(max(0, charged-behind), hits)
	s.Charged = mine
	if mine == 0 { // after everybody that got in
		s.Delay, s.DelayStep = 0, 0
		return
	}
	s.Delay += time.Duration(behind) * s.DelayStep
	units := l.UnitsPerHit(cost)
	later := (charged - behind - mine) * units // taken by the hits behind these
	s.Used = max(0, s.Used-later)
	s.Remaining = max(0, l.Quota-s.Used)
	if s.Remaining >= units {
		s.RetryAfter = 0
	}
}
