package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// Guard is a Store that answers in time or not at all. It bounds every call to a hard deadline, even of a store that
// ignores its context, keeps the number of calls in flight below a bound, and stops asking a store that fails.
//
// A call runs in a goroutine of the guard's, which Close waits for. It is cut off from the caller's cancellation: a
// caller that leaves gets its own error at once, while the store's answer, or its silence up to the deadline, is still
// counted by the breaker, and no connection is torn down in the middle of a reply. A caller's cancellation is therefore
// never a failure of the store, and callers with little patience cannot hide one.
type Guard struct {
	store   Store
	timeout time.Duration
	slow    time.Duration
	now     func() time.Time
	log     *slog.Logger
	breaker *breaker
	called  func(took time.Duration, err error)
	errOpen error // made once: it is most frequent when there is most to do
	// slots holds one element per call in flight; Close fills it for good.
	slots  chan struct{}
	closed atomic.Bool
	calls  sync.Pool // of *call
}

// GuardConfig says how long and how often a store may be asked. Every field without a stated default is required.
type GuardConfig struct {
	Store Store
	// Timeout is the hard deadline of one call, the wait for a slot included.
	Timeout time.Duration
	// Slow is from when an answer counts as a failure although it is used; 0: only past Timeout.
	Slow time.Duration
	// MaxInFlight is how many calls the store works on at one time; one beyond it waits for a slot up to its deadline.
	// Default 1024.
	MaxInFlight int
	// Now is a clock with a monotonic reading, time.Now in production.
	Now func() time.Time
	Log *slog.Logger
	// Called is told of every call that ended, also of one that its caller no longer waited for; nil: nobody is.
	Called func(took time.Duration, err error)
}

const defaultInFlight = 1024

// NewGuard returns a guard whose breaker is closed.
func NewGuard(cfg GuardConfig) *Guard {
	if cfg.MaxInFlight <= 0 {
		cfg.MaxInFlight = defaultInFlight
	}
	if cfg.Slow <= 0 {
		cfg.Slow = cfg.Timeout
	}
	g := &Guard{
		store: cfg.Store, timeout: cfg.Timeout, slow: cfg.Slow, now: cfg.Now, log: cfg.Log,
		breaker: newBreaker(cfg.Store.Source(), cfg.Now, cfg.Log),
		slots:   make(chan struct{}, cfg.MaxInFlight),
		calls:   sync.Pool{New: func() any { return new(call) }},
	}
	g.called = cfg.Called
	if g.called == nil {
		g.called = func(time.Duration, error) {}
	}
	g.errOpen = g.unavailable(errBreakerOpen)
	return g
}

// Source is the guarded store's.
func (g *Guard) Source() Source { return g.store.Source() }

// State is the breaker's state, and since when the store has been asked (closed) or not.
func (g *Guard) State() (BreakerState, time.Time) { return g.breaker.state() }

// call is one call of the store, with its own copy of the charges and outcomes: the caller may be gone before it ends.
type call struct {
	charges  []Charge
	counters []Counter
	out      []Outcome
	done     chan error // buffered, so that the goroutine never waits for a caller that left
	report   func(error)
	reported atomic.Bool
}

// Decide asks the store. Beside the store's own errors it returns one that wraps ErrUnavailable when the breaker is
// open, the deadline has passed or no slot became free, and the caller's cancellation.
func (g *Guard) Decide(ctx context.Context, charges []Charge, out []Outcome) error {
	report, err := g.enter(ctx)
	if err != nil {
		return err
	}
	return g.visit(ctx, report, charges, out)
}

// enter says whether the store may be asked. If so, visit or leave must follow, once: half open, nobody else may.
func (g *Guard) enter(ctx context.Context) (report func(error), err error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("decide: %w", err)
	}
	if g.closed.Load() {
		return nil, g.unavailable(errors.New("closed"))
	}
	report, ok := g.breaker.allow()
	if !ok {
		return nil, g.errOpen
	}
	return report, nil
}

// leave ends an enter without a visit.
func (g *Guard) leave(report func(error)) { g.breaker.settle(report, ErrBusy) }

