package usage

import (
	"sync"
	"sync/atomic"
	"time"
)

// highFrom is the utilisation that "since when ≥ 80 %" is about.
const highFrom = 0.8

// DefaultMaxTenants bounds an Aggregator that was not told otherwise: about 1.2 KiB each.
const DefaultMaxTenants = 100_000

// idleAfter is how long a tenant without events is remembered when room is needed.
const idleAfter = 10 * time.Minute

// Aggregator counts what was decided, in this process. Recording locks the tenant's own numbers for well under a
// microsecond and nothing that all tenants share; its memory is bounded whatever clients send: tenants by maxTenants,
// addresses and service tokens by fixed tables of the most refused.
type Aggregator struct {
	maxTenants int64
	tenants    sync.Map // int64 → *tenantUsage
	size       atomic.Int64
	lastSweep  atomic.Int64 // Unix seconds
	dropped    atomic.Int64

	anonymous [anonymousShards]tenantUsage // hits that only an address paid for
	addresses [addressShards]topTable
	services  topTable
	wrong     topTable
}

// anonymousShards spreads the traffic of nobody's, so that all of it does not meet on one lock.
const anonymousShards = 8

// addressShards spreads the table of refused addresses; a power of two.
const addressShards = 16

// NewAggregator makes one for at most maxTenants tenants (0: DefaultMaxTenants).
func NewAggregator(maxTenants int) *Aggregator {
	if maxTenants <= 0 {
		maxTenants = DefaultMaxTenants
	}
	return &Aggregator{maxTenants: int64(maxTenants)}
}

// Record counts one event.
func (a *Aggregator) Record(ev Event) {
	if ev.TenantID == 0 {
		a.anonymous[ev.At.Nanosecond()/1000%anonymousShards].record(&ev)
	} else if t := a.tenant(&ev); t != nil {
		t.record(&ev)
	}
	if ev.Verdict == Refused {
		if ev.Address != "" {
			a.addresses[shardOf(ev.Address)].add(ev.Address, ev.At)
		}
		if ev.Service != "" {
			a.services.add(ev.Service, ev.At)
		}
	}
	if ev.WrongCredential {
		a.wrong.add("", ev.At)
	}
}

// tenant finds or makes a tenant's numbers; nil when there are already as many tenants as may be.
func (a *Aggregator) tenant(ev *Event) *tenantUsage {
	if found, ok := a.tenants.Load(ev.TenantID); ok {
		t, _ := found.(*tenantUsage)
		return t
	}
	if a.size.Load() >= a.maxTenants && !a.sweep(ev.At) {
		a.dropped.Add(1)
		return nil
	}
	found, loaded := a.tenants.LoadOrStore(ev.TenantID, &tenantUsage{})
	if !loaded {
		a.size.Add(1)
	}
	t, _ := found.(*tenantUsage)
	return t
}

// sweep forgets idle tenants, at most once a second, and reports whether there is room now.
func (a *Aggregator) sweep(now time.Time) bool {
	last, second := a.lastSweep.Load(), now.Unix()
	if last == second || !a.lastSweep.CompareAndSwap(last, second) {
		return false
	}
	a.tenants.Range(func(id, value any) bool {
		if t, ok := value.(*tenantUsage); ok && t.idleSince(now) >= idleAfter {
			if _, was := a.tenants.LoadAndDelete(id); was {
				a.size.Add(-1)
			}
		}
		return true
	})
	return a.size.Load() < a.maxTenants
}

// Dropped is how many events were not counted because there were too many tenants.
func (a *Aggregator) Dropped() int64 { return a.dropped.Load() }

// shardOf is FNV-1a over an address.
func shardOf(s string) uint32 {
	h := uint32(2166136261)
	for i := range len(s) {
		h = (h ^ uint32(s[i])) * 16777619
	}
	return h % addressShards
}
