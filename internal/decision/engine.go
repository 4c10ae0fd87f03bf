package decision

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/usage"
)

// Config is what an Engine needs.
type Config struct {
	// Store holds the counters: normally the failover store, which decides what happens when Redis is away.
	Store     ratelimit.Store
	Directory *tenants.Directory
	// Recorder takes what was decided; nil: nobody does.
	Recorder usage.Recorder
	// Observer is told of every finished decision; nil: nobody is.
	Observer Observer
	// Used is told of every credential that proved itself (tenants.LastUsed.Note); nil: nobody is. It must not block.
	Used func(kind tenants.Kind, id string, at time.Time)
	// UsedOverride is told of every override that had a part in a decision (tenants.LastUsed.NoteOverride); nil: nobody is. It must not block.
	UsedOverride func(o *tenants.Override, at time.Time)
	// Tokens verifies tokens of the application; nil: none count.
	Tokens TokenVerifier
	// Hosts name tenants by the host that a request is for; none: no host does.
	Hosts HostPatterns
	// Now is this replica's clock. It dates answers and ends credentials and overrides; counters have the store's clock.
	Now func() time.Time
	// Mode is PEGEL_MODE: what holds until an administrator stores a mode (PUT /admin/mode). Empty: enforce.
	Mode ratelimit.Mode
	// IPv6Prefix is the length IPv6 addresses are grouped by, 1…128; 0: 64.
	IPv6Prefix int
	Log        *slog.Logger
}

// Engine decides. It is safe for concurrent use; everything it keeps is bounded and can be forgotten.
type Engine struct {
	store      ratelimit.Store
	directory  *tenants.Directory
	recorder   usage.Recorder
	observer   Observer
	used       func(kind tenants.Kind, id string, at time.Time)
	overridden func(o *tenants.Override, at time.Time)
	tokens     TokenVerifier
	hosts      HostPatterns
	now        func() time.Time
	mode       ratelimit.Mode
	ipv6Prefix int
	log        *slog.Logger

	ids      *IDSource
	prepared atomic.Pointer[preparedTenants]
	status   statusCache
	// lastComplaint is when an undecidable charge was last logged, in Unix seconds: one line a second, whatever the traffic.
	lastComplaint atomic.Int64
}

// New builds an engine.
func New(cfg Config) *Engine {
	e := &Engine{
		store: cfg.Store, directory: cfg.Directory, recorder: cfg.Recorder, observer: cfg.Observer, used: cfg.Used, overridden: cfg.UsedOverride, tokens: cfg.Tokens, hosts: cfg.Hosts, now: cfg.Now, mode: cfg.Mode,
		ipv6Prefix: cfg.IPv6Prefix, log: cfg.Log, ids: NewIDSource(),
	}
	if e.ipv6Prefix == 0 {
		e.ipv6Prefix = defaultIPv6Prefix
	}
	if e.used == nil {
		e.used = func(tenants.Kind, string, time.Time) {}
	}
	if e.overridden == nil {
		e.overridden = func(*tenants.Override, time.Time) {}
	}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	return e
}

// Mode is the mode that holds now: the stored one, else the configured one.
func (e *Engine) Mode() ratelimit.Mode {
	if stored := e.directory.Snapshot().StoredMode; stored != "" {
		return stored
	}
	if e.mode == "" {
		return ratelimit.Enforce
	}
	return e.mode
}

// AddressPrefix reads an address that a caller names, as it is counted; ok is false for a text that is no address.
func (e *Engine) AddressPrefix(text string) (p netip.Prefix, ok bool) {
	a, ok := ParseAddress(text)
	if !ok {
		return netip.Prefix{}, false
	}
	return prefixOf(a, e.ipv6Prefix), true
}

// Decide settles one hit: the address group first, then, unless the address refused, the tenant group. Denied is a
// decision, not an error. The errors are ErrNetworkDenied, ErrSuspended, ErrClosed, and the caller's own cancellation.
func (e *Engine) Decide(ctx context.Context, h Hit) (*Decision, error) {
	w := newWork(h)
	moment := e.moment()
	e.plan(w, moment)
	if w.pending(addressGroup) {
		e.settleOne(ctx, w, addressGroup)
	}
	if w.pending(tenantGroup) {
		e.settleOne(ctx, w, tenantGroup)
	}
	return e.conclude(w, moment)
}

