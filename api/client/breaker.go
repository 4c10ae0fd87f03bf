package client

import (
	"sync/atomic"
	"time"
)

const (
	failuresInARow = 5
	leaveAlone     = time.Second
)

// breaker leaves a service alone that has failed several times in a row: for a second nobody asks, then one request tries.
// The zero value asks.
type breaker struct {
	failures atomic.Int64
	until    atomic.Int64 // Unix nanoseconds before which nobody asks; 0: everybody may
}

// allow reports whether to ask now. Of those that come when the second is over one is let through, and moves the end of the
// next second ahead of the others.
func (b *breaker) allow(now time.Time) bool {
	until := b.until.Load()
	if until == 0 || until-now.UnixNano() > int64(leaveAlone) { // a clock that was set back must not keep it open
		return true
	}
	return now.UnixNano() >= until && b.until.CompareAndSwap(until, now.Add(leaveAlone).UnixNano())
}

func (b *breaker) succeeded() {
	if b.failures.Load() != 0 || b.until.Load() != 0 {
		b.failures.Store(0)
		b.until.Store(0)
	}
}

func (b *breaker) failed(now time.Time) {
	if b.failures.Add(1) >= failuresInARow {
		b.until.Store(now.Add(leaveAlone).UnixNano())
	}
}
