package tenants

import (
	"sync/atomic"
	"time"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// Directory is the configuration as the decision path sees it: an immutable Snapshot behind an atomic pointer, replaced
// as a whole by the poller. It is safe for concurrent use and never blocks a reader.
type Directory struct {
	current atomic.Pointer[Snapshot]
}

// Snapshot is the whole configuration at one version. It is never changed once it is published.
type Snapshot struct {
	// Version is the configuration version it holds; 0 before the first load.
	Version int64
	// ConfirmedAt is when Postgres last confirmed it (this replica's clock).
	ConfirmedAt time.Time
	// AddressRules is the address policy.
	AddressRules []Rule
	// StoredMode is the mode an administrator set; empty when nobody has.
	StoredMode ratelimit.Mode

	tenantsBySlug map[string]*TenantView
	tenantsByID   map[int64]*TenantView
	apiKeys       map[string]*APIKey
	serviceTokens map[string]*ServiceToken
	adminTokens   map[string]*AdminToken
}

// TenantView is a tenant with its plan and the limits that hold for it.
type TenantView struct {
	Tenant
	Plan *Plan
	// Limits are the plan's, in its order, each with the tenant's override if there is one.
	Limits []EffectiveRule
}

// EffectiveRule is a rule and the exception to it.
type EffectiveRule struct {
	Rule *Rule
	// Overridden is Rule.Limit with the override's quota; nil without an override.
	Overridden *ratelimit.Limit
	Override   *Override
}

// LimitAt is the limit that holds at a moment: the overridden one until the override expires.
func (e *EffectiveRule) LimitAt(now time.Time) *ratelimit.Limit {
	if e.Overridden != nil && (e.Override.ExpiresAt.IsZero() || now.Before(e.Override.ExpiresAt)) {
		return e.Overridden
	}
	return &e.Rule.Limit
}

// Snapshot is the current one; never nil.
func (d *Directory) Snapshot() *Snapshot { return d.current.Load() }

// Tenant finds a tenant by slug.
func (s *Snapshot) Tenant(slug string) (*TenantView, bool) {
	t, ok := s.tenantsBySlug[slug]
	return t, ok
}

// TenantByID finds a tenant by its immutable id.
func (s *Snapshot) TenantByID(id int64) (*TenantView, bool) {
	t, ok := s.tenantsByID[id]
	return t, ok
}

// APIKey finds a key by its public id. The caller compares the secret and checks its life.
func (s *Snapshot) APIKey(id string) (*APIKey, bool) {
	k, ok := s.apiKeys[id]
	return k, ok
}

// ServiceToken finds a service token by its public id.
func (s *Snapshot) ServiceToken(id string) (*ServiceToken, bool) {
	t, ok := s.serviceTokens[id]
	return t, ok
}

// AdminToken finds an admin token by its public id.
func (s *Snapshot) AdminToken(id string) (*AdminToken, bool) {
	t, ok := s.adminTokens[id]
	return t, ok
}
