package tenants

import (
	"errors"
	"maps"
	"time"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// errDanglingPlan: a tenant's plan is not there.
var errDanglingPlan = errors.New("its plan does not exist; the built-in limits hold")

// NewSnapshot builds a snapshot from a full set of changes, for tests and tools; servers go through a Directory.
func NewSnapshot(c Changes, confirmedAt time.Time) *Snapshot {
	d := NewDirectory(0)
	c.Full = true
	d.Apply(c, confirmedAt)
	return d.Snapshot()
}

// Apply publishes the next snapshot: c on top of the current one, or c alone when it is full. It returns the rows that are
// broken, the loader's and those whose references lead nowhere. The slices and maps in c belong to the snapshot afterwards.
func (d *Directory) Apply(c Changes, confirmedAt time.Time) []BrokenRow {
	d.writing.Lock()
	defer d.writing.Unlock()
	b := newBuilder(d.Snapshot(), &c)
	next := b.build(&c)
	next.Version, next.ConfirmedAt, next.trustTokensFor = c.Version, confirmedAt, d.trustTokensFor
	d.current.Store(next)
	return append(c.Broken, b.broken...)
}

// Confirm notes that Postgres still holds the version of the current snapshot. It does nothing when that has moved on.
func (d *Directory) Confirm(version int64, at time.Time) {
	d.writing.Lock()
	defer d.writing.Unlock()
	s := d.Snapshot()
	if s.Version != version {
		return
	}
	next := *s
	next.ConfirmedAt = at
	d.current.Store(&next)
}

// builder makes a snapshot out of another and some changes.
type builder struct {
	next Snapshot

	plans     *editor[string, planView]
	planNames *editor[int64, string]
	bySlug    *editor[string, TenantView]
	byID      *editor[int64, TenantView]
	overrides *editor[int64, overrideSet]
	keys      *editor[string, APIKey]
	services  *editor[string, ServiceToken]
	admins    *editor[string, AdminToken]
	networks  *editor[int64, Network]

	// stale are the tenants whose view must be built anew, with the unpublished view of those that came in this round.
	stale map[int64]*TenantView
	// changedPlans are the names whose plan came, went or changed.
	changedPlans map[string]bool
	broken       []BrokenRow
}

func newBuilder(from *Snapshot, c *Changes) *builder {
	if c.Full {
		return &builder{
			plans: fresh[string, planView](len(c.Plans)), planNames: fresh[int64, string](len(c.Plans)),
			bySlug: fresh[string, TenantView](len(c.Tenants)), byID: fresh[int64, TenantView](len(c.Tenants)),
			overrides: fresh[int64, overrideSet](len(c.Overrides)), keys: fresh[string, APIKey](len(c.APIKeys)),
			services: fresh[string, ServiceToken](len(c.ServiceTokens)), admins: fresh[string, AdminToken](len(c.AdminTokens)),
			networks: fresh[int64, Network](len(c.Networks)), stale: make(map[int64]*TenantView),
		}
	}
	return &builder{
		next:  *from,
		plans: from.plansByName.edit(), planNames: from.planNames.edit(),
		bySlug: from.tenantsBySlug.edit(), byID: from.tenantsByID.edit(),
		overrides: from.overrides.edit(), keys: from.apiKeys.edit(),
		services: from.serviceTokens.edit(), admins: from.adminTokens.edit(),
		networks: from.networks.edit(), stale: make(map[int64]*TenantView),
	}
}

// build applies deletions before the rest: what a consistent read found is there, whatever was deleted before.
func (b *builder) build(c *Changes) *Snapshot {
	b.applyPlans(c)
	b.applyOverrides(c)
	b.applyTenants(c)
	b.applyCredentials(c)
	for _, id := range c.DeletedNetworks {
		b.networks.remove(id)
	}
	for i := range c.Networks {
		b.networks.set(c.Networks[i].ID, &c.Networks[i])
	}
	if c.AddressPolicy != nil {
		b.next.AddressRules = c.AddressPolicy.Limits
	}
	b.next.Installation = c.Installation
	if c.Mode != nil {
		b.next.StoredMode = *c.Mode
	}
	b.rebuildViews()

	b.next.plansByName, b.next.planNames = b.plans.done(), b.planNames.done()
	b.next.tenantsBySlug, b.next.tenantsByID = b.bySlug.done(), b.byID.done()
	b.next.overrides, b.next.apiKeys = b.overrides.done(), b.keys.done()
	b.next.serviceTokens, b.next.adminTokens = b.services.done(), b.admins.done()
	b.next.networks = b.networks.done()
	if c.Full || len(c.Networks) > 0 || len(c.DeletedNetworks) > 0 {
		b.next.networksByRange = networkTable(&b.next.networks)
	}
	return &b.next
}

func (b *builder) applyPlans(c *Changes) {
	b.changedPlans = make(map[string]bool, len(c.Plans)+len(c.DeletedPlans))
	for _, id := range c.DeletedPlans {
		if name, ok := b.planNames.get(id); ok {
			b.changedPlans[*name] = true
			b.planNames.remove(id)
			b.plans.remove(*name)
		}
	}
	for i := range c.Plans {
		v := &planView{plan: c.Plans[i]}
		v.rules = effectiveRules(v.plan.Limits, nil)
		b.changedPlans[v.plan.Name] = true
		b.plans.set(v.plan.Name, v)
		b.planNames.set(v.plan.ID, &v.plan.Name)
	}
}

func (b *builder) applyOverrides(c *Changes) {
	owned := make(map[int64]overrideSet) // the sets of this round, ours to change
	own := func(tenant int64) overrideSet {
		set, ok := owned[tenant]
		if !ok {
			set = make(overrideSet)
			if before, had := b.overrides.get(tenant); had {
				maps.Copy(set, *before)
			}
			owned[tenant] = set
		}
		b.stale[tenant] = nil
		return set
	}
	for i := range c.DeletedOverrides {
		delete(own(c.DeletedOverrides[i].TenantID), c.DeletedOverrides[i].LimitName)
	}
	for i := range c.Overrides {
		own(c.Overrides[i].TenantID)[c.Overrides[i].LimitName] = &c.Overrides[i]
	}
	for tenant, set := range owned {
		if len(set) == 0 {
			b.overrides.remove(tenant)
			continue
		}
		b.overrides.set(tenant, &set)
	}
}

func (b *builder) applyTenants(c *Changes) {
	gone := make(map[int64]bool, len(c.DeletedTenants))
	for _, id := range c.DeletedTenants {
		view, ok := b.byID.get(id)
		if !ok {
			continue
		}
		gone[id] = true
		b.byID.remove(id)
		b.bySlug.remove(view.Slug)
		b.overrides.remove(id)
		delete(b.stale, id)
	}
	if len(gone) > 0 {
		var orphans []string
		b.keys.all(func(id string, k *APIKey) bool {
			if gone[k.TenantID] {
				orphans = append(orphans, id)
			}
			return true
		})
		for _, id := range orphans {
			b.keys.remove(id)
		}
	}
	for i := range c.Tenants {
		view := &TenantView{Tenant: c.Tenants[i]}
		b.byID.set(view.ID, view)
		b.bySlug.set(view.Slug, view)
		b.stale[view.ID] = view
	}
}

func (b *builder) applyCredentials(c *Changes) {
	for i := range c.APIKeys {
		b.keys.set(c.APIKeys[i].ID, &c.APIKeys[i])
	}
	for i := range c.ServiceTokens {
		b.services.set(c.ServiceTokens[i].ID, &c.ServiceTokens[i])
	}
	for i := range c.AdminTokens {
		b.admins.set(c.AdminTokens[i].ID, &c.AdminTokens[i])
	}
}

// rebuildViews gives every tenant that may have changed a new view; published ones are never touched.
func (b *builder) rebuildViews() {
	if len(b.changedPlans) > 0 {
		b.byID.all(func(id int64, v *TenantView) bool {
			if _, known := b.stale[id]; !known && b.changedPlans[v.Tenant.Plan] {
				b.stale[id] = nil
			}
			return true
		})
	}
	if len(b.stale) > maxLayer {
		// So many changes are cheaper in new maps than as a layer that is merged at once.
		b.byID, b.bySlug = b.byID.flat(), b.bySlug.flat()
	}
	for id, view := range b.stale {
		if view == nil {
			published, ok := b.byID.get(id)
			if !ok {
				continue // an override whose tenant is gone
			}
			view = &TenantView{Tenant: published.Tenant}
			b.byID.set(id, view)
			b.bySlug.set(view.Slug, view)
		}
		b.fill(view)
	}
}

// fill gives a view its plan and limits.
func (b *builder) fill(v *TenantView) {
	plan, ok := b.plans.get(v.Tenant.Plan)
	if !ok {
		if v.Tenant.Plan != "" { // else the loader has said so
			b.broken = append(b.broken, BrokenRow{Table: "tenants", ID: v.Slug, Err: errDanglingPlan})
		}
		plan = builtinPlan(v.Tenant.Plan)
	}
	v.Plan, v.Limits = &plan.plan, plan.rules
	if set, has := b.overrides.get(v.ID); has {
		v.Limits = effectiveRules(plan.plan.Limits, *set)
	}
}

// builtinPlan stands in for a plan that is not there, under its name.
func builtinPlan(name string) *planView {
	p := DefaultPlans()[0]
	p.Name, p.Title = name, ""
	return &planView{plan: p, rules: effectiveRules(p.Limits, nil)}
}

func effectiveRules(rules []Rule, overrides overrideSet) []EffectiveRule {
	if len(rules) == 0 {
		return nil
	}
	out := make([]EffectiveRule, len(rules))
	for i := range rules {
		out[i].Rule = &rules[i]
		if o := overrides[rules[i].Name]; o != nil {
			out[i].Override = o
			out[i].Overridden = overridden(&rules[i].Limit, o)
		}
	}
	return out
}

func overridden(l *ratelimit.Limit, o *Override) *ratelimit.Limit {
	with := *l
	with.Quota = o.Quota
	return &with
}
