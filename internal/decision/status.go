package decision

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// How old a status may be and how many are kept. The wire contract allows 1 s; a quarter of it costs the store at most four
// peeks a second for each subject, however often it is polled.
const (
	statusAge  = 250 * time.Millisecond
	statusSize = 8192
)

// statusCache holds the answers of one quarter of a second and is dropped as a whole after it, or when the configuration
// changes.
type statusCache struct {
	mu      sync.Mutex
	version int64
	since   time.Time
	answers map[statusKey]*Decision
}

type statusKey struct {
	tenant       *tenants.TenantView
	user, key    string
	address      netip.Prefix
	standing     Standing
	method, path string
}

func (c *statusCache) get(k *statusKey, m *moment) (*Decision, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if age := m.now.Sub(c.since); c.answers == nil || c.version != m.snapshot.Version || age < 0 || age >= statusAge {
		c.version, c.since, c.answers = m.snapshot.Version, m.now, make(map[statusKey]*Decision)
		return nil, false
	}
	d, ok := c.answers[*k]
	return d, ok
}

func (c *statusCache) put(k *statusKey, m *moment, d *Decision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.version == m.snapshot.Version && c.answers != nil && len(c.answers) < statusSize {
		c.answers[*k] = d
	}
}

// Status is what a hit of cost 1 would get now, with every limit that holds: nothing is consumed or recorded. The answer may
// be a quarter of a second old and is shared: callers must not change it.
func (e *Engine) Status(ctx context.Context, h Hit) (*Decision, error) {
	m := e.moment()
	h.Cost, h.Peek = 1, true
	k := statusKey{tenant: h.Tenant, user: h.User, key: h.Key, address: h.Address, standing: h.Standing, method: h.Method, path: h.Path}
	if d, ok := e.status.get(&k, &m); ok {
		return d, nil
	}
	w := newWork(h)
	w.all = true
	e.plan(w, m)
	e.settlePeek(ctx, w)
	d, err := e.conclude(w, m)
	if err != nil {
		return nil, err
	}
	e.status.put(&k, &m, d)
	return d, nil
}

// settlePeek asks about both groups in one call: a peek of one says nothing about the other.
func (e *Engine) settlePeek(ctx context.Context, w *work) { e.settleBoth(ctx, w, nil) }

// settleBoth asks about both groups in one call, with the charges of `first` made from each group before its own.
func (e *Engine) settleBoth(ctx context.Context, w *work, first func(group) ratelimit.Charge) {
	var groups [4]group
	charges := make([]ratelimit.Charge, 0, len(groups))
	add := func(g group, c ratelimit.Charge) {
		groups[len(charges)] = g
		charges = append(charges, c)
	}
	for _, g := range [...]group{addressGroup, tenantGroup} {
		if !w.pending(g) {
			continue
		}
		if first != nil {
			add(g, first(g))
		}
		add(g, w.chargeOf(g))
	}
	if len(charges) == 0 {
		return
	}
	out := make([]ratelimit.Outcome, len(charges))
	err := e.store.Decide(ctx, charges, out)
	for i := range charges {
		if err != nil {
			out[i] = ratelimit.Outcome{Err: err}
		}
		if charges[i].Kind == ratelimit.Refund {
			e.applyRefund(ctx, w, groups[i], &out[i])
		} else {
			e.apply(ctx, w, groups[i], &out[i])
		}
	}
}
