package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
)

// ErrClosed is what Outcome.Err wraps when no store could decide and an enforcing limit of the charge is `closed`.
var ErrClosed = errors.New("no store can decide and a limit is closed")

var errNoStore = fmt.Errorf("%w: there is no other store", ErrUnavailable)

// Failover is a Store that always answers: from the first of its stores that can, and when none can, by what each limit
// says about that (Limit.OnStoreFailure). Decide never fails but for the caller's own cancellation.
//
// A call that a store did not answer may have been counted there and is asked again of the next one: it is counted once
// too often at most, never too seldom. Usage goes along from the first store to the second and back (handover).
type Failover struct {
	stores   []*Guard
	handover *handover // nil: usage is not carried over
	local    *Memory
	now      func() time.Time
	log      *slog.Logger

	undecided  atomic.Int64 // charges that nobody decided
	counted    atomic.Int64 // charges decided by memory
	localFull  atomic.Int64 // charges that memory had no room for
	complained atomic.Int64 // Unix second of the last complaint
}

// FailoverConfig names the stores in the order they are asked.
type FailoverConfig struct {
	// Stores is Redis, then Postgres; just Postgres where no Redis is configured.
	Stores []*Guard
	// Mirror is the second store itself, without its guard: for calls that are large and in no hurry, bounded by its own
	// timeout. With it, usage is carried from the first store to the second and back; the caller owns the loop (see Mirror).
	Mirror Store
	// Lives says how many servers the first store has been seen to be, and since when it is this one: another server may not
	// have the counters of the one before. Nil: it is always the same.
	Lives func() (count uint64, since time.Time)
	// Local counts `local` limits while no store answers.
	Local *Memory
	// Now is time.Now in production.
	Now func() time.Time
	Log *slog.Logger
}

// NewFailover returns a failover over the given stores.
func NewFailover(cfg FailoverConfig) *Failover {
	return &Failover{stores: cfg.Stores, handover: newHandover(&cfg), local: cfg.Local, now: cfg.Now, log: cfg.Log}
}

// Health is who decides, for /readyz, the dashboard and metrics.
type Health struct {
	// Deciding is the first store whose breaker is closed, SourceNone when there is none.
	Deciding Source
	Stores   []StoreHealth
	// Undecided is how many charges nobody decided since the start: open limits allowed them, closed ones did not.
	Undecided int64
	Handover  HandoverHealth
	// Local is how many charges this replica's memory decided, LocalFull how many it had no room to count.
	Local, LocalFull int64
}

// StoreHealth is one store as its breaker sees it.
type StoreHealth struct {
	Source  Source
	Breaker BreakerState
	// Since is when the store was last taken back, or last given up.
	Since time.Time
}

// Health reads the breakers.
func (f *Failover) Health() Health {
	h := Health{
		Deciding: SourceNone, Stores: make([]StoreHealth, len(f.stores)),
		Undecided: f.undecided.Load(), Local: f.counted.Load(), LocalFull: f.localFull.Load(), Handover: f.handover.health(),
	}
	for i, g := range f.stores {
		state, since := g.State()
		h.Stores[i] = StoreHealth{Source: g.Source(), Breaker: state, Since: since}
		if h.Deciding == SourceNone && state == BreakerClosed {
			h.Deciding = g.Source()
		}
	}
	return h
}

// Source is who decides now.
func (f *Failover) Source() Source { return f.Health().Deciding }

// Decide asks the stores in order. Charges that a store could not decide although it answered (Outcome.Err) are asked of
// the next one.
func (f *Failover) Decide(ctx context.Context, charges []Charge, out []Outcome) error {
	if len(charges) == 0 {
		return nil
	}
	return f.decide(ctx, f.stores, charges, out)
}

func (f *Failover) decide(ctx context.Context, stores []*Guard, charges []Charge, out []Outcome) error {
	failed := errNoStore
	var silent error // why the second store did not answer a question that came with the first one's call
	for i, g := range stores {
		if silent != nil && f.handover.isSecond(g) {
			// It has had its whole time within this call: a second silence would only make the caller wait once more.
			failed = silent
			continue
		}
		var err error
		silent, err = f.ask(ctx, g, charges, out)
		if err == nil {
			return f.settle(ctx, stores[i+1:], g.Source(), charges, out)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("decide: %w", ctx.Err())
		}
		failed = err
	}
	for i := range charges {
		f.alone(ctx, &charges[i], &out[i], failed)
	}
	return nil
}

