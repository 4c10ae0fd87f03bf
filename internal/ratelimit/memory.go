package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"
)

// ErrFull is what Outcome.Err wraps, beside ErrCounter, when a Memory holds as many counters as it may and none of them
// has expired: counters it already has stay exact, a new one is refused a place.
var ErrFull = errors.New("no room for another counter")

// Memory is a Store in this process: the reference model of every other one, and what decides `local` limits while no
// shared store can. It is exact for this process alone.
//
// It is safe for concurrent use. A charge locks one shard of many for less than a microsecond; it never waits for
// anything else, so no context can interrupt it.
type Memory struct {
	now    func() int64
	seed   maphash.Seed
	blank  map[Algorithm]cell
	shards [memoryShards]memoryShard
}

// memoryShards is a power of two well above the number of cores.
const memoryShards = 64

// DefaultMemoryCounters bounds a Memory that was not told otherwise: about 100 MB of buckets and windows, while a log
// adds 24 bytes per entry (at most 1,024 of them, or 900 above a quota of 1,024).
const DefaultMemoryCounters = 1 << 19

type memoryShard struct {
	mu       sync.Mutex
	counters map[Key]*memoryCounter
	// most bounds len(counters); sweepAt is the size at which the next new counter first looks for expired ones.
	most, sweepAt int
	scratch       []memorySlot
	_             [64]byte // shards do not share a cache line
}

type memoryCounter struct {
	algorithm Algorithm
	cell      cell
	deadAt    int64
}

// memorySlot is one of a charge's counters while it is being decided.
type memorySlot struct {
	counter *memoryCounter // nil: there is none yet
	units   int64
	look    look
	charged int64
}

// NewMemory returns an empty store that reads `now` in microseconds, monotonic and never negative, and holds at most
// about maxCounters counters (DefaultMemoryCounters for 0).
func NewMemory(now func() int64, maxCounters int) *Memory {
	if maxCounters <= 0 {
		maxCounters = DefaultMemoryCounters
	}
	m := &Memory{now: now, seed: maphash.MakeSeed(), blank: make(map[Algorithm]cell, 5)}
	for _, a := range []Algorithm{SlidingWindowLog, SlidingWindowCounter, FixedWindow, TokenBucket, LeakyBucket} {
		m.blank[a] = newCell(a)
	}
	most := max(1, maxCounters/memoryShards)
	for i := range m.shards {
		m.shards[i] = memoryShard{counters: make(map[Key]*memoryCounter), most: most, sweepAt: min(most, sweepMin)}
	}
	return m
}

// sweepMin is the size below which a shard is not worth sweeping.
const sweepMin = 64

// Source is SourceMemory.
func (*Memory) Source() Source { return SourceMemory }

// Decide settles the charges one after the other. It never fails as a whole; a charge fails alone when its counters do
// not share a group, when an algorithm is unknown, or with ErrFull.
func (m *Memory) Decide(_ context.Context, charges []Charge, out []Outcome) error {
	for i := range charges {
		m.charge(&charges[i], &out[i])
	}
	return nil
}

