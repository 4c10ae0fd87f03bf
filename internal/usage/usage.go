// Package usage counts what every decision did, per tenant, in this process: for the dashboard and GET /admin/rate-limits.
// Record is safe for concurrent use and never waits for anything but a tenant's own numbers. It depends on nothing that can
// be away; what it knows is gone when the process ends, and each replica knows only what it decided itself.
package usage

import (
	"time"
)

// Event is one decided request.
type Event struct {
	TenantID  int64 // 0: nobody's
	Tenant    string
	Plan      string
	Address   string // set when the address refused
	Service   string // service token name, set when it was refused
	LimitName string // the tightest limit; of a tenant's event the tightest of its own, empty when none was asked
	Verdict   Verdict
	Used      int64
	Quota     int64
	Cost      int64 // the hit's units before any limit's multiplier
	At        time.Time
	// Exempt: a service token spared it the address limits.
	Exempt bool
	// Shadow: the service is in shadow mode; Verdict is what it would have been, and the hit went through.
	Shadow bool
	// WrongCredential: a credential of ours came with it and is not valid.
	WrongCredential bool
	// Held: the cap on held requests refused it after it was counted as Slowed.
	Held bool
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
