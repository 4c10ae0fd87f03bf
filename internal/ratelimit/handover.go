package ratelimit

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// mirrorChunk is how many counters one call tells the fallback of.
	mirrorChunk = 500
	// readAgain is how soon, in µs, a counter is asked for again after the second store did not say what it knows.
	readAgain = int64(250 * time.Millisecond / time.Microsecond)
	// longAgo is a time, in µs, before any that matters; from it to any time fits an int64.
	longAgo = -int64(1) << 61
)

// handover carries usage between the first store of a failover and the second.
//
//   - What the first store counts is mirrored to the second, behind the decisions (mirror), and a subject's first call on the
//     second says what that does not know yet (tell).
//   - What the first store may lack (it was away, or is another server than before) is read from the second and put into it
//     in front of a counter's next charge, once (topUp).
//
// Both ways the unit is the best-known total: a Raise, which adds what is missing and nothing else. So calls may fail half
// way or be repeated, replicas may know different things, and nothing is ever counted twice.
type handover struct {
	first, second *Guard
	mirrorTo      Store
	lives         func() (count uint64, since time.Time)
	now           func() time.Time
	start         time.Time
	log           *slog.Logger
	ledger        *ledger
	passing       sync.Mutex // one pass of the mirror at a time

	toppedUp   atomic.Int64
	mirrored   atomic.Int64
	mirroredAt atomic.Int64 // µs: the end of the last pass that told everything
}

// HandoverHealth is how far the fallback is behind, for metrics.
type HandoverHealth struct {
	// Tracked is how many counters this replica remembers, Pending how many of them the fallback does not know enough of.
	Tracked, Pending int64
	// Lag is how long ago the fallback last knew of everything; 0 when it does.
	Lag time.Duration
	// Mirrored is how many uses the fallback was told of, Dropped how many found no place in this replica's memory.
	Mirrored, Dropped int64
	// ToppedUp is how many counters of the first store were raised.
	ToppedUp int64
}

func newHandover(cfg *FailoverConfig) *handover {
	if cfg.Mirror == nil || len(cfg.Stores) < 2 {
		return nil
	}
	h := &handover{
		first: cfg.Stores[0], second: cfg.Stores[1], mirrorTo: cfg.Mirror, lives: cfg.Lives, now: cfg.Now, start: cfg.Now(), log: cfg.Log,
		ledger: newLedger(),
	}
	if h.lives == nil {
		h.lives = func() (uint64, time.Time) { return 0, time.Time{} }
	}
	return h
}

func (h *handover) health() HandoverHealth {
	if h == nil {
		return HandoverHealth{}
	}
	health := HandoverHealth{
		Tracked: h.ledger.tracked.Load(), Pending: h.ledger.pending.Load(), Dropped: h.ledger.dropped.Load(),
		Mirrored: h.mirrored.Load(), ToppedUp: h.toppedUp.Load(),
	}
	if health.Pending > 0 {
		health.Lag = time.Duration(h.micros(h.now())-h.mirroredAt.Load()) * time.Microsecond
	}
	return health
}

// micros is a time on this handover's clock.
func (h *handover) micros(t time.Time) int64 { return t.Sub(h.start).Microseconds() }

// isSecond reports whether g guards the store that usage is carried to.
func (h *handover) isSecond(g *Guard) bool { return h != nil && g == h.second }

// epoch numbers the times since when the first store has been there with its data, and says when the present one began.
// While the store is away, and while it is probed, that is now.
func (h *handover) epoch(now int64) (epoch uint64, since int64) {
	a := h.first.breaker.absences.Load()
	lives, born := h.lives()
	since = longAgo
	if !born.IsZero() {
		since = max(since, h.micros(born))
	}
	switch {
	case a.lasts:
		since = now
	case !a.ended.IsZero():
		since = max(since, h.micros(a.ended))
	}
	return a.count + lives, since
}

// errand is what a call of a store takes along, and what it settles when it succeeds.
type errand struct {
	epoch  uint64
	raises []Charge     // to be settled in front of the call's own charges
	owed   []Counter    // that the first store gets its top-up for
	read   bool         // whether the second store has said what it knows of those
	silent error        // why it has not
	told   []unmirrored // what the second store gets to know
}

// prepare says what a call of the store has to take along.
func (h *handover) prepare(ctx context.Context, g *Guard, charges []Charge) errand {
	if h == nil {
		return errand{}
	}
	switch now := h.micros(h.now()); g {
	case h.first:
		return h.topUp(ctx, charges, now)
	case h.second:
		return h.tell(charges, now)
	}
	return errand{}
}

// tell is what the second store does not know of the charges' counters yet.
func (h *handover) tell(charges []Charge, now int64) errand {
	var e errand
	for i := range charges {
		for j := range charges[i].Counters {
			c := &charges[i].Counters[j]
			u, ok := h.ledger.unmirroredOf(c.Key, now)
			if !ok {
				continue
			}
			e.told = append(e.told, u)
			e.raises = append(e.raises, raiseTo(*c, []Portion{u.use}))
		}
	}
	return e
}

