// Package tenants is what an operator configures: plans, tenants, overrides, credentials, the address policy, network
// lists and the mode, with their validation, the interfaces they are stored behind, and the Directory, an immutable
// snapshot of all of it that the decision path reads without a lock.
package tenants

import (
	"net/netip"
	"time"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// Rule is a limit with the conditions under which it holds.
type Rule struct {
	ratelimit.Limit
	Match Match
	// AppliesTo is only read in the address policy.
	AppliesTo AppliesTo
}

// Match narrows a limit to requests whose facts are given and match; an empty Match always holds.
type Match struct {
	Methods []string // upper case
	// Paths are patterns over the path's segments: "*" is one segment, a trailing "/*" one or more.
	Paths []string
}

// Empty reports whether the match holds for every request.
func (m Match) Empty() bool { return len(m.Methods) == 0 && len(m.Paths) == 0 }

// AppliesTo says whom an address limit counts.
type AppliesTo string

// Anonymous requests and wrong credentials, or also callers with a valid API key (service tokens never).
const (
	AppliesToAnonymous AppliesTo = "anonymous"
	AppliesToAll       AppliesTo = "all"
)

// RequestLog says which calls of a plan's tenants are logged.
type RequestLog string

// The request log settings.
const (
	LogOff     RequestLog = "off"
	LogDenied  RequestLog = "denied"
	LogAllowed RequestLog = "allowed"
	LogSampled RequestLog = "sampled"
	LogAll     RequestLog = "all"
)

// Alert is when sustained load is worth a mail.
type Alert struct {
	At  float64       // utilisation, (0, 1]
	For time.Duration // 1 s…24 h
}

// Plan is a named list of limits; every tenant has exactly one.
type Plan struct {
	ID         int64
	Name       string // slug
	Title      string
	Alert      Alert
	RequestLog RequestLog
	Limits     []Rule
	Version    int64 // rises with every change; the ETag
	CreatedAt  time.Time
	UpdatedAt  time.Time
}

// AddressPolicy is the list of limits for callers nobody vouches for.
type AddressPolicy struct {
	Limits    []Rule
	Version   int64
	UpdatedAt time.Time
}

// Status of a tenant.
type Status string

// The statuses.
const (
	Active    Status = "active"
	Suspended Status = "suspended"
)

// Tenant is an organisation that shares one budget.
type Tenant struct {
	ID           int64 // immutable; counters belong to it, not to the slug
	Slug         string
	Name         string
	Plan         string
	Status       Status
	ContactEmail string
	Metadata     map[string]string
	// Generation rises with every reset of the tenant's counters.
	Generation int64
	Version    int64
	CreatedAt  time.Time
	UpdatedAt  time.Time
}

// Override is a tenant's exception to one limit.
type Override struct {
	TenantID  int64
	LimitName string
	Quota     int64
	Reason    string
	ExpiresAt time.Time // zero: never
	UpdatedAt time.Time
	// LastUsedAt is when it last decided, to the minute or so; zero: never.
	LastUsedAt time.Time
}

// HoldsAt reports whether the override has yet to expire at a moment.
func (o *Override) HoldsAt(now time.Time) bool {
	return o.ExpiresAt.IsZero() || now.Before(o.ExpiresAt)
}

// APIKey is a tenant's credential. The secret is shown once and never stored.
type APIKey struct {
	ID         string // public id
	TenantID   int64
	Name       string
	Hash       [32]byte // SHA-256 of the secret
	CreatedAt  time.Time
	ExpiresAt  time.Time // zero: never
	RevokedAt  time.Time // zero: not revoked
	LastUsedAt time.Time
}

// Permission is something a service token may do.
type Permission string

// The permissions.
const (
	MayCheck    Permission = "check"
	MayStatus   Permission = "status"
	MayRefund   Permission = "refund"
	MayIdentify Permission = "identify"
)

// ServiceToken is an internal service's credential.
type ServiceToken struct {
	ID         string
	Name       string
	Hash       [32]byte
	Exempt     []ratelimit.Scope // only ScopeAddress
	May        []Permission
	CreatedAt  time.Time
	ExpiresAt  time.Time
	RevokedAt  time.Time
	LastUsedAt time.Time
}

// Role of an administrator, each including the ones before it.
type Role string

// The roles.
const (
	Viewer   Role = "viewer"
	Operator Role = "operator"
	Admin    Role = "admin"
)

// AdminToken is an administrator's credential.
type AdminToken struct {
	ID         string
	Name       string
	Role       Role
	Hash       [32]byte
	CreatedAt  time.Time
	ExpiresAt  time.Time
	RevokedAt  time.Time
	LastUsedAt time.Time
}

// NetworkAction is what a network list entry does.
type NetworkAction string

// Allow only carves out of a broader deny.
const (
	Deny  NetworkAction = "deny"
	Allow NetworkAction = "allow"
)

// Network is an entry of the deny or allow list.
type Network struct {
	ID        int64
	CIDR      netip.Prefix
	Action    NetworkAction
	Reason    string
	ExpiresAt time.Time
	CreatedAt time.Time
}
