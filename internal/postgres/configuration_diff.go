package postgres

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// pair is an object as it is stored and as it is wanted; nil: not there.
type pair[T any] struct{ before, after *T }

// tenantOverride is an override with the slug of its tenant, which may not have an id yet.
type tenantOverride struct {
	tenants.Override
	tenant string
}

// entry is one change as the answer and the audit log show it.
type entry struct {
	verb           string // create, update or delete
	resource, name string
	// auditAction and auditID are what the audit log calls them, where that is not resource.verb and name.
	auditAction, auditID string
	diff                 []audit.Change
}

// reconciliation is what separates the stored configuration from the wanted one, in the order in which it is written:
// what tenants refer to before them, deletions last.
type reconciliation struct {
	now   time.Time
	prune bool

	plans, deadPlans         []pair[tenants.Plan]
	tenants, deadTenants     []pair[tenants.Tenant]
	overrides, deadOverrides []pair[tenantOverride]
	networks, deadNetworks   []pair[tenants.Network]
	policy                   *tenants.AddressPolicy
	mode                     ratelimit.Mode

	entries        []*entry
	networkEntries []*entry // of networks, in their order: the id of a new one is known late
	findings       []tenants.FieldError
	warnings       []string
	hushed         int // warnings beyond maxWarnings
	err            error
}

// maxWarnings bounds what an answer says besides its changes.
const maxWarnings = 20

// reconcile compares; it writes nothing. An error is an *InvalidError or a *ConflictError.
func reconcile(have, want *tenants.Configuration, o tenants.ApplyOptions) (*reconciliation, error) {
	r := &reconciliation{now: o.Now, prune: o.Prune}
	for _, row := range have.Broken {
		r.warn("the row %s of %s cannot be read (%v): safe defaults are shown in its place", row.ID, row.Table, row.Err)
	}
	r.comparePlans(have, want)
	r.compareTenants(have, want)
	r.comparePolicy(have, want)
	r.compareNetworks(have, want)
	r.compareMode(have, want)
	r.findDeadTenants(have, want)
	r.findDeadPlans(have, want)
	switch {
	case r.err != nil:
		return nil, r.err
	case len(r.findings) > 0:
		return nil, &tenants.InvalidError{Findings: r.findings}
	}
	return r, nil
}

