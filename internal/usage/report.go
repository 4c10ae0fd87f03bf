package usage

import (
	"cmp"
	"slices"
	"time"
)

const (
	// maxReported bounds the tenants of one report: those that stand highest and make most requests. About 250 B each.
	maxReported = 10_000
	// maxNamesReported bounds its addresses and its service tokens, each.
	maxNamesReported = 100
)

// report is what one replica tells the others. Brief is without tenants and names: the sender told them elsewhere.
type report struct {
	Replica     Replica        `json:"replica"`
	Brief       bool           `json:"brief,omitempty"`
	Tenants     []reportTenant `json:"tenants,omitempty"`
	Active      int            `json:"active"`
	Total       Counts         `json:"total"`
	Anonymous   Counts         `json:"anonymous"`
	Wrong       int64          `json:"wrong,omitempty"`
	Addresses   []Refusals     `json:"addresses,omitempty"`
	Services    []Refusals     `json:"services,omitempty"`
	SeriesFirst int64          `json:"series_first"`
	Series      []flow         `json:"series,omitempty"`
	Dropped     int64          `json:"dropped,omitempty"`
	Omitted     int64          `json:"omitted,omitempty"`
}

// reportTenant is a tenant in a report; times are Unix seconds, 0 for none.
type reportTenant struct {
	ID     int64         `json:"i"`
	Tenant string        `json:"t"`
	Plan   string        `json:"p"`
	LastAt int64         `json:"h"`
	Last   Counts        `json:"c"`
	Limits []reportLimit `json:"l,omitempty"`
}

type reportLimit struct {
	Name      string  `json:"n"`
	Used      int64   `json:"u"`
	Quota     int64   `json:"q"`
	Peak      float64 `json:"p"`
	At        int64   `json:"h"`
	HighSince int64   `json:"s,omitempty"`
	Watches   bool    `json:"w,omitempty"`
}

func (l *reportLimit) utilization() float64 {
	return (&LimitUse{Used: l.Used, Quota: l.Quota}).utilization()
}

// report is what this replica has to tell, as of the last collection.
func (a *Aggregator) report() *report {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &report{
		Total: a.total.last.sum, Anonymous: a.collected.anonymous.last.sum, Wrong: a.collected.wrong.last.sum.Refused, Dropped: a.dropped.Load(),
	}
	r.SeriesFirst, r.Series = a.series.full()
	r.SeriesFirst -= a.shift / int64(SeriesStep/time.Second)
	a.tenants.all(func(t *tenantCell) {
		if t.seen.last.sum.Hits() > 0 {
			r.Tenants = append(r.Tenants, t.report(a.shift))
		}
	})
	r.Active = len(r.Tenants)
	if len(r.Tenants) > maxReported {
		slices.SortFunc(r.Tenants, func(x, y reportTenant) int {
			return cmp.Or(cmp.Compare(y.standing(), x.standing()), cmp.Compare(y.Last.Hits(), x.Last.Hits()))
		})
		r.Omitted = int64(len(r.Tenants) - maxReported)
		r.Tenants = r.Tenants[:maxReported]
	}
	var addresses []Refusals
	for _, shard := range a.addresses {
		addresses = shard.refusals(addresses)
	}
	r.Addresses = most(addresses, maxNamesReported)
	r.Services = most(a.services.refusals(nil), maxNamesReported)
	return r
}

// report is what is known of a tenant, in times of the replica's clock.
func (t *tenantCell) report(shift int64) reportTenant {
	called := t.called.Load()
	limits := *t.limits.Load()
	r := reportTenant{
		ID: t.id, Tenant: called.tenant, Plan: called.plan, LastAt: t.seen.lastHit - shift, Last: t.seen.last.sum, Limits: make([]reportLimit, 0, len(limits)),
	}
	for _, l := range limits {
		if l.seen.lastHit == 0 {
			continue
		}
		limit := reportLimit{
			Name: l.name, Used: min(l.seen.used, l.seen.quota), Quota: l.seen.quota, Peak: l.seen.peak(), At: l.seen.lastHit - shift,
			Watches: l.watches.Load(),
		}
		if l.seen.highSince != 0 {
			limit.HighSince = l.seen.highSince - shift
		}
		r.Limits = append(r.Limits, limit)
	}
	return r
}

// standing is the highest of its limits' utilisation.
func (t *reportTenant) standing() (u float64) {
	for i := range t.Limits {
		if !t.Limits[i].Watches {
			u = max(u, t.Limits[i].utilization())
		}
	}
	return u
}

// merge adds what another replica says of the same tenant. Counts add up. A limit's numbers are the store's, the same whoever
// asks it: the later ones hold.
func (t *reportTenant) merge(o *reportTenant) {
	if o.LastAt > t.LastAt {
		t.LastAt, t.Tenant, t.Plan = o.LastAt, o.Tenant, o.Plan
	}
	t.Last.Add(&o.Last)
	for i := range o.Limits {
		theirs := &o.Limits[i]
		at := slices.IndexFunc(t.Limits, func(l reportLimit) bool { return l.Name == theirs.Name })
		if at < 0 {
			t.Limits = append(t.Limits, *theirs)
			continue
		}
		t.Limits[at].merge(theirs)
	}
}

// merge also settles since when a limit stands high: the longest time that anybody knows of, unless the replica that saw the
// limit last says that it is over, and nobody saw it otherwise in the five seconds before.
func (l *reportLimit) merge(o *reportLimit) {
	newer, older := *l, *o
	if o.At > l.At || o.At == l.At && o.utilization() > l.utilization() {
		newer, older = *o, *l
	}
	merged := newer
	merged.Peak = max(l.Peak, o.Peak)
	switch {
	case older.HighSince == 0:
	case newer.HighSince != 0:
		merged.HighSince = min(newer.HighSince, older.HighSince)
	case newer.At-older.At <= calm:
		merged.HighSince = older.HighSince
	}
	*l = merged
}

// show is the tenant as everybody sees it.
func (t *reportTenant) show() TenantUsage {
	u := TenantUsage{
		TenantID: t.ID, Tenant: t.Tenant, Plan: t.Plan, LastAt: when(t.LastAt), Last60s: t.Last, Limits: make([]LimitUsage, 0, len(t.Limits)),
	}
	slices.SortFunc(t.Limits, func(x, y reportLimit) int { return cmp.Compare(x.Name, y.Name) })
	for i := range t.Limits {
		l := &t.Limits[i]
		utilization := l.utilization()
		u.Limits = append(u.Limits, LimitUsage{
			Name: l.Name, Used: l.Used, Limit: l.Quota, Utilization: utilization, Peak: max(l.Peak, utilization), At: when(l.At),
			HighSince: when(l.HighSince), Watches: l.Watches,
		})
		if l.Watches {
			continue
		}
		if u.LimitName == "" || utilization > u.Utilization {
			u.LimitName, u.Used, u.Limit, u.Utilization = l.Name, l.Used, l.Quota, utilization
		}
		if since := when(l.HighSince); !since.IsZero() && (u.HighSince.IsZero() || since.Before(u.HighSince)) {
			u.HighSince = since
		}
	}
	return u
}
