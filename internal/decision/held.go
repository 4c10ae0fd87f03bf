package decision

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrTooManyHeld: the cap on held requests is reached; the answer is TooManyHeld's refusal, at once.
var ErrTooManyHeld = errors.New("too many requests are held")

// Timer starts a timer: fired delivers once after d, stop releases it early.
type Timer func(d time.Duration) (fired <-chan time.Time, stop func())

// SystemTimer is the Timer of a running service.
func SystemTimer(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

// Holder caps how many requests are held in slow-down at one time in this replica, per tenant (or address) and in all, so
// that a tenant's delayed requests cannot use up everybody's connections. It is safe for concurrent use; its memory is
// bounded by the total cap.
type Holder struct {
	perKey, total int
	timer         Timer

	mu   sync.Mutex
	held map[string]int
	all  int
}

// NewHolder makes a Holder with PEGEL_HELD_PER_TENANT and PEGEL_HELD_TOTAL. A nil timer is SystemTimer.
func NewHolder(perTenant, total int, timer Timer) *Holder {
	if timer == nil {
		timer = SystemTimer
	}
	return &Holder{perKey: perTenant, total: total, timer: timer, held: make(map[string]int)}
}

// Acquire takes a slot, or says at once that there is none. release gives it back; calling it again does nothing.
func (h *Holder) Acquire(key string) (release func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all >= h.total || h.held[key] >= h.perKey {
		return func() {}, false
	}
	h.all++
	h.held[key]++
	return sync.OnceFunc(func() { h.give(key) }), true
}

func (h *Holder) give(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all--
	if h.held[key]--; h.held[key] <= 0 {
		delete(h.held, key)
	}
}

// Hold waits for d, or returns ctx's error as soon as the caller has gone.
func (h *Holder) Hold(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d <= 0 {
		return nil
	}
	fired, stop := h.timer(d)
	defer stop()
	select {
	case <-fired:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wait is Acquire and Hold: it holds a request for the delay of its decision. It answers ErrTooManyHeld at once when there
// is no slot, and ctx's error as soon as the client has left.
func (h *Holder) Wait(ctx context.Context, key string, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	release, ok := h.Acquire(key)
	if !ok {
		return ErrTooManyHeld
	}
	defer release()
	return h.Hold(ctx, d)
}

// Held is how many requests are held now.
func (h *Holder) Held() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all
}

// HoldKey names whose cap a held request counts against: its tenant's, else its address's.
func (h *Hit) HoldKey() string {
	switch {
	case h.Tenant != nil:
		return "tenant " + h.Tenant.Slug
	case h.Address.IsValid():
		return "address " + h.Address.Masked().String()
	}
	return ""
}

// HoldKey is the key of the caller's own requests.
func (c *Caller) HoldKey() string {
	h := Hit{Tenant: c.Tenant, Address: c.Address}
	return h.HoldKey()
}

// retryHeld is what a refusal by the cap tells the client to wait: slots are held for a second or two.
const retryHeld = time.Second

// TooManyHeld turns a decision to slow down into the refusal that the cap on held requests makes of it. The unit stays
// charged. The refusal is counted.
func (e *Engine) TooManyHeld(h *Hit, d *Decision) *Decision {
	refused := *d
	refused.Verdict, refused.Held, refused.Delay = Deny, true, 0
	e.record(h, &refused, nil)
	e.observe(h, &refused, nil, refused.At)
	return &refused
}
