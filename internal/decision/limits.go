package decision

import (
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// preparedTenants keeps what never changes of a tenant's view and is needed on every hit: its group's name and the keys of
// its own counters. A new configuration version starts an empty one, and so does one that has grown to twice the tenants
// there are (a full reload makes new views under the same version).
type preparedTenants struct {
	version int64
	size    atomic.Int64
	views   sync.Map // *tenants.TenantView → *preparedTenant
}

type preparedTenant struct {
	group string
	// keys are the counters of tenant-scoped limits, by index; empty for the others.
	keys []ratelimit.Key
}

// preparedSlack is how many views a small installation may hold beyond twice its tenants.
const preparedSlack = 64

// preparedFor is the cache that goes with a snapshot.
func (e *Engine) preparedFor(s *tenants.Snapshot) *preparedTenants {
	p := e.prepared.Load()
	if p == nil || p.version != s.Version || p.size.Load() > int64(2*s.TenantCount()+preparedSlack) {
		p = &preparedTenants{version: s.Version}
		e.prepared.Store(p)
	}
	return p
}

func (p *preparedTenants) tenant(installation string, t *tenants.TenantView) *preparedTenant {
	if found, ok := p.views.Load(t); ok {
		if prepared, ok := found.(*preparedTenant); ok {
			return prepared
		}
	}
	prepared := &preparedTenant{group: installation + "/" + strconv.FormatInt(t.ID, 10), keys: make([]ratelimit.Key, len(t.Limits))}
	for i := range t.Limits {
		if limit := &t.Limits[i].Rule.Limit; limit.Scope == ratelimit.ScopeTenant {
			prepared.keys[i] = ratelimit.CounterKey(ratelimit.Subject{Group: prepared.group, Generation: t.Generation, Scope: limit.Scope}, limit)
		}
	}
	p.views.Store(t, prepared)
	p.size.Add(1)
	return prepared
}

// plan finds the limits that hold for a hit, and refuses it when neither group is to be asked at all.
func (e *Engine) plan(w *work, m moment) {
	h := &w.hit
	w.decision.At, w.decision.Cost = m.now, h.Cost
	if h.Tenant != nil {
		w.decision.Tenant, w.decision.Plan = h.Tenant.Slug, planName(h.Tenant)
	}
	switch {
	case h.Address.IsValid() && m.snapshot.NetworkDenied(h.Address.Addr(), m.now):
		w.err = ErrNetworkDenied
		return
	case h.Tenant != nil && h.Tenant.Status == tenants.Suspended:
		w.err = ErrSuspended
		return
	}
	facts := facts{method: h.Method, raw: h.Path}
	if h.Tenant != nil {
		w.planTenant(&facts, m)
	}
	w.tenantLimits = len(w.limits)
	if h.Address.IsValid() && h.Standing != Exempt {
		w.planAddress(&facts, m)
	}
}

func planName(t *tenants.TenantView) string {
	if t.Plan != nil {
		return t.Plan.Name
	}
	return t.Tenant.Plan
}

// planTenant adds the limits of the plan: those of scope tenant always, of user and key when the hit names one.
func (w *work) planTenant(f *facts, m moment) {
	t := w.hit.Tenant
	prepared := m.prepared.tenant(m.snapshot.Installation, t)
	for i := range t.Limits {
		effective := &t.Limits[i]
		limit := effective.LimitAt(m.now)
		id := ""
		switch limit.Scope {
		case ratelimit.ScopeUser:
			id = w.hit.User
		case ratelimit.ScopeKey:
			id = w.hit.Key
		case ratelimit.ScopeTenant, ratelimit.ScopeAddress:
		}
		if limit.Scope == ratelimit.ScopeAddress || limit.Scope != ratelimit.ScopeTenant && id == "" || !f.match(effective.Rule) {
			continue
		}
		key := prepared.keys[i]
		if key == "" {
			key = ratelimit.CounterKey(ratelimit.Subject{Group: prepared.group, Generation: t.Generation, Scope: limit.Scope, ID: id}, limit)
		}
		var override *tenants.Override
		if limit == effective.Overridden {
			override = effective.Override
		}
		w.add(effective.Rule, limit, override, key, m.shadow)
	}
}

// planAddress adds the limits of the address policy: all of them for anonymous hits, else those that apply to all.
func (w *work) planAddress(f *facts, m moment) {
	group := ""
	for i := range m.snapshot.AddressRules {
		rule := &m.snapshot.AddressRules[i]
		if w.hit.Standing != Anonymous && rule.AppliesTo != tenants.AppliesToAll || !f.match(rule) {
			continue
		}
		if group == "" {
			group = m.snapshot.Installation + "/" + w.hit.Address.Masked().String()
		}
		subject := ratelimit.Subject{Group: group, Scope: ratelimit.ScopeAddress, ID: group}
		w.add(rule, &rule.Limit, nil, ratelimit.CounterKey(subject, &rule.Limit), m.shadow)
	}
}

func (w *work) add(r *tenants.Rule, l *ratelimit.Limit, o *tenants.Override, key ratelimit.Key, shadow bool) {
	w.limits = append(w.limits, LimitState{Limit: l, Rule: r, Override: o, Source: ratelimit.SourceNone})
	w.counters = append(w.counters, ratelimit.Counter{Key: key, Limit: l, Shadow: shadow || l.Mode == ratelimit.Shadow})
}

// facts are the request's, with the canonical path found at most once and only when a rule asks for it.
type facts struct {
	method, raw string
	path        string
	known, bad  bool
}

// match reports whether a rule holds. A path without a canonical form could be any path to the upstream: only the method
// can still rule the limit out.
func (f *facts) match(r *tenants.Rule) bool {
	if r.Match.Empty() {
		return true
	}
	if len(r.Match.Paths) > 0 && f.raw != "" && !f.known {
		var ok bool
		f.path, ok = tenants.CanonicalPath(f.raw)
		f.known, f.bad = true, !ok
	}
	if f.bad {
		return tenants.Match{Methods: r.Match.Methods}.Holds(f.method, "")
	}
	return r.Match.Holds(f.method, f.path)
}
