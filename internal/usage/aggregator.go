package usage

import (
	"sync"
	"sync/atomic"
	"time"
)

// highFrom is the utilisation that "since when ≥ 80 %" is about.
const highFrom = 0.8

const (
	// DefaultMaxTenants bounds an Aggregator that was not told otherwise: about 3 KiB each while they are active, 1 KiB otherwise.
	DefaultMaxTenants = 100_000
	// maxLimits bounds the limits of a tenant that are told apart; more than a plan may hold. A tenant that has met more, by
	// changes of its plan, starts over with those it meets.
	maxLimits = 64
	// topNames is how many users and how many keys of a tenant are told apart.
	topNames = 20
	// refusedNames is how many names each table of refusals holds.
	refusedNames = 64
	// addressShards spreads the table of refused addresses; a power of two.
	addressShards = 16
	// idleAfter is how long a tenant without events is remembered.
	idleAfter = 10 * time.Minute
)

// Aggregator counts what was decided in this process. Record is its hot path; Collect, Snapshot and Take are for a Reporter.
type Aggregator struct {
	maxTenants int64
	tenants    registry
	size       atomic.Int64
	dropped    atomic.Int64

	anonymous, overflow, wrong cell
	addresses                  [addressShards]*table
	services                   *table

	mu sync.Mutex // of everything below and of what is said to be the collector's; never taken by Record
	collected
}

// tenantCell is a tenant on the hot path.
type tenantCell struct {
	cell

	id          int64
	called      atomic.Pointer[naming]
	limits      atomic.Pointer[[]*limitCell]
	users, keys atomic.Pointer[table]
	mu          sync.Mutex // of whoever adds a limit or a table

	seen tenantWindow // the collector's
}

// naming is what a tenant is called and the plan it has, as of its last event.
type naming struct{ tenant, plan string }

// NewAggregator makes one for at most maxTenants tenants (0: DefaultMaxTenants).
func NewAggregator(maxTenants int) *Aggregator {
	if maxTenants <= 0 {
		maxTenants = DefaultMaxTenants
	}
	a := &Aggregator{maxTenants: int64(maxTenants), services: newTable(refusedNames)}
	for i := range a.addresses {
		a.addresses[i] = newTable(refusedNames)
	}
	a.pending = make(map[rowKey]Counts)
	return a
}

// Record counts one event.
func (a *Aggregator) Record(ev Event) {
	switch t := a.tenant(&ev); {
	case ev.TenantID == 0:
		a.anonymous.add(&ev)
	case t == nil:
		a.overflow.add(&ev)
	default:
		t.record(&ev)
	}
	if ev.Verdict == Refused {
		if ev.Address != "" {
			a.addresses[shardOf(ev.Address)].find(ev.Address).refused.Add(1)
		}
		if ev.Service != "" {
			a.services.find(ev.Service).refused.Add(1)
		}
	}
	if ev.WrongCredential {
		a.wrong.refused.Add(1)
	}
}

// tenant finds or makes a tenant's counters; nil for nobody's, and when there are already as many tenants as may be.
func (a *Aggregator) tenant(ev *Event) *tenantCell {
	if ev.TenantID == 0 {
		return nil
	}
	if t := a.tenants.get(ev.TenantID); t != nil {
		return t
	}
	if a.size.Add(1) > a.maxTenants { // idle ones make room when they are collected
		a.size.Add(-1)
		a.dropped.Add(1)
		return nil
	}
	fresh := &tenantCell{id: ev.TenantID}
	fresh.limits.Store(&[]*limitCell{})
	fresh.called.Store(&naming{tenant: ev.Tenant, plan: ev.Plan})
	t, added := a.tenants.add(fresh)
	if !added {
		a.size.Add(-1)
	}
	return t
}

func (t *tenantCell) record(ev *Event) {
	if called := t.called.Load(); called.plan != ev.Plan || called.tenant != ev.Tenant {
		t.called.Store(&naming{tenant: ev.Tenant, plan: ev.Plan})
	}
	t.add(ev)
	for i := range ev.Limits {
		l := &ev.Limits[i]
		t.limit(l.Name).add(ev, l)
	}
	if ev.User != "" {
		t.table(&t.users).find(ev.User).add(ev)
	}
	if ev.Key != "" {
		t.table(&t.keys).find(ev.Key).add(ev)
	}
}

// limit finds or makes the counters of a limit.
func (t *tenantCell) limit(name string) *limitCell {
	for _, l := range *t.limits.Load() {
		if l.name == name {
			return l
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old := *t.limits.Load()
	for _, l := range old {
		if l.name == name {
			return l
		}
	}
	if len(old) >= maxLimits {
		old = nil
	}
	fresh := &limitCell{name: name}
	list := append(append(make([]*limitCell, 0, len(old)+1), old...), fresh)
	t.limits.Store(&list)
	return fresh
}

// table finds or makes one of the tenant's tables.
func (t *tenantCell) table(at *atomic.Pointer[table]) *table {
	if found := at.Load(); found != nil {
		return found
	}
	at.CompareAndSwap(nil, newTable(topNames))
	return at.Load()
}

// Dropped is how many events were counted for no tenant because there were too many of them.
func (a *Aggregator) Dropped() int64 { return a.dropped.Load() }

// shardOf is FNV-1a over an address.
func shardOf(s string) uint32 {
	h := uint32(2166136261)
	for i := range len(s) {
		h = (h ^ uint32(s[i])) * 16777619
	}
	return h % addressShards
}