// visit asks the store.
func (g *Guard) visit(ctx context.Context, report func(error), charges []Charge, out []Outcome) error {
	callCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.timeout)
	if err := g.acquire(ctx, callCtx); err != nil {
		cancel()
		g.breaker.settle(report, ErrBusy)
		return err
	}
	c := g.newCall(charges, report)
	go g.run(callCtx, cancel, c)

	select {
	case err := <-c.done:
		return g.finish(c, err, out)
	default:
	}
	select {
	case err := <-c.done:
		return g.finish(c, err, out)
	case <-callCtx.Done():
		return g.expired(c, out)
	case <-ctx.Done():
		// The store's silence must still be noticed, when it comes to that.
		context.AfterFunc(callCtx, func() { g.verdict(c, context.DeadlineExceeded) })
		return fmt.Errorf("decide: %w", ctx.Err())
	}
}

// acquire takes a slot, or says why there is none in time.
func (g *Guard) acquire(ctx, callCtx context.Context) error {
	select {
	case g.slots <- struct{}{}:
		return nil
	default:
	}
	select {
	case g.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("decide: %w", ctx.Err())
	case <-callCtx.Done():
		return fmt.Errorf("%s: %w", g.Source(), ErrBusy)
	}
}

// run makes the call. The verdict is reported before the context ends and before the caller hears of it.
func (g *Guard) run(ctx context.Context, cancel context.CancelFunc, c *call) {
	defer func() { <-g.slots }()
	start := g.now()
	err := g.ask(ctx, c)
	took := g.now().Sub(start)
	g.called(took, err)
	verdict := err
	if err == nil && took >= g.slow {
		verdict = errSlow
	}
	g.verdict(c, verdict)
	c.done <- err
	cancel()
}

// ask calls the store and turns a panic into an error: a fault in one store must not end the process.
func (g *Guard) ask(ctx context.Context, c *call) (err error) {
	defer func() {
		if p := recover(); p != nil {
			g.log.LogAttrs(ctx, slog.LevelError, "store panicked",
				slog.String("store", string(g.Source())), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return g.store.Decide(ctx, c.charges, c.out)
}

// verdict reports to the breaker, the first time only.
func (g *Guard) verdict(c *call, err error) {
	if c.reported.CompareAndSwap(false, true) {
		g.breaker.settle(c.report, err)
	}
}

// finish hands the answer over and keeps the call's memory for the next one.
func (g *Guard) finish(c *call, err error, out []Outcome) error {
	if err != nil {
		return g.unavailable(err)
	}
	for i := range c.out {
		c.out[i], out[i] = out[i], c.out[i]
	}
	g.calls.Put(c)
	return nil
}

// expired gives up, unless the answer came in the same moment.
func (g *Guard) expired(c *call, out []Outcome) error {
	select {
	case err := <-c.done:
		return g.finish(c, err, out)
	default:
	}
	g.verdict(c, context.DeadlineExceeded)
	return g.unavailable(fmt.Errorf("no answer within %s", g.timeout))
}

// unavailable makes any error one that decorators fail over on.
func (g *Guard) unavailable(err error) error {
	if errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, g.Source(), err)
}

// newCall copies the charges: their counters too, because a caller that has left may reuse its memory.
func (g *Guard) newCall(charges []Charge, report func(error)) *call {
	c, ok := g.calls.Get().(*call)
	if !ok {
		c = new(call)
	}
	if c.done == nil {
		c.done = make(chan error, 1)
	}
	c.report = report
	c.reported.Store(false)
	c.charges = append(c.charges[:0], charges...)
	c.counters = c.counters[:0]
	for i := range charges {
		c.counters = append(c.counters, charges[i].Counters...)
	}
	rest := c.counters
	for i := range c.charges {
		n := len(c.charges[i].Counters)
		c.charges[i].Counters, rest = rest[:n:n], rest[n:]
	}
	c.out = resized(c.out, len(charges))
	return c
}

// Close lets no new call in and waits for those in flight, at most until ctx ends. The store is the caller's to close
// afterwards.
func (g *Guard) Close(ctx context.Context) error {
	if g.closed.Swap(true) {
		return nil
	}
	for range cap(g.slots) {
		select {
		case g.slots <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("close the %s guard: calls are still in flight: %w", g.Source(), ctx.Err())
		}
	}
	return nil
}
