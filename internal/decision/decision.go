// Package decision is the one engine behind every front door: credentials and request facts become subjects and limits,
// one or two charges on the Store, and a Decision with its headers. No front door decides for itself.
package decision

import (
	"errors"
	"net/netip"
	"time"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// Verdict is what a decision says.
type Verdict string

// The verdicts.
const (
	Allow Verdict = "allow"
	Slow  Verdict = "slow" // allow after Delay
	Deny  Verdict = "deny"
)

// Credentials are what a request carried, before anybody looked at them. Front doors fill it from headers (ReadCredentials).
type Credentials struct {
	Authorization  []string // every Authorization line
	APIKey         []string // every X-API-Key line
	ServiceToken   []string // every X-Pegel-Service-Token line
	Tenant, User   string   // X-Pegel-Tenant, X-Pegel-User
	ClientKey      string   // X-Client-Key
	Host           string   // the host that the request is for; empty: it says nothing of the tenant
	IdentityPeer   bool     // the peer is a trusted proxy and PEGEL_TRUST_IDENTITY_HEADERS is on
	MultipleValues bool     // X-Pegel-Tenant or X-Pegel-User came more than once
	SeveralKeys    bool     // X-Client-Key came more than once
}

// Caller is who is asking, after Engine.Identify.
type Caller struct {
	// Tenant is who pays: the API key's tenant or the one named by somebody believed. Nil: nobody's request.
	Tenant *tenants.TenantView
	APIKey *tenants.APIKey
	// Service is the valid service token, nil without one.
	Service *tenants.ServiceToken
	User    string
	Key     string
	// WrongAPIKey, WrongService: a credential of ours was presented and is not valid. All reasons are one.
	WrongAPIKey, WrongService bool
	// UnknownTenant: somebody believed named a tenant that does not exist.
	UnknownTenant bool
	// BadIdentity: an identity header came twice or holds no valid identifier. Nobody is charged on a guess (400).
	BadIdentity bool
	// Vouched: the tenant was named by somebody believed, not proven by an API key.
	Vouched bool
	// Session: the tenant was named by a token of the application (TokenVerifier); it speaks for its own user.
	Session bool
	// Address is the caller's own address with the length of the prefix it is counted by; the zero Prefix when there is
	// none (Unix socket). Its host bits are kept for the network lists: Masked() is what is counted and shown.
	Address netip.Prefix
	// Door is set by the front door, for Observers.
	Door Door
}

// Hit is one request to decide on.
type Hit struct {
	// Tenant, User and Key name the subjects; Tenant is nil for a hit that only an address pays for.
	Tenant    *tenants.TenantView
	User, Key string
	// Address pays by the address policy when it is valid; host bits are allowed (see Caller.Address).
	Address netip.Prefix
	// Standing of whoever is behind Address: which address limits hold.
	Standing Standing
	// Method and Path are facts for Match; empty: not given. Path is any spelling of the request's path: the engine matches
	// its canonical form, and a path that has none (tenants.CanonicalPath) matches every pattern.
	Method, Path string
	// Cost in units, 0…ratelimit.MaxCost; 0 consumes nothing.
	Cost int64
	// Peek answers without consuming.
	Peek bool
	// Service is the name of the service token that sent the hit, for usage.
	Service string
	// Own: Address is that of whoever sent the hit, not one that they name. A refusal by its limits then is one of the
	// service itself.
	Own bool
	// WrongCredential: a credential of ours came with the request and is not valid. For usage.
	WrongCredential bool
	// Unauthorized: whatever the verdict is, the answer is a refusal for want of a valid credential (CountWrong).
	Unauthorized bool
	// Door is where the hit came in, for Observers.
	Door Door
}

// Standing is what is known of the owner of an address, as the exemption rule needs it.
type Standing uint8

// The standings.
const (
	Anonymous     Standing = iota // nobody, or a wrong credential: every address limit
	Authenticated                 // a valid API key: limits that apply to all
	Exempt                        // a service token exempt from address limits: none
)

// Decision is the verdict and the numbers behind it.
type Decision struct {
	Verdict Verdict
	// Shadowed: the service is in shadow mode and the verdict would have been Would.
	Shadowed bool
	Would    Verdict
	ID       string // UUIDv7
	At       time.Time
	Tenant   string // slug, empty for an address
	Plan     string
	Source   ratelimit.Source
	// Tightest is the index in Limits of the limit the top-level numbers come from; -1: no limit applies or nobody decided.
	Tightest int
	Limits   []LimitState
	Delay    time.Duration // rounded to whole milliseconds
	// CostExceeds: the cost is above the refusing limit's quota; waiting never helps.
	CostExceeds bool
	// Cost is the hit's.
	Cost int64
	// Held is set on the refusal that Holder's caps caused (see TooManyHeld).
	Held bool
}

// LimitState is one limit's numbers in a decision.
type LimitState struct {
	// Limit is the one that held: its Quota includes the override.
	Limit *ratelimit.Limit
	// Rule is the plan's or the policy's that Limit comes from.
	Rule *tenants.Rule
	// Override is the exception that set the quota, nil without one.
	Override *tenants.Override
	State    ratelimit.CounterState
	// Source is what decided this limit; SourceNone: nobody, State is empty.
	Source ratelimit.Source
	// Refused: this limit had no room. On a limit in shadow mode it is what would have happened.
	Refused bool
	// Delay is the slow-down or a leaky bucket's wait, rounded to whole milliseconds.
	Delay time.Duration
}

// Utilization is used ÷ quota, 0…1; 1 for a quota of 0.
func (s *LimitState) Utilization() float64 {
	if s.Limit.Quota <= 0 {
		return 1
	}
	return float64(s.State.Used) / float64(s.Limit.Quota)
}

// Result is one element of DecideBatch: exactly one field is set.
type Result struct {
	Decision *Decision
	Err      error
}

// Errors of Decide. Every one maps to one problem.
var (
	// ErrClosed: a limit with on_store_failure closed holds and no store can decide.
	ErrClosed = errors.New("no store can decide and the limit is closed")
	// ErrSuspended: the tenant is suspended.
	ErrSuspended = errors.New("tenant is suspended")
	// ErrNetworkDenied: the address is in the deny list.
	ErrNetworkDenied = errors.New("network is denied")
	// ErrUnauthorized: a wrong API key (it was counted).
	ErrUnauthorized = errors.New("no valid credential")
	// ErrUnknownTenant: somebody believed named a tenant that does not exist.
	ErrUnknownTenant = errors.New("tenant is unknown")
	// ErrBadIdentity: an identity header is ambiguous or holds no valid identifier.
	ErrBadIdentity = errors.New("identity header is ambiguous or invalid")
)