func raiseTo(c Counter, known []Portion) Charge {
	return Charge{Kind: Raise, Counters: []Counter{c}, Hits: 1, Known: [][]Portion{known}}
}

// topUp is what the first store may lack of the charges' counters.
func (h *handover) topUp(ctx context.Context, charges []Charge, now int64) errand {
	epoch, since := h.epoch(now)
	e := errand{epoch: epoch}
	var owed []Counter
	for i := range charges {
		for j := range charges[i].Counters {
			if c := &charges[i].Counters[j]; h.ledger.owes(c, epoch, since, now) {
				owed = append(owed, *c)
			}
		}
	}
	if len(owed) == 0 {
		return e
	}
	known, err := h.read(ctx, owed)
	now = h.micros(h.now())
	for i := range owed {
		if portions := h.withOwn(&owed[i], known[i], now); len(portions) > 0 {
			e.raises = append(e.raises, raiseTo(owed[i], portions))
		}
	}
	e.owed, e.read, e.silent = owed, err == nil, err
	return e
}

// read asks the second store what it knows. While it does not say, what this replica remembers has to do.
func (h *handover) read(ctx context.Context, counters []Counter) (known [][]Portion, err error) {
	known = make([][]Portion, len(counters))
	charges, out := make([]Charge, len(counters)), make([]Outcome, len(counters))
	for i := range counters {
		charges[i] = Charge{Kind: Account, Counters: counters[i : i+1 : i+1], Hits: 1}
	}
	if err := h.second.Decide(ctx, charges, out); err != nil {
		return known, fmt.Errorf("read what the second store knows: %w", err)
	}
	for i := range out {
		if out[i].Err == nil && len(out[i].Portions) == 1 {
			known[i] = out[i].Portions[0]
		}
	}
	return known, nil
}

// withOwn adds what this replica remembers and the second store was not told.
func (h *handover) withOwn(c *Counter, known []Portion, now int64) []Portion {
	own, ok := h.ledger.remembered(c.Key, now)
	if !ok {
		return known
	}
	if c.Limit.Algorithm.Bucket() {
		if levelOf(c.Limit, []Portion{own}) > levelOf(c.Limit, known) {
			return []Portion{own}
		}
		return known
	}
	for _, p := range known {
		own.Units -= p.Units
	}
	if own.Units <= 0 {
		return known
	}
	at, _ := slices.BinarySearchFunc(known, own, func(a, b Portion) int { return int(a.Age - b.Age) })
	return slices.Insert(slices.Clip(known), at, own)
}

// settle notes what a successful call has settled, and what the store said.
func (h *handover) settle(g *Guard, e *errand, charges []Charge, out []Outcome) {
	if h == nil {
		return
	}
	now := h.micros(h.now())
	if g == h.first {
		h.toppedUp.Add(int64(len(e.raises)))
		for i := range e.owed {
			h.ledger.toppedUp(&e.owed[i], e.epoch, e.read, now)
		}
	}
	for i := range e.told {
		h.ledger.mirrored(&e.told[i])
	}
	for i := range charges {
		c := &charges[i]
		if out[i].Err != nil || (c.Kind != Take && c.Kind != Refund) {
			continue
		}
		for j := range c.Counters {
			switch {
			case g == h.first:
				h.ledger.note(&c.Counters[j], &out[i].Counters[j], e.epoch, now)
			case g == h.second && (c.Kind == Refund || out[i].Counters[j].Charged > 0):
				h.ledger.fellBack(&c.Counters[j], now)
			}
		}
	}
}

// mirror tells the second store what it does not know yet. It stops at the first call that fails, or when the store's breaker
// keeps it out; what is left is told the next time. The breaker counts its calls, and a probe of an idle store is often one.
func (h *handover) mirror(ctx context.Context) error {
	h.passing.Lock()
	defer h.passing.Unlock()
	begun := h.micros(h.now())
	var all []unmirrored
	for shard := range h.ledger.shards {
		all = h.ledger.takeUnmirrored(shard, begun, all)
	}
	for chunk := range slices.Chunk(all, mirrorChunk) {
		if err := h.send(ctx, chunk); err != nil {
			return fmt.Errorf("mirror usage: %w", err)
		}
	}
	h.mirroredAt.Store(begun)
	return nil
}

func (h *handover) send(ctx context.Context, chunk []unmirrored) error {
	report, err := h.second.enter(ctx)
	if err != nil {
		return err
	}
	charges, out := make([]Charge, len(chunk)), make([]Outcome, len(chunk))
	for i := range chunk {
		charges[i] = raiseTo(Counter{Key: chunk[i].key, Limit: chunk[i].limit}, []Portion{chunk[i].use})
	}
	if err := h.mirrorTo.Decide(ctx, charges, out); err != nil {
		if ctx.Err() != nil {
			h.second.leave(report)
			return ctx.Err()
		}
		h.second.breaker.settle(report, err)
		return err
	}
	h.second.breaker.settle(report, nil)
	h.mirrored.Add(int64(len(chunk)))
	for i := range chunk {
		h.ledger.mirrored(&chunk[i]) // one that cannot be told will not be by repeating it
	}
	return nil
}
