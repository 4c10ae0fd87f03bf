package usage

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Top is the answer to "who is using what".
type Top struct {
	// Tenants are those with hits in the last 60 s: highest utilisation first, then most hits, then by name.
	Tenants []TenantUsage
	// Anonymous is the traffic that no tenant pays for.
	Anonymous Counts
	// Addresses and Services were refused most: addresses by their own limits, service tokens' hits by any limit.
	Addresses, Services []Refusals
	// WrongCredentials is how many requests presented a credential of ours that is not valid, in this minute and the last.
	WrongCredentials int64
	// Dropped events were not counted: more tenants than may be held.
	Dropped int64
}

// Top is the n biggest consumers of the last 60 s, the n most refused addresses and the n most refused service tokens.
func (a *Aggregator) Top(n int, now time.Time) Top {
	v := Top{Dropped: a.Dropped()}
	for i := range a.anonymous {
		shard := a.anonymous[i].view(now).Last60s
		v.Anonymous.add(&shard)
	}
	a.tenants.Range(func(_, value any) bool {
		if t, ok := value.(*tenantUsage); ok {
			if u := t.view(now); u.Last60s.Hits() > 0 {
				v.Tenants = append(v.Tenants, u)
			}
		}
		return true
	})
	slices.SortFunc(v.Tenants, func(x, y TenantUsage) int {
		return cmp.Or(cmp.Compare(y.Utilization, x.Utilization), cmp.Compare(y.Last60s.Hits(), x.Last60s.Hits()), cmp.Compare(x.Tenant, y.Tenant))
	})
	v.Tenants = v.Tenants[:min(max(n, 0), len(v.Tenants))]

	var addresses []Refusals
	for i := range a.addresses {
		addresses = append(addresses, a.addresses[i].list(now)...)
	}
	v.Addresses = most(addresses, n)
	v.Services = most(a.services.list(now), n)
	for _, w := range a.wrong.list(now) {
		v.WrongCredentials += w.Count
	}
	return v
}

// Tenant is one tenant's numbers; ok is false when nothing is known of it.
func (a *Aggregator) Tenant(id int64, now time.Time) (u TenantUsage, ok bool) {
	found, ok := a.tenants.Load(id)
	if !ok {
		return TenantUsage{}, false
	}
	t, ok := found.(*tenantUsage)
	if !ok {
		return TenantUsage{}, false
	}
	return t.view(now), true
}

func most(list []Refusals, n int) []Refusals {
	slices.SortFunc(list, func(x, y Refusals) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), cmp.Compare(x.Name, y.Name))
	})
	return list[:min(max(n, 0), len(list))]
}

// topSize is how many names one table holds for each minute.
const topSize = 64

// topTable counts names in bounded memory by the space-saving algorithm (Metwally, Agrawal, El Abbadi 2005), for this minute
// and the one before: when it is full, a new name takes the place of the least counted and inherits its count as its
// error. Whoever has more than 1/topSize of all refusals of a minute is certainly in it.
type topTable struct {
	mu           sync.Mutex
	minute       int64
	this, before []Refusals
}

func (t *topTable) add(name string, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(at)
	least := 0
	for i := range t.this {
		if t.this[i].Name == name {
			t.this[i].Count++
			return
		}
		if t.this[i].Count < t.this[least].Count {
			least = i
		}
	}
	if len(t.this) < topSize {
		t.this = append(t.this, Refusals{Name: name, Count: 1})
		return
	}
	taken := &t.this[least]
	*taken = Refusals{Name: name, Count: taken.Count + 1, Error: taken.Count}
}

// turn starts a new minute. Events that come late, by a clock that went back, count in the minute that is open.
func (t *topTable) turn(at time.Time) {
	switch minute := at.Unix() / 60; {
	case minute <= t.minute:
	case minute == t.minute+1:
		t.minute, t.before, t.this = minute, t.this, t.before[:0]
	default:
		t.minute, t.before, t.this = minute, t.before[:0], t.this[:0]
	}
}

// list is both minutes together.
func (t *topTable) list(now time.Time) []Refusals {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(now)
	out := slices.Clone(t.this)
	for _, r := range t.before {
		if i := slices.IndexFunc(out, func(o Refusals) bool { return o.Name == r.Name }); i >= 0 {
			out[i].Count += r.Count
			out[i].Error += r.Error
		} else {
			out = append(out, r)
		}
	}
	return out
}