// DecideBatch settles many hits in the order given: one Store call for the addresses of all of them, then one for the
// tenants of those whose address let them through. Results are in the order of hits.
func (e *Engine) DecideBatch(ctx context.Context, hits []Hit) []Result {
	moment := e.moment()
	works := newWorks(hits)
	for i := range works {
		e.plan(&works[i], moment)
	}
	e.settleAll(ctx, works, addressGroup)
	e.settleAll(ctx, works, tenantGroup)
	results := make([]Result, len(hits))
	for i := range works {
		results[i].Decision, results[i].Err = e.conclude(&works[i], moment)
	}
	return results
}

// moment is everything that must be the same throughout one decision.
type moment struct {
	snapshot *tenants.Snapshot
	prepared *preparedTenants
	now      time.Time
	shadow   bool
}

func (e *Engine) moment() moment {
	snapshot := e.directory.Snapshot()
	m := moment{snapshot: snapshot, prepared: e.preparedFor(snapshot), now: e.now()}
	m.shadow = snapshot.StoredMode == ratelimit.Shadow || snapshot.StoredMode == "" && e.mode == ratelimit.Shadow
	return m
}

// group is one of the two charges of a hit. Each is all-or-nothing; an address stays charged when the tenant refuses.
type group uint8

const (
	tenantGroup group = iota
	addressGroup
)

// How many limits a hit may meet before its work needs memory of its own for them. In a batch less room is faster: 2 by 5 % than 4
// (BenchmarkCheckBatch).
const (
	singleLimits = 4
	batchLimits  = 2
)

// work is one hit on its way to a decision. It is never reused: a store that gave up on a call may still be reading the charges,
// and the decision that the caller keeps points into it.
type work struct {
	hit      Hit
	err      error
	decision Decision
	// limits and counters are parallel: the tenant's [0:tenantLimits), then the address's.
	limits       []LimitState
	counters     []ratelimit.Counter
	tenantLimits int
	// refused says which groups admitted nothing, and refusal is what the store calls the last of it, nil for nothing.
	refused [2]bool
	refusal *ratelimit.Refusal
	// all makes both groups answer, whatever the first says (Status).
	all bool

	charge [1]ratelimit.Charge
	out    [1]ratelimit.Outcome
	states []ratelimit.CounterState // room for the store's answer
	uses   []usage.LimitUse         // room for what is recorded
}

// newWork makes the work on a hit in one allocation.
func newWork(h Hit) *work {
	w := &struct {
		work
		limits   [singleLimits]LimitState
		counters [singleLimits]ratelimit.Counter
		states   [singleLimits]ratelimit.CounterState
		uses     [singleLimits]usage.LimitUse
	}{work: work{hit: h}}
	w.work.limits, w.work.counters, w.work.states, w.work.uses = w.limits[:0], w.counters[:0], w.states[:0], w.uses[:0]
	return &w.work
}

// newWorks makes the work on many hits in few allocations.
func newWorks(hits []Hit) []work {
	works, room := make([]work, len(hits)), len(hits)*batchLimits
	limits, counters := make([]LimitState, room), make([]ratelimit.Counter, room)
	states, uses := make([]ratelimit.CounterState, room), make([]usage.LimitUse, room)
	for i := range works {
		w, from, to := &works[i], i*batchLimits, (i+1)*batchLimits
		w.hit = hits[i]
		w.limits, w.counters, w.states, w.uses = limits[from:from:to], counters[from:from:to], states[from:from:to], uses[from:from:to]
	}
	return works
}

// span is where a group's limits and counters are.
func (w *work) span(g group) (from, to int) {
	if g == tenantGroup {
		return 0, w.tenantLimits
	}
	return w.tenantLimits, len(w.limits)
}

// pending reports whether a group still has to be asked.
func (w *work) pending(g group) bool {
	from, to := w.span(g)
	return w.err == nil && from < to && (g == addressGroup || w.all || !w.refused[addressGroup])
}

// chargeOf is a group's charge.
func (w *work) chargeOf(g group) ratelimit.Charge {
	from, to := w.span(g)
	kind := ratelimit.Take
	if w.peeks() {
		kind = ratelimit.Peek
	}
	return ratelimit.Charge{Kind: kind, Counters: w.counters[from:to:to], Hits: 1, Cost: w.hit.Cost}
}

