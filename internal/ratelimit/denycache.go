package ratelimit

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of a DenyCache.
const (
	// DefaultDenials is how many refusing counters a DenyCache remembers that was not told otherwise: about 30 MB.
	DefaultDenials = 1 << 16
	// denialLasts is how long after its receipt a refusal is believed at most: so late, at most, is a refund or reset seen that
	// another replica made.
	denialLasts = time.Second
	// denyShards is a power of two well above the number of cores.
	denyShards = 64
	// costsMost is how many different costs are remembered per counter.
	costsMost = 8
)

// DenyCache decorates a Store: what it has refused it refuses again without asking, for as long as the store itself would.
//
// A refusal is remembered for the counter that refused, the limit as it was, and the cost: from then on any charge of this
// cost on this counter is refused, whatever its other counters are, until the moment the store named, counted from when the
// question was sent, and for at most a second. Until then nothing but a refund, a raise or a reset lets such a hit in. A
// raise or another override is another limit, and a reset another key, so neither meets a remembered refusal. A refund on
// this replica forgets it at once; one on another replica is seen within the second. Peeks are never answered from memory.
//
// A charge that it refuses knows the numbers of the counters that refused, and of the others only when the refusal came of the
// same counters: those it knows nothing of are left undecided (Effective is empty). Times are aged by how long ago the
// store answered.
//
// A refusal that Redis made stays right when Postgres takes over. One that Postgres made may outlive the return of Redis by up to
// a second, which is within what a handover may be too strict. What memory or nobody decided is not remembered.
//
// It is safe for concurrent use and takes a lock of its own for one of many shards only.
type DenyCache struct {
	store Store
	now   func() time.Time
	start time.Time
	seed  maphash.Seed
	most  int // keys per shard

	answered atomic.Int64
	keys     atomic.Int64
	shards   [denyShards]denyShard
}

type denyShard struct {
	mu       sync.RWMutex
	denials  map[Key][]*denial
	refunded time.Duration // when a refund last touched a counter of this shard; older questions teach nothing
	_        [64]byte      // shards do not share a cache line
}

// denial is one remembered refusal. It is never changed.
type denial struct {
	cost            int64
	limit           *Limit
	received, until time.Duration
	source          Source
	state           CounterState
	// counters and states are the whole charge that was refused.
	counters []Counter
	states   []CounterState
	refusal  *Refusal
}

// Refusal stands for one refusal of a store and for every repetition of it by a DenyCache: they have one name.
type Refusal struct{ name atomic.Pointer[string] }

// Name is the name given first; empty when there is none yet.
func (r *Refusal) Name() string {
	if name := r.name.Load(); name != nil {
		return *name
	}
	return ""
}

// Call names the refusal and returns the name it has: another one when somebody was faster.
func (r *Refusal) Call(name string) string {
	if r.name.CompareAndSwap(nil, &name) {
		return name
	}
	return r.Name()
}

// NewDenyCache decorates store. Now has a monotonic reading (time.Now). It remembers at most about maxKeys counters
// (0: DefaultDenials).
func NewDenyCache(store Store, now func() time.Time, maxKeys int) *DenyCache {
	if maxKeys <= 0 {
		maxKeys = DefaultDenials
	}
	d := &DenyCache{store: store, now: now, start: now(), seed: maphash.MakeSeed(), most: max(1, maxKeys/denyShards)}
	for i := range d.shards {
		d.shards[i].denials = make(map[Key][]*denial)
		d.shards[i].refunded = -1
	}
	return d
}

// Source is the store's.
func (d *DenyCache) Source() Source { return d.store.Source() }

// DenyCacheStats is what a DenyCache holds, and has done since it was made.
type DenyCacheStats struct {
	Keys     int64 // counters remembered now, those whose time is over included until Sweep
	Answered int64 // charges refused without asking
}

// Stats reads the numbers.
func (d *DenyCache) Stats() DenyCacheStats {
	return DenyCacheStats{Keys: d.keys.Load(), Answered: d.answered.Load()}
}

func (d *DenyCache) clock() time.Duration { return d.now().Sub(d.start) }