// ask has one store decide, with what has to be handed over to it in front. silent is why the second store did not say
// what that is.
func (f *Failover) ask(ctx context.Context, g *Guard, charges []Charge, out []Outcome) (silent, err error) {
	report, err := g.enter(ctx)
	if err != nil {
		return nil, err
	}
	errand := f.handover.prepare(ctx, g, charges)
	if err := ctx.Err(); err != nil {
		g.leave(report)
		return nil, fmt.Errorf("decide: %w", err)
	}
	if n := len(errand.raises); n == 0 {
		err = g.visit(ctx, report, charges, out)
	} else {
		all := make([]Outcome, n+len(charges))
		copy(all[n:], out)
		err = g.visit(ctx, report, append(errand.raises, charges...), all)
		copy(out, all[n:])
	}
	if err == nil {
		f.handover.settle(g, &errand, charges, out)
	}
	return errand.silent, err
}

// Mirror tells the second store, once, what the first has counted and the second does not know. To be called about every
// second: what is not mirrored yet is what a loss of the first store can cost. An error is the second store's failure, for a
// log at most: nothing is lost but time.
func (f *Failover) Mirror(ctx context.Context) error {
	if f.handover == nil {
		return nil
	}
	return f.handover.mirror(ctx)
}

// settle completes a store's answer: it names the source, and has the charges that failed on their own decided by the
// stores that are left, or by nobody.
func (f *Failover) settle(ctx context.Context, left []*Guard, source Source, charges []Charge, out []Outcome) error {
	failed := false
	for i := range charges {
		out[i].Source = source
		failed = failed || out[i].Err != nil
	}
	if !failed {
		return nil
	}
	for i := range charges {
		if out[i].Err == nil {
			continue
		}
		f.complain(ctx, "a charge cannot be decided", out[i].Err)
		if err := f.decide(ctx, left, charges[i:i+1], out[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

// alone decides a charge without any store: a closed limit refuses to decide, local limits are counted in memory, open
// ones are not counted at all.
func (f *Failover) alone(ctx context.Context, c *Charge, out *Outcome, cause error) {
	*out = Outcome{Admitted: c.Hits, Counters: resized(out.Counters, len(c.Counters)), Source: SourceNone}
	clear(out.Counters)
	local := Charge{Kind: c.Kind, Hits: c.Hits, Cost: c.Cost}
	var at []int
	for i := range c.Counters {
		limit := c.Counters[i].Limit
		switch {
		case limit.OnStoreFailure == FailLocal:
			local.Counters = append(local.Counters, c.Counters[i])
			at = append(at, i)
		case limit.OnStoreFailure == FailClosed && !c.Counters[i].Shadow:
			f.undecided.Add(1)
			f.complain(ctx, "no store can decide: a closed limit refuses", cause)
			out.Admitted = 0
			out.Err = fmt.Errorf("%w: %q: %w", ErrClosed, limit.Name, cause)
			return
		}
	}
	if len(at) == 0 {
		f.undecided.Add(1)
		f.complain(ctx, "no store can decide: open limits allow", cause)
		return
	}
	f.inMemory(ctx, &local, at, out, cause)
}

// inMemory decides a charge's local limits, which are at the given places among its counters.
func (f *Failover) inMemory(ctx context.Context, local *Charge, at []int, out *Outcome, cause error) {
	var decided Outcome
	f.local.charge(local, &decided)
	if decided.Err != nil {
		f.localFull.Add(1)
		f.undecided.Add(1)
		f.complain(ctx, "no store can decide and memory cannot count: allowed", errors.Join(cause, decided.Err))
		return
	}
	f.counted.Add(1)
	f.complain(ctx, "no store can decide: local limits count in this replica alone", cause)
	out.Admitted, out.Source = decided.Admitted, SourceMemory
	for i, place := range at {
		out.Counters[place] = decided.Counters[i]
	}
}

// complainEvery is how often, in seconds, decisions without a store are worth a line.
const complainEvery = 10

func (f *Failover) complain(ctx context.Context, message string, cause error) {
	second := f.now().Unix()
	last := f.complained.Load()
	if (last != 0 && second-last < complainEvery) || !f.complained.CompareAndSwap(last, second) {
		return
	}
	f.log.LogAttrs(ctx, slog.LevelError, message, slog.Any("error", cause),
		slog.Int64("undecided_so_far", f.undecided.Load()), slog.Int64("local_so_far", f.counted.Load()))
}

// Close closes the guards: no call comes in any more, and those in flight are waited for until ctx ends.
func (f *Failover) Close(ctx context.Context) error {
	var all error
	for _, g := range f.stores {
		all = errors.Join(all, g.Close(ctx))
	}
	return all
}
