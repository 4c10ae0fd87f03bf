package alert

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/usage"
)

const (
	// ReplicaTTL is how long after its last look a replica still counts.
	ReplicaTTL = 20 * time.Second
	// forgedBurst is how many wrong credentials in 60 s, over all replicas, are a burst.
	forgedBurst = 100
	// longestHold ends incidents of tenants that are gone: after so long without a request nothing is high any more,
	// however long the window.
	longestHold = 24 * time.Hour
	// maxNamed bounds the service tokens and replicas that are told of.
	maxNamed = 50
)

// The states of stores.
const storeDown = "down"

// Sight is what this replica sees when it looks.
type Sight struct {
	// Now is this replica's clock: what the levels' times are by.
	Now    time.Time
	Levels []usage.TenantUsage
	Usage  usage.Overview
	// Lost is how many rows of the request log were lost since the look before.
	Lost int64
	// PostgresFrom and PostgresTo are an outage of Postgres that this replica has just seen the end of.
	PostgresFrom, PostgresTo time.Time
}

// finding is how one subject stands.
type finding struct {
	key   Key
	rule  Rule
	facts Facts
	level Level
}

// LimitRule is the rule of a plan for one of its limits. It is over below 7/8 of what is high (70 % for 80 %), for half the
// time that opened it.
func LimitRule(a tenants.Alert, l *ratelimit.Limit) Rule {
	return Rule{
		At: a.At, Below: a.At * 7 / 8, For: a.For, Quiet: a.For / 2,
		Dip:  min(2*l.Span(), a.For/2),
		Hold: min(l.Span(), longestHold), Drains: l.Algorithm.Bucket(),
	}
}

// eventRule is the rule of what is no level: it is or it is not.
func eventRule(k Kind) Rule {
	r := Rule{At: 1, Below: 0.5, Quiet: 10 * time.Minute, Dip: time.Minute, Hold: ReplicaTTL}
	switch k {
	case StoreDown:
		// Longer than two looks: what one replica says once, because a store was slow for a moment, is no outage.
		r.For, r.Quiet, r.Dip = 2*LookEvery+time.Second, time.Minute, 15*time.Second
	case ReplicasDisagree:
		// Replicas switch a moment apart, and say so a few seconds apart.
		r.For, r.Quiet, r.Dip = 2*LookEvery+time.Second, time.Minute, time.Second
	case TenantHigh, RequestLogDrops, ServiceTokenRefused, ForgedTokens:
	}
	return r
}

// limitKey names a tenant's limit. Counters belong to the tenant's id, and so do incidents.
func limitKey(tenantID int64, limit string) Key {
	return Key{Kind: TenantHigh, Subject: strconv.FormatInt(tenantID, 10) + "/" + limit}
}

// limitOf finds the limit that a key names, as it is configured now.
func limitOf(snapshot *tenants.Snapshot, k Key, now time.Time) (*tenants.TenantView, *ratelimit.Limit, bool) {
	id, name, _ := strings.Cut(k.Subject, "/")
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return nil, nil, false
	}
	view, ok := snapshot.TenantByID(n)
	if !ok || view.Plan == nil {
		return nil, nil, false
	}
	l := watched(view, name, now)
	return view, l, l != nil
}

// watched is a tenant's limit if alerts are about it: those of one user or key are that person's affair, and what only
// watches (shadow) refuses nobody.
func watched(view *tenants.TenantView, name string, now time.Time) *ratelimit.Limit {
	for i := range view.Limits {
		l := view.Limits[i].LimitAt(now)
		if l.Name == name && l.Scope == ratelimit.ScopeTenant && l.Mode != ratelimit.Shadow {
			return l
		}
	}
	return nil
}

// limitFindings is how every tenant stands that is high at a limit, or whose state is kept.
func limitFindings(snapshot *tenants.Snapshot, s *Sight, kept map[Key]State) (found []finding) {
	for i := range s.Levels {
		u := &s.Levels[i]
		view, ok := snapshot.TenantByID(u.TenantID)
		if !ok || view.Plan == nil {
			continue
		}
		for j := range u.Limits {
			lu := &u.Limits[j]
			l := watched(view, lu.Name, s.Now)
			if l == nil {
				continue
			}
			rule, key := LimitRule(view.Plan.Alert, l), limitKey(u.TenantID, lu.Name)
			value := lu.Utilization
			if l.Algorithm == ratelimit.FixedWindow { // starts from nothing again and again: how high it comes is what counts
				value = max(value, lu.Peak)
			}
			if _, known := kept[key]; known || value >= rule.Below {
				found = append(found, finding{key: key, rule: rule, facts: limitFacts(view, l), level: Level{Value: value, At: lu.At}})
			}
		}
	}
	return found
}

func limitFacts(view *tenants.TenantView, l *ratelimit.Limit) Facts {
	rule := LimitRule(view.Plan.Alert, l)
	return Facts{
		TenantID: view.ID, Tenant: view.Slug, TenantName: view.Name, Plan: view.Plan.Name,
		Limit: l.Name, Quota: l.Quota, Window: l.Span(), Slowed: l.Slowdown != nil, At: rule.At, Below: rule.Below, For: rule.For,
	}
}

// eventFindings is how the rest stands: what is not wrong and of which no state is kept is left out.
func eventFindings(s *Sight, book *Book) (found []finding) {
	add := func(k Key, wrong bool, f Facts) {
		level := Level{At: s.Now}
		if wrong {
			level.Value = 1
		}
		if _, known := book.States[k]; known || wrong {
			found = append(found, finding{key: k, rule: eventRule(k.Kind), facts: f, level: level})
		}
	}
	for _, store := range []struct {
		name string
		of   func(*Replica) string
	}{
		{"redis", func(r *Replica) string { return r.Redis }},
		{"postgres", func(r *Replica) string { return r.Postgres }},
	} {
		seen, down := views(book.Replicas, store.of), false
		for i := range book.Replicas {
			down = down || store.of(&book.Replicas[i]) == storeDown
		}
		add(Key{StoreDown, store.name}, down, Facts{Name: store.name, Replicas: seen})
	}
	sources := map[string]bool{}
	for i := range book.Replicas {
		sources[book.Replicas[i].Source] = true
	}
	add(Key{Kind: ReplicasDisagree}, len(sources) > 1, Facts{Replicas: views(book.Replicas, func(r *Replica) string { return "decides by " + r.Source })})
	add(Key{Kind: RequestLogDrops}, s.Lost > 0, Facts{Count: s.Lost})
	add(Key{Kind: ForgedTokens}, s.Usage.WrongCredentials >= forgedBurst, Facts{Count: s.Usage.WrongCredentials})

	refused := map[string]bool{}
	for _, r := range s.Usage.Services[:min(len(s.Usage.Services), maxNamed)] {
		refused[r.Name] = true
		add(Key{ServiceTokenRefused, r.Name}, r.Count > 0, Facts{Name: r.Name, Count: r.Count})
	}
	for k := range book.States {
		if k.Kind == ServiceTokenRefused && !refused[k.Subject] {
			add(k, false, Facts{Name: k.Subject})
		}
	}
	return found
}

// views is what each replica says, in order.
func views(replicas []Replica, says func(*Replica) string) []string {
	out := make([]string, len(replicas))
	for i := range replicas {
		out[i] = fmt.Sprintf("%s: %s", replicas[i].Name, says(&replicas[i]))
	}
	slices.Sort(out)
	return out[:min(len(out), maxNamed)]
}