// Decide answers what it remembers and asks the store about the rest.
func (d *DenyCache) Decide(ctx context.Context, charges []Charge, out []Outcome) error {
	sent := d.clock()
	if slices.ContainsFunc(charges, func(c Charge) bool { return c.Kind == Refund }) {
		// What was refused before this call may fit after its refund, so nothing of it is answered from memory or kept.
		err := d.store.Decide(ctx, charges, out)
		d.forget(charges)
		return err
	}
	known := 0
	if d.keys.Load() > 0 {
		for i := range charges {
			if d.answer(&charges[i], &out[i], sent) {
				known++
			}
		}
	}
	switch known {
	case len(charges):
		return nil
	case 0:
		return d.ask(ctx, charges, out, sent)
	}
	return d.askRest(ctx, charges, out, sent)
}

// askRest asks about the charges that memory did not answer. Those it did answer have a refusal.
func (d *DenyCache) askRest(ctx context.Context, charges []Charge, out []Outcome, sent time.Duration) error {
	var rest []Charge
	var at []int
	for i := range charges {
		if out[i].Refusal == nil {
			rest, at = append(rest, charges[i]), append(at, i)
		}
	}
	answers := make([]Outcome, len(rest))
	if err := d.ask(ctx, rest, answers, sent); err != nil {
		return err
	}
	for j, i := range at {
		out[i] = answers[j]
	}
	return nil
}

// ask asks the store, and remembers what it refuses.
func (d *DenyCache) ask(ctx context.Context, charges []Charge, out []Outcome, sent time.Duration) error {
	if err := d.store.Decide(ctx, charges, out); err != nil {
		return err
	}
	received := time.Duration(-1)
	for i := range charges {
		c, o := &charges[i], &out[i]
		if o.Admitted > 0 && d.keys.Load() > 0 {
			d.outdate(c)
		}
		if !c.mergeable() || o.Admitted > 0 || o.Err != nil || o.Source != SourceRedis && o.Source != SourcePostgres || len(o.Counters) < len(c.Counters) {
			continue
		}
		if received < 0 {
			received = d.clock()
		}
		d.remember(c, o, sent, received)
	}
	return nil
}

// remember keeps a refusal for every counter that refused.
func (d *DenyCache) remember(c *Charge, o *Outcome, sent, received time.Duration) {
	var counters []Counter
	var states []CounterState
	for i := range c.Counters {
		wait := o.Counters[i].RetryAfter
		if c.Counters[i].Shadow || wait <= 0 {
			continue
		}
		until := received + denialLasts
		if wait < until-sent {
			until = sent + wait
		}
		if until <= received {
			continue // over before it was heard of
		}
		if o.Refusal == nil {
			o.Refusal = new(Refusal)
			counters, states = slices.Clone(c.Counters), slices.Clone(o.Counters[:len(c.Counters)])
		}
		d.put(c.Counters[i].Key, sent, &denial{
			cost: c.Cost, limit: c.Counters[i].Limit, received: received, until: until, source: o.Source, state: states[i],
			counters: counters, states: states, refusal: o.Refusal,
		})
	}
}

func (d *DenyCache) shard(k Key) *denyShard {
	return &d.shards[maphash.String(d.seed, string(k))%denyShards]
}

// put keeps a refusal unless a refund came in between, in place of what it replaces or of any other.
func (d *DenyCache) put(key Key, sent time.Duration, fresh *denial) {
	s := d.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refunded >= sent {
		return
	}
	old, was := s.denials[key]
	kept := make([]*denial, 0, len(old)+1)
	for _, o := range old {
		if o.until > fresh.received && (o.cost != fresh.cost || !sameLimit(o.limit, fresh.limit)) {
			kept = append(kept, o)
		}
	}
	if len(kept) == costsMost {
		kept = kept[1:]
	}
	if !was {
		d.keys.Add(1 - int64(s.makeRoom(d.most, fresh.received)))
	}
	s.denials[key] = append(kept, fresh)
}

// makeRoom drops what is over among a few entries, then, in a full shard, any one. It returns how many went.
func (s *denyShard) makeRoom(most int, now time.Duration) (dropped int) {
	if len(s.denials) < most {
		return 0
	}
	const few = 8
	looked := 0
	var last Key
	for key, denials := range s.denials {
		if last = key; over(denials, now) {
			delete(s.denials, key)
			dropped++
		}
		if looked++; looked == few {
			break
		}
	}
	if len(s.denials) >= most {
		delete(s.denials, last)
		dropped++
	}
	return dropped
}

