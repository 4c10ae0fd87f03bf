// Package usage counts what every decision did, per tenant, limit, user and key: live over all replicas for the dashboard, the
// alerts and GET /admin/rate-limits, and as history in minutes, hours and days.
//
// Record, on the hot path, adds to counters and takes no lock; only a name that is new to a table does. Once a second Collect
// turns what was added into windows and minutes. A Reporter, one for each replica, collects, tells the other replicas (an
// Exchange: Redis, else Postgres) and writes history (a HistoryStore: Postgres).
//
// Everything is bounded: tenants, limits of a tenant, users and keys of a tenant, refused addresses and tokens, minutes that
// wait for Postgres. What finds no room is counted. A crash loses what was added since the last flush: one second of the live
// picture, ten of history. Minutes are written as totals of this run of the process, so one that is written twice, or whose
// first write had no answer, counts once.
//
// With Redis and Postgres away the live picture is this replica's alone and says so, and history waits, bounded, in memory.
package usage

import "time"

// Event is one decided request.
type Event struct {
	TenantID  int64 // 0: nobody's
	Tenant    string
	Plan      string
	User, Key string // within the tenant; empty: none
	Address   string // set when the address refused
	Service   string // service token name, set when its own address was refused
	Verdict   Verdict
	// Limits are the tenant's own that were asked. It belongs to the caller: Record does not keep it.
	Limits []LimitUse
	Cost   int64 // the hit's units before any limit's multiplier
	At     time.Time
	// Exempt: a service token spared it the address limits.
	Exempt bool
	// Shadow: the service is in shadow mode; Verdict is what it would have been, and the hit went through.
	Shadow bool
	// WrongCredential: a credential of ours came with it and is not valid.
	WrongCredential bool
	// Held: the cap on held requests refused it after it was counted as Slowed.
	Held bool
}

// LimitUse is a limit's numbers after a request.
type LimitUse struct {
	Name        string
	Used, Quota int64
	// Refused: it had no room.
	Refused bool
	// Watches: it is in shadow mode and never in a verdict.
	Watches bool
}

// utilization is used ÷ quota, 0…1; 1 for a quota of 0.
func (l *LimitUse) utilization() float64 {
	if l.Quota <= 0 {
		return 1
	}
	return min(1, max(0, float64(l.Used)/float64(l.Quota)))
}

// Verdict is what became of a request.
type Verdict uint8

// The verdicts.
const (
	Allowed Verdict = iota
	Slowed
	Refused
)

// Recorder takes events on the hot path: it must not block and take no lock shared by all tenants.
type Recorder interface {
	Record(Event)
}

// Counts is what happened to hits.
type Counts struct {
	Admitted int64 `json:"a,omitempty"` // at full speed
	Slowed   int64 `json:"s,omitempty"` // let through after a delay
	Refused  int64 `json:"r,omitempty"`
	Exempt   int64 `json:"x,omitempty"` // of all of them: spared the address limits by a service token
	Units    int64 `json:"u,omitempty"` // the cost of those let through
	// Peak is the highest utilisation, 0…1.
	Peak float64 `json:"p,omitempty"`
}

// Hits is how many hits there were.
func (c *Counts) Hits() int64 { return c.Admitted + c.Slowed + c.Refused }

// Add adds o's counts; the peak is the higher of both.
func (c *Counts) Add(o *Counts) {
	c.Admitted += o.Admitted
	c.Slowed += o.Slowed
	c.Refused += o.Refused
	c.Exempt += o.Exempt
	c.Units += o.Units
	c.Peak = max(c.Peak, o.Peak)
}

// minus is what came since before, without a peak.
func (c *Counts) minus(before *Counts) Counts {
	return Counts{
		Admitted: c.Admitted - before.Admitted, Slowed: c.Slowed - before.Slowed, Refused: c.Refused - before.Refused,
		Exempt: c.Exempt - before.Exempt, Units: c.Units - before.Units,
	}
}
