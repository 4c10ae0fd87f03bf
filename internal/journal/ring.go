package journal

import (
	"sync/atomic"

	"github.com/pegel-dev/pegel/internal/decision"
)

// entry is a decision on its way to Run, and what is wanted of it.
type entry struct {
	seen    decision.Observation
	explain bool
	log     bool
	// sampled: it is explained as an example only.
	sampled bool
}

// ring is a bounded queue of many writers and one reader without locks (after Dmitry Vyukov's bounded queue): each slot has a
// number that says whose turn it is. A writer never waits: push fails when the ring is full.
type ring struct {
	slots []slot
	mask  uint64
	_     [64]byte // writers and the reader do not share a cache line
	tail  atomic.Uint64
	_     [64]byte
	head  uint64
}

type slot struct {
	turn  atomic.Uint64
	entry entry
}

// newRing makes one of 2^bits slots.
func newRing(bits int) *ring {
	r := &ring{slots: make([]slot, 1<<bits), mask: 1<<bits - 1}
	for i := range r.slots {
		r.slots[i].turn.Store(uint64(i))
	}
	return r
}

func (r *ring) push(e entry) bool {
	for {
		at := r.tail.Load()
		s := &r.slots[at&r.mask]
		switch turn := s.turn.Load(); {
		case turn == at:
			if r.tail.CompareAndSwap(at, at+1) {
				s.entry = e
				s.turn.Store(at + 1)
				return true
			}
		case turn < at: // the reader has not been here since the last round
			return false
		}
	}
}

// pop is for the one reader.
func (r *ring) pop() (e entry, ok bool) {
	s := &r.slots[r.head&r.mask]
	if s.turn.Load() != r.head+1 {
		return e, false
	}
	e = s.entry
	s.entry = entry{}
	s.turn.Store(r.head + r.mask + 1)
	r.head++
	return e, true
}