// outcome is where the store puts an answer. A store may keep the memory it is handed and hand back its own: what came back for the first
// group goes into the call for the second.
func (w *work) outcome() ratelimit.Outcome {
	if w.out[0].Counters == nil {
		w.out[0].Counters = w.states
	}
	return ratelimit.Outcome{Counters: w.out[0].Counters[:0]}
}

// peeks reports whether the hit consumes nothing.
func (w *work) peeks() bool { return !w.hit.Consumes() }

// settleOne asks the store about one group of one hit.
func (e *Engine) settleOne(ctx context.Context, w *work, g group) {
	w.charge[0], w.out[0] = w.chargeOf(g), w.outcome()
	if err := e.store.Decide(ctx, w.charge[:], w.out[:]); err != nil {
		e.undecided(ctx, w, g, err)
		return
	}
	e.apply(ctx, w, g, &w.out[0])
}

// settleAll asks the store about one group of every hit that still needs it, in one call.
func (e *Engine) settleAll(ctx context.Context, works []work, g group) {
	asked := make([]*work, 0, len(works))
	for i := range works {
		if works[i].pending(g) {
			asked = append(asked, &works[i])
		}
	}
	if len(asked) == 0 {
		return
	}
	charges, out := make([]ratelimit.Charge, len(asked)), make([]ratelimit.Outcome, len(asked))
	for i, w := range asked {
		charges[i], out[i] = w.chargeOf(g), w.outcome()
	}
	err := e.store.Decide(ctx, charges, out)
	for i, w := range asked {
		if err != nil {
			e.undecided(ctx, w, g, err)
			continue
		}
		w.out[0].Counters = out[i].Counters
		e.apply(ctx, w, g, &out[i])
	}
}

// apply puts a store's answer beside the limits it is about.
func (e *Engine) apply(ctx context.Context, w *work, g group, out *ratelimit.Outcome) {
	if out.Err != nil {
		e.undecided(ctx, w, g, out.Err)
		return
	}
	from, to := w.span(g)
	if len(out.Counters) != to-from {
		e.undecided(ctx, w, g, fmt.Errorf("%w: %d answers for %d counters", ratelimit.ErrCounter, len(out.Counters), to-from))
		return
	}
	admitted := out.Admitted > 0
	w.refused[g] = !admitted
	if out.Refusal != nil {
		w.refusal = out.Refusal
	}
	for i := range out.Counters {
		l, state := &w.limits[from+i], &out.Counters[i]
		if out.Source == ratelimit.SourceNone || state.Effective == "" {
			continue // open: it stays with SourceNone
		}
		l.State, l.Source = *state, out.Source
		// Nothing was written when the hit was not admitted or only looked: then a wait means no room. An admitted hit was
		// charged wherever it had room.
		if w.peeks() || !admitted {
			l.Refused = state.RetryAfter > 0
		} else {
			l.Refused = state.Charged == 0
		}
	}
}

// undecided applies what the limits say about a store that cannot decide: a closed limit refuses to decide, the others are
// open. It is never a 429. A limit that counts locally was the failover store's to decide; here nobody is left to.
func (e *Engine) undecided(ctx context.Context, w *work, g group, err error) {
	if ctx.Err() != nil && !errors.Is(err, ratelimit.ErrUnavailable) && !errors.Is(err, ratelimit.ErrCounter) {
		w.err = fmt.Errorf("decide: %w", err)
		return
	}
	if errors.Is(err, ratelimit.ErrClosed) {
		w.err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	from, to := w.span(g)
	for i := from; i < to; i++ {
		if w.counters[i].Limit.OnStoreFailure == ratelimit.FailClosed && !w.counters[i].Shadow {
			w.err = fmt.Errorf("%w: limit %q: %w", ErrClosed, w.counters[i].Limit.Name, err)
		}
	}
	second := e.now().Unix()
	if last := e.lastComplaint.Load(); last != second && e.lastComplaint.CompareAndSwap(last, second) {
		e.log.LogAttrs(ctx, slog.LevelError, "a charge could not be decided",
			slog.String("error", err.Error()), slog.Bool("closed", w.err != nil), slog.String("tenant", w.decision.Tenant))
	}
}