func (r *reconciliation) warn(format string, args ...any) {
	if len(r.warnings) == maxWarnings {
		r.hushed++
		return
	}
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

func (r *reconciliation) warned() []string {
	if r.hushed == 0 {
		return r.warnings
	}
	return append(slices.Clone(r.warnings), fmt.Sprintf("and %d more warnings", r.hushed))
}

func (r *reconciliation) changes() []tenants.AppliedChange {
	out := make([]tenants.AppliedChange, len(r.entries))
	for i, e := range r.entries {
		out[i] = tenants.AppliedChange{Action: e.verb, Resource: e.resource, Name: e.name, Diff: e.diff}
	}
	return out
}

// differ notes a change when the fields differ, and reports whether they do.
func (r *reconciliation) differ(resource, name string, before, after any) (e *entry, changed bool) {
	diff, err := audit.Diff(before, after)
	if err != nil {
		r.err = err
		return nil, false
	}
	verb := "update"
	switch {
	case before == nil:
		verb = "create"
	case after == nil:
		verb = "delete"
	case len(diff) == 0:
		return nil, false
	}
	e = &entry{verb: verb, resource: resource, name: name, diff: diff}
	e.auditAction, e.auditID = resource+"."+verb, name
	r.entries = append(r.entries, e)
	return e, true
}

func (r *reconciliation) comparePlans(have, want *tenants.Configuration) {
	stored := byName(have.Plans, func(p *tenants.Plan) string { return p.Name })
	for i := range want.Plans {
		p := &want.Plans[i]
		var before any
		if old := stored[p.Name]; old != nil {
			before = planFields(old)
		}
		if _, changed := r.differ("plan", p.Name, before, planFields(p)); changed {
			r.plans = append(r.plans, pair[tenants.Plan]{before: stored[p.Name], after: p})
			r.warnOfCounters(stored[p.Name], p)
		}
	}
}

// warnOfCounters names the limits of a plan whose counters start anew: what its tenants used is forgiven.
func (r *reconciliation) warnOfCounters(before, after *tenants.Plan) {
	if before == nil {
		return
	}
	for _, limit := range tenants.NewCounters(before, after) {
		r.warn("plan %s: limit %s starts new counters, because its algorithm, window or scope changes: what was used is forgiven", after.Name, limit)
	}
}

func (r *reconciliation) compareTenants(have, want *tenants.Configuration) {
	stored := byName(have.Tenants, func(t *tenants.ConfiguredTenant) string { return t.Slug })
	plans := r.finalPlans(have, want)
	for i := range want.Tenants {
		t := &want.Tenants[i]
		plan, exists := plans[t.Plan]
		if !exists {
			r.findings = append(r.findings, tenants.FieldError{Pointer: fmt.Sprintf("/tenants/%d/plan", i), Message: r.unknownPlan(have, t.Plan)})
			continue
		}
		old := stored[t.Slug]
		r.compareTenant(old, &t.Tenant)
		r.compareOverrides(old, t, plan)
	}
}

func (r *reconciliation) unknownPlan(have *tenants.Configuration, name string) string {
	if slices.ContainsFunc(have.Plans, func(p tenants.Plan) bool { return p.Name == name }) {
		return "must name a plan that exists: this one would be pruned, because the file does not describe it"
	}
	return "must name a plan that exists"
}

func (r *reconciliation) compareTenant(old *tenants.ConfiguredTenant, t *tenants.Tenant) {
	if old == nil {
		r.differ("tenant", t.Slug, nil, tenantFields(t))
		r.tenants = append(r.tenants, pair[tenants.Tenant]{after: t})
		return
	}
	t.ID, t.Generation = old.ID, old.Generation
	if t.Name == old.Name && t.Plan == old.Plan && t.Status == old.Status && t.ContactEmail == old.ContactEmail && maps.Equal(t.Metadata, old.Metadata) {
		return // almost always: thousands need no diff
	}
	if _, changed := r.differ("tenant", t.Slug, tenantFields(&old.Tenant), tenantFields(t)); changed {
		r.tenants = append(r.tenants, pair[tenants.Tenant]{before: &old.Tenant, after: t})
	}
}

func (r *reconciliation) compareOverrides(old, t *tenants.ConfiguredTenant, plan *tenants.Plan) {
	var was []tenants.Override
	if old != nil {
		was = old.Overrides
	}
	stored := byName(was, func(o *tenants.Override) string { return o.LimitName })
	for i := range t.Overrides {
		o := &t.Overrides[i]
		name := t.Slug + "/" + o.LimitName
		before := stored[o.LimitName]
		delete(stored, o.LimitName)
		if before != nil && before.Quota == o.Quota && before.Reason == o.Reason && before.ExpiresAt.Equal(o.ExpiresAt) {
			continue
		}
		if before == nil && r.ended(o.ExpiresAt) {
			r.warn("override %s ended at %s: it is not created", name, o.ExpiresAt.UTC().Format(time.RFC3339))
			continue
		}
		if !slices.ContainsFunc(plan.Limits, func(l tenants.Rule) bool { return l.Name == o.LimitName }) {
			r.warn("override %s waits: plan %s has no limit of that name", name, plan.Name)
		}
		change := pair[tenantOverride]{after: &tenantOverride{*o, t.Slug}}
		var fields any
		if before != nil {
			change.before, fields = &tenantOverride{*before, t.Slug}, overrideFields(before)
		}
		if e, changed := r.differ("override", name, fields, overrideFields(o)); changed {
			e.auditAction = "override.put"
			r.overrides = append(r.overrides, change)
		}
	}
	if !r.prune {
		return
	}
	for _, limit := range slices.Sorted(maps.Keys(stored)) {
		o := stored[limit]
		r.differ("override", t.Slug+"/"+limit, overrideFields(o), nil)
		r.deadOverrides = append(r.deadOverrides, pair[tenantOverride]{before: &tenantOverride{*o, t.Slug}})
	}
}

func (r *reconciliation) ended(at time.Time) bool { return !at.IsZero() && !at.After(r.now) }

func (r *reconciliation) comparePolicy(have, want *tenants.Configuration) {
	if want.AddressPolicy == nil {
		return
	}
	if _, changed := r.differ("address_policy", "address-policy", policyFields(have.AddressPolicy), policyFields(want.AddressPolicy)); changed {
		r.policy = want.AddressPolicy
	}
}

func (r *reconciliation) compareMode(have, want *tenants.Configuration) {
	if want.Mode == "" || want.Mode == have.Mode {
		return
	}
	before := map[string]any{"mode": nil}
	if have.Mode != "" {
		before["mode"] = have.Mode
	}
	r.differ("mode", "mode", before, map[string]any{"mode": want.Mode})
	r.mode = want.Mode
}

func (r *reconciliation) compareNetworks(have, want *tenants.Configuration) {
	name := func(n *tenants.Network) string { return string(n.Action) + " " + n.CIDR.String() }
	stored := byName(have.Networks, name)
	for i := range want.Networks {
		n := &want.Networks[i]
		old := stored[name(n)]
		delete(stored, name(n))
		if old != nil && old.Reason == n.Reason && old.ExpiresAt.Equal(n.ExpiresAt) {
			continue
		}
		if old == nil && r.ended(n.ExpiresAt) {
			r.warn("network %s ended at %s: it is not created", name(n), n.ExpiresAt.UTC().Format(time.RFC3339))
			continue
		}
		var fields any
		if old != nil {
			fields = networkFields(old)
			n.ID = old.ID
		}
		if e, changed := r.differ("network", name(n), fields, networkFields(n)); changed {
			e.auditID = fmt.Sprint(n.ID)
			r.networks = append(r.networks, pair[tenants.Network]{before: old, after: n})
			r.networkEntries = append(r.networkEntries, e)
		}
	}
	if !r.prune || want.Networks == nil {
		return
	}
	for i := range have.Networks {
		n := &have.Networks[i]
		if stored[name(n)] == nil {
			continue
		}
		if e, changed := r.differ("network", name(n), networkFields(n), nil); changed {
			e.auditID = fmt.Sprint(n.ID)
			r.deadNetworks = append(r.deadNetworks, pair[tenants.Network]{before: n})
		}
	}
}

func (r *reconciliation) findDeadTenants(have, want *tenants.Configuration) {
	if !r.prune || want.Tenants == nil {
		return
	}
	named := byName(want.Tenants, func(t *tenants.ConfiguredTenant) string { return t.Slug })
	for i := range have.Tenants {
		t := &have.Tenants[i].Tenant
		if named[t.Slug] != nil {
			continue
		}
		r.differ("tenant", t.Slug, tenantFields(t), nil)
		r.deadTenants = append(r.deadTenants, pair[tenants.Tenant]{before: t})
	}
}

// findDeadPlans refuses to prune a plan that a tenant keeps.
func (r *reconciliation) findDeadPlans(have, want *tenants.Configuration) {
	if !r.prune || want.Plans == nil {
		return
	}
	named := byName(want.Plans, func(p *tenants.Plan) string { return p.Name })
	users := r.keptOn(have, want)
	for i := range have.Plans {
		p := &have.Plans[i]
		if named[p.Name] != nil {
			continue
		}
		if on := users[p.Name]; len(on) > 0 {
			r.err = &tenants.ConflictError{Detail: fmt.Sprintf(
				"plan %s cannot be pruned: it is used by %s, which the file does not describe; describe the plan, or move them to another", p.Name, someOf(on))}
			return
		}
		r.differ("plan", p.Name, planFields(p), nil)
		r.deadPlans = append(r.deadPlans, pair[tenants.Plan]{before: p})
	}
}

// keptOn are the tenants that stay as they are, by plan: those the file describes are checked where they name theirs.
func (r *reconciliation) keptOn(have, want *tenants.Configuration) map[string][]string {
	if want.Tenants != nil { // what it does not name is pruned
		return nil
	}
	users := map[string][]string{}
	for i := range have.Tenants {
		users[have.Tenants[i].Plan] = append(users[have.Tenants[i].Plan], have.Tenants[i].Slug)
	}
	return users
}

// finalPlans are the plans there will be.
func (r *reconciliation) finalPlans(have, want *tenants.Configuration) map[string]*tenants.Plan {
	plans := byName(want.Plans, func(p *tenants.Plan) string { return p.Name })
	if r.prune && want.Plans != nil {
		return plans
	}
	for i := range have.Plans {
		if p := &have.Plans[i]; plans[p.Name] == nil {
			plans[p.Name] = p
		}
	}
	return plans
}

func byName[T any](list []T, name func(*T) string) map[string]*T {
	m := make(map[string]*T, len(list))
	for i := range list {
		m[name(&list[i])] = &list[i]
	}
	return m
}

// someOf names a few of many tenants.
func someOf(slugs []string) string {
	const shown = 3
	if len(slugs) == 1 {
		return "tenant " + slugs[0]
	}
	text := fmt.Sprintf("%d tenants (%s", len(slugs), strings.Join(slugs[:min(shown, len(slugs))], ", "))
	if len(slugs) > shown {
		text += ", …"
	}
	return text + ")"
}
