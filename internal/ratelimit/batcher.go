package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrBusy is what a Batcher answers when its queue is full. It wraps ErrUnavailable: nothing was counted.
var ErrBusy = fmt.Errorf("%w: too many charges are waiting", ErrUnavailable)

// BatcherConfig bounds a Batcher.
type BatcherConfig struct {
	// Flights is how many calls of the store may be under way at one time; at least 1.
	Flights int
	// Queue is how many different charges may wait for the next flight. A charge beyond it gets ErrBusy.
	Queue int
	// GroupShare is how many of them may belong to one group, so that one tenant with many users cannot take every
	// place; 0: a quarter of Queue.
	GroupShare int
}

// Batcher decorates a Store with adaptive batching: while the allowed number of flights is under way, arriving charges
// wait, identical ones merged into one; the next flight takes them all. There is no timer: an idle store is asked at once.
// Every merged hit gets its own place in the answer, as if the hits had been decided one by one in the order they came.
//
// A caller that leaves while it waits gets its context's error; its hits stay in the batch, are counted if they fit, and
// nobody else notices. It is safe for concurrent use. Close waits for the flights.
type Batcher struct {
	store Store
	cfg   BatcherConfig
	owner sync.WaitGroup

	mu      sync.Mutex
	flights int
	waiting *batch
}

// NewBatcher decorates store.
func NewBatcher(store Store, cfg BatcherConfig) *Batcher {
	cfg.Flights = max(1, cfg.Flights)
	cfg.Queue = max(1, cfg.Queue)
	if cfg.GroupShare <= 0 {
		cfg.GroupShare = max(1, cfg.Queue/4)
	}
	return &Batcher{store: store, cfg: cfg}
}

// Source is the store's.
func (b *Batcher) Source() Source { return b.store.Source() }

// Close waits for the flights under way. No Decide may be called after it.
func (b *Batcher) Close() { b.owner.Wait() }

// Decide puts the charges on the next flight and waits for its answer. Charges of one call keep their order.
func (b *Batcher) Decide(ctx context.Context, charges []Charge, out []Outcome) error {
	if len(charges) == 0 {
		return nil
	}
	b.mu.Lock()
	if b.flights < b.cfg.Flights && b.waiting == nil {
		b.flights++
		b.mu.Unlock()
		defer b.land(ctx)
		return b.store.Decide(ctx, charges, out)
	}
	if b.waiting == nil {
		b.waiting = newBatch()
	}
	waiting := b.waiting
	seats, err := waiting.board(charges, &b.cfg)
	b.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-waiting.landed:
	case <-ctx.Done():
		return ctx.Err()
	}
	if waiting.err != nil {
		return waiting.err
	}
	for i := range charges {
		waiting.answer(seats[i], &charges[i], &out[i])
	}
	return nil
}

// land ends a flight and starts the next one if charges have been waiting.
func (b *Batcher) land(ctx context.Context) {
	if next := b.next(); next != nil {
		b.owner.Go(func() { b.fly(context.WithoutCancel(ctx), next) })
	}
}

// fly takes one batch after the other to the store until nothing waits. The store bounds each call itself.
func (b *Batcher) fly(ctx context.Context, flight *batch) {
	for ; flight != nil; flight = b.next() {
		flight.err = b.store.Decide(ctx, flight.charges, flight.out)
		if flight.err != nil && !errors.Is(flight.err, ErrUnavailable) {
			flight.err = fmt.Errorf("%w: %w", ErrUnavailable, flight.err) // nobody's own cancellation: the flight has none
		}
		close(flight.landed)
	}
}

// next is the batch that may fly now; nil, and one flight fewer, when nothing waits.
func (b *Batcher) next() *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := b.waiting
	b.waiting = nil
	if next == nil {
		b.flights--
		return nil
	}
	next.out = make([]Outcome, len(next.charges))
	return next
}

// batch is the charges of one flight. It is filled under the Batcher's lock, and read-only once it has landed.
type batch struct {
	charges []Charge
	out     []Outcome
	err     error
	landed  chan struct{}
	// last finds the newest charge that one like it may be merged into.
	last   map[identity]int
	groups map[string]int
}

// identity is what identical charges have in common, up to a comparison of their further counters.
type identity struct {
	first Key
	cost  int64
}

// seat is where a caller's hits are: in which charge, and behind how many others.
type seat struct {
	charge int
	behind int64
}

func newBatch() *batch {
	return &batch{landed: make(chan struct{}), last: make(map[identity]int), groups: make(map[string]int)}
}

// board finds a place for every charge of one call, or for none of them.
func (b *batch) board(charges []Charge, cfg *BatcherConfig) ([]seat, error) {
	if len(b.charges) > 0 && len(b.charges)+len(charges) > cfg.Queue {
		return nil, ErrBusy
	}
	seats := make([]seat, len(charges))
	floor := 0 // a charge never goes in front of an earlier one of its own call
	for i := range charges {
		c := &charges[i]
		if into, ok := b.twin(c, floor); ok {
			seats[i] = seat{charge: into, behind: b.charges[into].Hits}
			b.charges[into].Hits += c.Hits
			floor = into
			continue
		}
		if i == 0 && len(c.Counters) > 0 {
			group := c.Counters[0].Key.group()
			if b.groups[group] >= cfg.GroupShare {
				return nil, ErrBusy
			}
		}
		floor = len(b.charges)
		seats[i] = seat{charge: floor}
		b.append(c)
	}
	return seats, nil
}

func (b *batch) append(c *Charge) {
	if len(c.Counters) > 0 {
		b.groups[c.Counters[0].Key.group()]++
		if c.mergeable() {
			b.last[identity{c.Counters[0].Key, c.Cost}] = len(b.charges)
		}
	}
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

// mergeable reports whether hits of this charge can be decided together with others: they take something.
func (c *Charge) mergeable() bool { return c.Kind == Take && c.Cost > 0 && len(c.Counters) > 0 }

func sameCounters(a, b []Counter) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Key != b[i].Key || a[i].Shadow != b[i].Shadow || a[i].Limit != b[i].Limit && *a[i].Limit != *b[i].Limit {
			return false
		}
	}
	return true
}

// answer gives a caller the outcome of its own hits out of the merged one's.
func (b *batch) answer(s seat, c *Charge, out *Outcome) {
	all := &b.out[s.charge]
	counters := append(out.Counters[:0], all.Counters...)
	*out = Outcome{Admitted: all.Admitted, Counters: counters, Source: all.Source, Err: all.Err}
	if !c.mergeable() || b.charges[s.charge].Hits == c.Hits {
		return
	}
	out.Admitted = min(max(0, all.Admitted-s.behind), c.Hits)
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