func (m *Memory) charge(c *Charge, out *Outcome) {
	*out = Outcome{Source: SourceMemory, Counters: resized(out.Counters, len(c.Counters))}
	if len(c.Counters) == 0 {
		out.Admitted = c.Hits
		return
	}
	group := c.Counters[0].Key.group()
	for i := range c.Counters[1:] {
		if c.Counters[i+1].Key.group() != group {
			out.Err = fmt.Errorf("%w: counters of one charge belong to different groups", ErrCounter)
			return
		}
	}
	shard := &m.shards[maphash.String(m.seed, group)%memoryShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	shard.settle(m, c, out)
}

// settle decides one charge: everything is read before anything is written.
func (s *memoryShard) settle(m *Memory, c *Charge, out *Outcome) {
	now := m.now()
	s.scratch = resized(s.scratch, len(c.Counters))
	admitted := max(0, c.Hits)
	for i := range c.Counters {
		limit := c.Counters[i].Limit
		slot := &s.scratch[i]
		*slot = memorySlot{counter: s.counters[c.Counters[i].Key], units: limit.UnitsPerHit(c.Cost)}
		read := m.cellOf(slot.counter, limit.Algorithm)
		if read == nil {
			out.Err = fmt.Errorf("%w: it does not count by %q", ErrCounter, limit.Algorithm)
			return
		}
		slot.look = read.look(limit, now, slot.units)
		if !c.Counters[i].Shadow {
			admitted = min(admitted, slot.look.fit)
		}
	}
	out.Admitted = admitted
	switch {
	case c.Kind == Raise:
		out.Admitted = c.Hits
		clear(out.Counters)
		if out.Err = s.raise(c, now); out.Err != nil {
			out.Admitted = 0
		}
		return
	case c.Kind == Refund:
		out.Admitted = c.Hits
		s.refund(c, now)
	case c.Kind == Take && c.Cost > 0:
		if err := s.take(c, admitted, now); err != nil {
			out.Admitted, out.Err = 0, err
			return
		}
	}
	s.report(m, c, now, out)
	if c.Kind == Account {
		out.account()
	}
}

// account says of the units used that they may all be from now.
func (o *Outcome) account() {
	o.Portions = make([][]Portion, len(o.Counters))
	for i := range o.Counters {
		if used := o.Counters[i].Used; used > 0 {
			o.Portions[i] = []Portion{{Units: used}}
		}
	}
}

// cellOf is what a counter says, or what one that does not exist yet would; nil when it does not count by a.
func (m *Memory) cellOf(c *memoryCounter, a Algorithm) cell {
	switch {
	case c == nil:
		return m.blank[a]
	case c.algorithm != a:
		return nil
	}
	return c.cell
}

// take charges every counter with the admitted hits, a shadow counter with as many of them as fit.
func (s *memoryShard) take(c *Charge, admitted, now int64) error {
	missing := 0
	for i := range s.scratch {
		slot := &s.scratch[i]
		slot.charged = min(admitted, slot.look.fit)
		if slot.counter == nil && slot.charged > 0 {
			missing++
		}
	}
	if missing > 0 && !s.makeRoom(missing, now) {
		return fmt.Errorf("%w: %w", ErrCounter, ErrFull)
	}
	for i := range s.scratch {
		slot := &s.scratch[i]
		limit := c.Counters[i].Limit
		if slot.counter == nil {
			if slot.charged == 0 {
				continue
			}
			s.begin(slot, &c.Counters[i])
		}
		slot.counter.cell.take(limit, now, slot.charged*slot.units)
		slot.counter.deadAt = slot.counter.cell.deadAt(limit, now)
	}
	return nil
}

// begin puts a counter where there is none.
func (s *memoryShard) begin(slot *memorySlot, c *Counter) {
	slot.counter = &memoryCounter{algorithm: c.Limit.Algorithm, cell: newCell(c.Limit.Algorithm)}
	s.counters[c.Key] = slot.counter
}

func (s *memoryShard) raise(c *Charge, now int64) error {
	missing := 0
	for i := range s.scratch {
		if s.scratch[i].counter == nil && len(c.KnownOf(i)) > 0 {
			missing++
		}
	}
	if missing > 0 && !s.makeRoom(missing, now) {
		return fmt.Errorf("%w: %w", ErrCounter, ErrFull)
	}
	for i := range s.scratch {
		slot := &s.scratch[i]
		if len(c.KnownOf(i)) == 0 {
			continue
		}
		if slot.counter == nil {
			s.begin(slot, &c.Counters[i])
		}
		limit := c.Counters[i].Limit
		slot.counter.cell.raise(limit, now, c.KnownOf(i))
		slot.counter.deadAt = slot.counter.cell.deadAt(limit, now)
	}
	return nil
}

// refundMost is beyond what any counter counts (a log's total wraps there), and exact as a double.
const refundMost = int64(1) << 52

func (s *memoryShard) refund(c *Charge, now int64) {
	for i := range s.scratch {
		slot := &s.scratch[i]
		if slot.counter == nil || slot.units == 0 {
			continue
		}
		// No counter holds more, not even one that a Raise has put above its quota.
		hits := min(c.Hits, refundMost/slot.units+1)
		slot.counter.cell.refund(c.Counters[i].Limit, now, hits*slot.units)
	}
}

func (s *memoryShard) report(m *Memory, c *Charge, now int64, out *Outcome) {
	for i := range s.scratch {
		slot := &s.scratch[i]
		limit := c.Counters[i].Limit
		state := &out.Counters[i]
		m.cellOf(slot.counter, limit.Algorithm).report(limit, now, slot.units, state)
		state.Charged = slot.charged
		if c.Kind != Refund && min(out.Admitted, slot.look.fit) > 0 {
			state.Delay, state.DelayStep = slot.look.delay, slot.look.step
		}
	}
}

// makeRoom reports whether n more counters fit, dropping expired ones when the shard has doubled since it last did. The
// charge's own counters stay, expired or not: they are about to be charged.
func (s *memoryShard) makeRoom(n int, now int64) bool {
	if len(s.counters)+n > s.sweepAt {
		s.eachOwn(func(c *memoryCounter) { c.deadAt += neverDead })
		s.sweep(now)
		s.eachOwn(func(c *memoryCounter) { c.deadAt -= neverDead })
	}
	return len(s.counters)+n <= s.most
}

// neverDead is beyond any time, and far enough from the largest integer that a time can be added.
const neverDead = int64(1) << 61

func (s *memoryShard) eachOwn(do func(*memoryCounter)) {
	for i := range s.scratch {
		if c := s.scratch[i].counter; c != nil {
			do(c)
		}
	}
}

func (s *memoryShard) sweep(now int64) {
	for key, counter := range s.counters {
		if counter.deadAt <= now {
			delete(s.counters, key)
		}
	}
	s.sweepAt = min(s.most, max(sweepMin, 2*len(s.counters)))
}

// Sweep drops every expired counter and gives the memory of shards that have emptied back. New counters sweep on their
// own when there are many; call this now and then so that memory also falls in silence.
func (m *Memory) Sweep() {
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		before := len(s.counters)
		s.sweep(m.now())
		if len(s.counters) == 0 && before > sweepMin {
			s.counters = make(map[Key]*memoryCounter)
		}
		s.mu.Unlock()
	}
}

// Len is how many counters are held, expired ones that were not dropped yet included.
func (m *Memory) Len() int {
	n := 0
	for i := range m.shards {
		m.shards[i].mu.Lock()
		n += len(m.shards[i].counters)
		m.shards[i].mu.Unlock()
	}
	return n
}

// MonotonicMicros makes a clock for NewMemory out of a function that returns the time, such as time.Now: microseconds
// since this call, which no step of the wall clock moves.
func MonotonicMicros(now func() time.Time) func() int64 {
	start := now()
	return func() int64 { return max(0, now().Sub(start).Microseconds()) }
}

// resized returns s with length n, reusing its memory when it suffices.
func resized[E any](s []E, n int) []E {
	return slices.Grow(s[:0], n)[:n]
}

// group is the part of a key that names its slot: up to and including the first '}'.
func (k Key) group() string {
	return string(k)[:strings.IndexByte(string(k), '}')+1]
}
