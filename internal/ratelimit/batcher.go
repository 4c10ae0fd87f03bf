package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// ErrBusy is what a Batcher answers when its queue is full. It wraps ErrUnavailable: nothing was counted.
var ErrBusy = fmt.Errorf("%w: too many charges are waiting", ErrUnavailable)

// BatcherConfig bounds a Batcher. The zero value of a field is its default.
type BatcherConfig struct {
	// Flights is how many calls of the store may be under way at one time, default 2.
	Flights int
	// Crowd is how many different charges must wait before another flight starts beside one that is under way, default 32, as
	// many as Redis settles in one EVALSHA: fewer cost less together on the next one.
	Crowd int
	// Size is how many different charges fly together, default 256: it bounds how long one call of the store takes. A single
	// call that brings more flies alone.
	Size int
	// Share is how many of them may belong to one group, so that a tenant with many users leaves room for the others on every
	// flight: default a quarter of Size. It is judged when a call comes; the call itself may exceed it.
	Share int
	// Queue is how many flights may wait, default 32. What finds no place on any of them is decided by Full.
	Queue int
	// Patience is how long a flight may wait before it is decided by Full instead of the store; 0: however long it takes.
	Patience time.Duration
	// Now is a clock with a monotonic reading, time.Now in production. Patience needs it.
	Now func() time.Time
	// Full decides charges that cannot wait; nil: they get ErrBusy. Nothing of them is counted in the store.
	Full Store
	// Flown, when it is set, is told of every flight: its different charges and all their hits. It must be fast.
	Flown func(charges int, hits int64)
}

// The defaults of BatcherConfig.
const (
	defaultFlights     = 2
	defaultCrowd       = 32
	defaultFlightSize  = 256
	defaultFlightQueue = 32
)

// Batcher decorates a Store with adaptive batching: while the allowed number of flights is under way, arriving charges
// wait, identical ones merged into one; the next flight takes them all. There is no timer: an idle store is asked at once.
// Every merged hit gets its own place in the answer, as if the hits had been decided one by one in the order they came.
//
// A charge waits for at most the flights in front of it, (Queue + 1) ÷ Flights calls of the store, and for Patience. A caller that leaves
// while it waits gets its context's error; its hits stay on the flight, are counted if they fit, and nobody else notices. So
// the counters of a charge must not be changed after Decide was called. It is safe for concurrent use. Close waits for
// the flights.
type Batcher struct {
	store Store
	cfg   BatcherConfig
	owner sync.WaitGroup
	spare sync.Pool // of *batch
	busy  atomic.Int64

	mu      sync.Mutex
	flights int
	waiting []*batch // in the order they will fly
}

// NewBatcher decorates store.
func NewBatcher(store Store, cfg BatcherConfig) *Batcher {
	if cfg.Flights <= 0 {
		cfg.Flights = defaultFlights
	}
	if cfg.Crowd <= 0 {
		cfg.Crowd = defaultCrowd
	}
	if cfg.Size <= 0 {
		cfg.Size = defaultFlightSize
	}
	if cfg.Share <= 0 {
		cfg.Share = max(1, cfg.Size/4)
	}
	if cfg.Queue <= 0 {
		cfg.Queue = defaultFlightQueue
	}
	return &Batcher{store: store, cfg: cfg, spare: sync.Pool{New: func() any { return new(batch) }}}
}

// Source is the store's.
func (b *Batcher) Source() Source { return b.store.Source() }

// BatcherStats is what a Batcher does now, and has done since it was made.
type BatcherStats struct {
	// Flying and Waiting are flights, and Charges the different charges on the waiting ones.
	Flying, Waiting, Charges int
	// Busy is how many charges found no place, or waited too long.
	Busy int64
}

// Stats reads the numbers.
func (b *Batcher) Stats() BatcherStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := BatcherStats{Flying: b.flights, Waiting: len(b.waiting), Busy: b.busy.Load()}
	for _, w := range b.waiting {
		s.Charges += len(w.charges)
	}
	return s
}

// Close waits for the flights under way. No Decide may be called after it.
func (b *Batcher) Close() { b.owner.Wait() }

// Decide puts the charges on the next flight that has room and waits for its answer. Charges of one call keep their order.
func (b *Batcher) Decide(ctx context.Context, charges []Charge, out []Outcome) error {
	if len(charges) == 0 {
		return nil
	}
	b.mu.Lock()
	if b.flights == 0 && len(b.waiting) == 0 {
		b.flights++
		b.mu.Unlock()
		return b.lead(ctx, charges, out)
	}
	flight, at := b.board(charges)
	crowded := b.flights < b.cfg.Flights && len(b.waiting[0].charges) >= b.cfg.Crowd
	if crowded {
		b.flights++
	}
	b.mu.Unlock()
	if crowded {
		b.land(ctx)
	}
	if flight == nil {
		return b.full(ctx, charges, out)
	}
	return b.await(ctx, flight, at, charges, out)
}

