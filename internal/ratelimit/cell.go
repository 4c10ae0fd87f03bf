package ratelimit

// cell is one counter that is kept in memory: a model's state, and the pure functions that change it.
type cell interface {
	look(l *Limit, now, units int64) look
	take(l *Limit, now, units int64)
	refund(l *Limit, now, units int64)
	raise(l *Limit, now int64, known []Portion)
	report(l *Limit, now, units int64, out *CounterState)
	deadAt(l *Limit, now int64) int64
}

type cellOf[S model[S]] struct{ state S }

func (c *cellOf[S]) look(l *Limit, now, units int64) look { return c.state.look(l, now, units) }
func (c *cellOf[S]) take(l *Limit, now, units int64)      { c.state = c.state.take(l, now, units) }
func (c *cellOf[S]) refund(l *Limit, now, units int64)    { c.state = c.state.refund(l, now, units) }
func (c *cellOf[S]) deadAt(l *Limit, now int64) int64     { return c.state.deadAt(l, now) }

func (c *cellOf[S]) raise(l *Limit, now int64, known []Portion) {
	c.state = c.state.raise(l, now, known)
}

func (c *cellOf[S]) report(l *Limit, now, units int64, out *CounterState) {
	c.state.report(l, now, units, out)
}

// newCell returns a counter that does not count anything yet, nil for an algorithm that cannot be configured.
func newCell(a Algorithm) cell {
	switch a {
	case SlidingWindowLog:
		return &cellOf[logState]{}
	case SlidingWindowCounter:
		return &cellOf[pairState]{}
	case FixedWindow:
		return &cellOf[windowState]{}
	case TokenBucket:
		return &cellOf[bucketState]{}
	case LeakyBucket:
		return &cellOf[leakyState]{}
	case SlidingWindowSegments:
	}
	return nil
}