func over(denials []*denial, now time.Duration) bool {
	return !slices.ContainsFunc(denials, func(o *denial) bool { return o.until > now })
}

// find is what is remembered of a counter for a cost, nil for nothing.
func (d *DenyCache) find(c *Counter, cost int64, now time.Duration) *denial {
	if c.Shadow {
		return nil
	}
	s := d.shard(c.Key)
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, o := range s.denials[c.Key] {
		if o.cost == cost && now < o.until && sameLimit(o.limit, c.Limit) {
			return o
		}
	}
	return nil
}

// answer refuses a charge by memory, if any of its counters is known to.
func (d *DenyCache) answer(c *Charge, out *Outcome, now time.Duration) bool {
	out.Refusal = nil
	if !c.mergeable() {
		return false
	}
	var longest *denial
	for i := range c.Counters {
		found := d.find(&c.Counters[i], c.Cost, now)
		if found != nil && (longest == nil || found.wait(now) > longest.wait(now)) {
			longest = found
		}
	}
	if longest == nil {
		return false
	}
	*out = Outcome{Counters: resized(out.Counters, len(c.Counters)), Source: longest.source, Refusal: longest.refusal}
	for i := range c.Counters {
		out.Counters[i] = CounterState{}
		if found := d.find(&c.Counters[i], c.Cost, now); found != nil {
			out.Counters[i] = found.state.aged(now - found.received)
		} else if longest.knows(i, &c.Counters[i]) {
			out.Counters[i] = longest.states[i].aged(now - longest.received)
		}
	}
	d.answered.Add(1)
	return true
}

// knows reports whether the refused charge had the same counter at the same place, and it let the hit in. A counter that
// refused as well has a memory of its own: without one, what it said is over, or it was charged since.
func (o *denial) knows(i int, c *Counter) bool {
	if i >= len(o.counters) || !c.Shadow && o.states[i].RetryAfter > 0 {
		return false
	}
	was := &o.counters[i]
	return was.Key == c.Key && was.Shadow == c.Shadow && sameLimit(was.Limit, c.Limit)
}

// wait is how long the counter still refuses.
func (o *denial) wait(now time.Duration) time.Duration {
	return o.state.aged(now - o.received).RetryAfter
}

// aged is the state of a counter that nothing was charged to since.
func (s CounterState) aged(by time.Duration) CounterState {
	s.ResetAfter = max(0, s.ResetAfter-by)
	if s.RetryAfter != Never && s.RetryAfter > 0 {
		s.RetryAfter = max(1, s.RetryAfter-by)
	}
	return s
}

// outdate drops what is remembered of counters that were charged: the waits for other costs are no longer true.
func (d *DenyCache) outdate(c *Charge) {
	if !c.mergeable() {
		return
	}
	for i := range c.Counters {
		key := c.Counters[i].Key
		s := d.shard(key)
		s.mu.RLock()
		_, was := s.denials[key]
		s.mu.RUnlock()
		if was {
			s.mu.Lock()
			d.drop(s, key)
			s.mu.Unlock()
		}
	}
}

// drop forgets a counter. The caller holds the shard's lock.
func (d *DenyCache) drop(s *denyShard, key Key) {
	if _, was := s.denials[key]; was {
		delete(s.denials, key)
		d.keys.Add(-1)
	}
}

// forget drops what is remembered of refunded counters, and keeps answers to older questions from being remembered.
func (d *DenyCache) forget(charges []Charge) {
	now := d.clock()
	for i := range charges {
		if charges[i].Kind != Refund {
			continue
		}
		for j := range charges[i].Counters {
			key := charges[i].Counters[j].Key
			s := d.shard(key)
			s.mu.Lock()
			s.refunded = now
			d.drop(s, key)
			s.mu.Unlock()
		}
	}
}

// Sweep drops everything that is over. New refusals replace old ones on their own; call this now and then so that memory
// also falls in silence.
func (d *DenyCache) Sweep() {
	for i := range d.shards {
		s := &d.shards[i]
		s.mu.Lock()
		before := len(s.denials)
		now := d.clock()
		for key, denials := range s.denials {
			if over(denials, now) {
				delete(s.denials, key)
			}
		}
		d.keys.Add(int64(len(s.denials) - before))
		if len(s.denials) == 0 && before > 0 {
			s.denials = make(map[Key][]*denial)
		}
		s.mu.Unlock()
	}
}