// lead opens a flight.
func (b *Batcher) lead(ctx context.Context, charges []Charge, out []Outcome) error {
	b.gather()
	b.mu.Lock()
	if len(b.waiting) == 0 {
		b.mu.Unlock()
		defer b.land(ctx)
		err := b.store.Decide(ctx, charges, out)
		b.flown(charges)
		return err
	}
	flight, at := b.board(charges)
	b.mu.Unlock()
	b.land(ctx)
	if flight == nil {
		return b.full(ctx, charges, out)
	}
	return b.await(ctx, flight, at, charges, out)
}

// turns is how often gather may step back: 4 gather what 64 do, and each may last as long as the process has other work.
const turns = 4

// gather lets other goroutines run before a flight starts, again for as long as that brings it hits: callers that are about
// to come then fly together. There is no timer; on an idle machine this takes no time.
func (b *Batcher) gather() {
	for aboard, turn := 0, 0; turn < turns; turn++ {
		runtime.Gosched()
		b.mu.Lock()
		came := aboard
		if len(b.waiting) > 0 {
			came = len(b.waiting[0].seats)
		}
		b.mu.Unlock()
		if came <= aboard {
			return
		}
		aboard = came
	}
}

// await waits for the answer to a call that has boarded from the given seat on.
func (b *Batcher) await(ctx context.Context, flight *batch, at int, charges []Charge, out []Outcome) error {
	select {
	case <-flight.landed:
	case <-ctx.Done():
		b.leave(flight)
		return ctx.Err()
	}
	err := flight.err
	if err == nil {
		for i := range charges {
			flight.answer(flight.seats[at+i], &charges[i], &out[i])
		}
	}
	b.leave(flight)
	return err
}

// full is the answer to charges that cannot wait.
func (b *Batcher) full(ctx context.Context, charges []Charge, out []Outcome) error {
	b.busy.Add(int64(len(charges)))
	if b.cfg.Full == nil {
		return ErrBusy
	}
	return b.cfg.Full.Decide(ctx, charges, out)
}

// board finds a flight for a call and returns its first seat there; nil when there is none. The caller holds the lock.
func (b *Batcher) board(charges []Charge) (*batch, int) {
	for _, w := range b.waiting {
		if at, ok := w.board(charges, &b.cfg); ok {
			return w, at
		}
	}
	if len(b.waiting) == b.cfg.Queue {
		return nil, 0
	}
	w, ok := b.spare.Get().(*batch)
	if !ok {
		w = new(batch)
	}
	w.open()
	if b.cfg.Patience > 0 {
		w.opened = b.cfg.Now()
	}
	b.waiting = append(b.waiting, w)
	at, _ := w.board(charges, &b.cfg) // an empty flight takes any call
	return w, at
}

// land gives a flight's place to the next one, if charges have been waiting, or up.
func (b *Batcher) land(ctx context.Context) {
	if next := b.next(); next != nil {
		b.owner.Go(func() { b.fly(context.WithoutCancel(ctx), next) })
	}
}

// fly takes one batch after the other to the store until nothing waits. The store bounds each call itself.
func (b *Batcher) fly(ctx context.Context, flight *batch) {
	for ; flight != nil; flight = b.next() {
		flight.err = b.ask(ctx, flight)
		if flight.err != nil && !errors.Is(flight.err, ErrUnavailable) {
			flight.err = fmt.Errorf("%w: %w", ErrUnavailable, flight.err) // nobody's own cancellation: the flight has none
		}
		close(flight.landed)
		b.leave(flight)
		b.gather() // whom this flight has answered may be about to ask again
	}
}

// ask has a flight decided: by the store, unless it has waited for too long.
func (b *Batcher) ask(ctx context.Context, flight *batch) error {
	if b.cfg.Patience > 0 && b.cfg.Now().Sub(flight.opened) > b.cfg.Patience {
		return b.full(ctx, flight.charges, flight.out)
	}
	err := b.store.Decide(ctx, flight.charges, flight.out)
	b.flown(flight.charges)
	return err
}

func (b *Batcher) flown(charges []Charge) {
	if b.cfg.Flown == nil {
		return
	}
	var hits int64
	for i := range charges {
		hits += charges[i].Hits
	}
	b.cfg.Flown(len(charges), hits)
}

// next is the batch that may fly now; nil, and one flight fewer, when nothing waits.
func (b *Batcher) next() *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 {
		b.flights--
		return nil
	}
	next := b.waiting[0]
	n := copy(b.waiting, b.waiting[1:])
	b.waiting[n] = nil
	b.waiting = b.waiting[:n]
	next.out = resized(next.out, len(next.charges))
	return next
}

// leave says that a caller, or the flight itself, is done with a batch; the last one keeps its memory for the next.
func (b *Batcher) leave(flight *batch) {
	if flight.aboard.Add(-1) == 0 && flight.close() {
		b.spare.Put(flight)
	}
}
