// Package usage counts what every decision did, per tenant and limit, in this process.
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
	LimitName string // the tightest limit
	Verdict   Verdict
	Used      int64
	Quota     int64
	At        time.Time
	// Exempt: a service token spared it the address limits.
	Exempt bool
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
