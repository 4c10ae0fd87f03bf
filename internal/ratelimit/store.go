package ratelimit

import (
	"context"
	"errors"
	"time"
)

// Source names what made a decision.
type Source string

// The sources.
const (
	SourceRedis    Source = "redis"
	SourcePostgres Source = "postgres"
	SourceMemory   Source = "memory" // this replica alone
	SourceNone     Source = "none"   // nobody: the limit is open
)

// Kind is what a charge asks for.
type Kind uint8

// The kinds.
const (
	Take   Kind = iota // admit up to Hits hits
	Peek               // answer for Hits hits of Cost each, write nothing
	Refund             // give Hits × Cost units back, oldest first, never below zero used
	// Raise makes sure that each counter shows at least the units of Charge.Known: it adds what is missing, once. It never
	// refuses and never adds to what is there, so it may be repeated, and a call of unknown outcome needs no care.
	Raise
	// Account answers like a Peek and fills Outcome.Portions, for a Raise elsewhere.
	Account
)

// Portion is units that were used so long ago.
type Portion struct {
	// Age is 0 or more; a unit that is a window old counts no more.
	Age   time.Duration
	Units int64
}

// Charge is one subject group's hits against all the limits that hold for it. It is all-or-nothing per hit: a hit that
// one enforcing limit refuses is charged to none. Two charges are identical when they have the same counters and cost.
type Charge struct {
	Kind Kind
	// Counters share one cluster slot (one Subject.Group). Order is the plan's.
	Counters []Counter
	// Hits is how many identical hits are merged: ≥ 1.
	Hits int64
	// Cost is the units one hit takes before a limit's own multiplier: 0…MaxCost. A Take of cost 0 is a Peek of cost 0.
	Cost int64
	// Known is, for a Raise only, what each of Counters is known to have used, youngest first.
	Known [][]Portion
}

// KnownOf is what the counter at i is known to have used: nothing where Known is too short.
func (c *Charge) KnownOf(i int) []Portion {
	if i < len(c.Known) {
		return c.Known[i]
	}
	return nil
}

// Counter is a limit together with where it counts for one subject.
type Counter struct {
	Key   Key
	Limit *Limit
	// Shadow counters never refuse: they are charged with as many of the admitted hits as fit.
	Shadow bool
}

// Outcome answers one charge. "Denied" is Admitted == 0 with a nil Err, never an error.
type Outcome struct {
	// Admitted is 0…Hits: with one cost per charge, the minimum over the enforcing limits of ⌊room ÷ units⌋, which
	// equals deciding the hits one by one. For a Peek or Account: how many would be admitted. For a Refund or Raise: Hits.
	Admitted int64
	// Counters answers each of Charge.Counters, in order. Reused between calls when it has capacity. Zero after a Raise.
	Counters []CounterState
	// Portions is, for an Account only, how old the units are that each counter shows, youngest first, as well as the
	// store knows it: never older than they are.
	Portions [][]Portion
	Source   Source
	// Err is why this charge, and only this one, could not be decided (a counter of the wrong type, say).
	Err error
	// Refusal is set by a DenyCache on a refusal that it repeats or may repeat; nil otherwise.
	Refusal *Refusal
}

// CounterState is one counter after the charge. All durations are the store's own clock's.
type CounterState struct {
	// Used is 0…Quota units in the current window after the admitted hits; above the quota (it was lowered) it is clamped.
	Used int64
	// Remaining is max(0, Quota − Used).
	Remaining int64
	// ResetAfter is when the counter is whole again if nothing more comes: 0…Span.
	ResetAfter time.Duration
	// RetryAfter is how long until one more hit of the charge's cost fits this limit: 0 when it fits now, Never when it
	// cannot (the cost is above the quota).
	RetryAfter time.Duration
	// Delay is a leaky bucket's wait for the FIRST admitted hit of this charge; each later one waits DelayStep longer.
	// Both are 0 for the other algorithms.
	Delay     time.Duration
	DelayStep time.Duration
	// Charged is how many hits were charged here: Admitted, or fewer on a shadow counter that was too full.
	Charged int64
	// Effective is what really decided: the limit's algorithm, or SlidingWindowSegments.
	Effective Algorithm
}

// Never is the RetryAfter of a hit that no waiting lets in.
const Never = time.Duration(1<<63 - 1)

// ErrUnavailable is what a store's error wraps when the store as a whole could not decide: down, hung, full, read-only,
// still loading, past the deadline or behind an open breaker. Decorators fail over on it.
var ErrUnavailable = errors.New("store unavailable")

// ErrCounter is what Outcome.Err wraps when a single charge could not be decided.
var ErrCounter = errors.New("counter cannot be read")

// Store holds counters. Implementations are safe for concurrent use, exact under concurrency between all processes that
// share the store, and use the store's own clock.
//
// Decide settles the charges in order, a later one seeing what earlier ones wrote, and puts the answer of charges[i] in
// out[i]; len(out) ≥ len(charges). A nil error means every charge has an answer or an Err of its own. A non-nil error
// wraps ErrUnavailable; then charges may or may not have been counted, and nothing in out is to be used. Decide returns
// by the deadline of ctx. An error that is the caller's own cancellation wraps ctx.Err() and not ErrUnavailable.
type Store interface {
	Decide(ctx context.Context, charges []Charge, out []Outcome) error
	// Source is where Decide's answers come from.
	Source() Source
}
