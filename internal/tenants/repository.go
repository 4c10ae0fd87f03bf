package tenants

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// What a repository answers besides success. Each is mapped to a problem once, in httpapi.
var (
	ErrNotFound = errors.New("not found")
	// ErrConflict: the name is taken, or the object is in use.
	ErrConflict = errors.New("conflict")
	// ErrVersion: the object changed since the version the caller saw.
	ErrVersion = errors.New("version does not match")
	// ErrUnavailable: Postgres did not answer in time.
	ErrUnavailable = errors.New("configuration store unavailable")
)

// ConflictError says what is in the way; it is an ErrConflict.
type ConflictError struct{ Detail string }

func (e *ConflictError) Error() string { return e.Detail }

// Is makes errors.Is(err, ErrConflict) hold.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// ErrUnknownPlan: a tenant names a plan that does not exist. It is an ErrConflict too.
var ErrUnknownPlan error = &ConflictError{Detail: "the plan does not exist"}

// Page asks for a slice of a list: up to Limit items after Cursor (opaque; empty: from the start).
type Page struct {
	Cursor string
	Limit  int
}

// ErrCursor is a cursor that this list did not give out.
var ErrCursor = errors.New("unknown cursor")

// List is one page; Next is empty on the last one.
type List[T any] struct {
	Items []T
	Next  string
}

// Precondition is what If-Match and If-None-Match asked for.
type Precondition struct {
	// Versions are those of If-Match, any of which may hold. nil: none was asked for; empty: what was asked for no version is.
	Versions []int64
	Absent   bool // If-None-Match: *
	Any      bool // If-Match: *
}

// Holds reports whether an object that exists at this version may be changed.
func (p Precondition) Holds(version int64) bool {
	return !p.Absent && (p.Versions == nil || slices.Contains(p.Versions, version))
}

// Exists reports whether there has to be an object.
func (p Precondition) Exists() bool { return p.Any || p.Versions != nil }

// TenantPatch holds what a PATCH names; nil leaves a field as it is.
type TenantPatch struct {
	Name, Plan, ContactEmail *string
	Status                   *Status
	Metadata                 *map[string]string
}

// TenantFilter narrows a list; zero fields match all. Search is a case-insensitive part of slug or name.
type TenantFilter struct {
	Search, Plan string
	Status       Status
}

// PlanFilter narrows a list; Search is a case-insensitive part of name or title.
type PlanFilter struct{ Search string }

// CredentialFilter narrows a list; zero fields match all. Search is a case-insensitive part of the name, or the public id.
type CredentialFilter struct {
	Search string
	Status CredentialStatus
}

// CredentialStatus is where a credential is in its life, by the store's clock.
type CredentialStatus string

// Revoked wins over expired.
const (
	CredentialActive  CredentialStatus = "active"
	CredentialExpired CredentialStatus = "expired"
	CredentialRevoked CredentialStatus = "revoked"
)

// OverrideFilter narrows a list; Search is a case-insensitive part of the limit's name or the reason.
type OverrideFilter struct{ Search string }

// NetworkFilter narrows a list; zero fields match all. Search is a case-insensitive part of the reason; Holds finds the entries
// whose range holds an address.
type NetworkFilter struct {
	Action NetworkAction
	Search string
	Holds  netip.Addr
}

// Repository stores the configuration. Every changing method takes an actor, validates nothing (callers have), writes
// its audit entry and bumps the configuration version in one transaction, and answers within 2 s or with ErrUnavailable.
type Repository interface {
	ExceptionRepository
	ConfigurationRepository

	ListPlans(ctx context.Context, f PlanFilter, p Page) (List[Plan], error)
	Plan(ctx context.Context, name string) (Plan, error)
	CreatePlan(ctx context.Context, a audit.Actor, p Plan) (Plan, error)
	// PutPlan replaces the plan or creates an absent one (created is then true).
	PutPlan(ctx context.Context, a audit.Actor, p Plan, pre Precondition) (plan Plan, created bool, err error)
	DeletePlan(ctx context.Context, a audit.Actor, name string, pre Precondition) error

	ListTenants(ctx context.Context, f TenantFilter, p Page) (List[Tenant], error)
	Tenant(ctx context.Context, slug string) (Tenant, error)
	CreateTenant(ctx context.Context, a audit.Actor, t Tenant) (Tenant, error)
	PatchTenant(ctx context.Context, a audit.Actor, slug string, patch TenantPatch, pre Precondition) (Tenant, error)
	DeleteTenant(ctx context.Context, a audit.Actor, slug string, pre Precondition) error
	ResetTenant(ctx context.Context, a audit.Actor, slug string) (Tenant, error)

	ListKeys(ctx context.Context, tenant string, f CredentialFilter, p Page) (List[APIKey], error)
	CreateKey(ctx context.Context, a audit.Actor, tenant string, k APIKey) (APIKey, error)
	// RotateKey stores the successor and lets the old key live until oldExpires.
	RotateKey(ctx context.Context, a audit.Actor, tenant, id string, successor APIKey, oldExpires time.Time) (APIKey, error)
	RevokeKey(ctx context.Context, a audit.Actor, tenant, id string) error

	ListServiceTokens(ctx context.Context, f CredentialFilter, p Page) (List[ServiceToken], error)
	CreateServiceToken(ctx context.Context, a audit.Actor, t ServiceToken) (ServiceToken, error)
	RotateServiceToken(ctx context.Context, a audit.Actor, id string, successor ServiceToken, oldExpires time.Time) (ServiceToken, error)
	RevokeServiceToken(ctx context.Context, a audit.Actor, id string) error

	ListAdminTokens(ctx context.Context, f CredentialFilter, p Page) (List[AdminToken], error)
	CreateAdminToken(ctx context.Context, a audit.Actor, t AdminToken) (AdminToken, error)
	RevokeAdminToken(ctx context.Context, a audit.Actor, id string) error

	AddressPolicy(ctx context.Context) (AddressPolicy, error)
	PutAddressPolicy(ctx context.Context, a audit.Actor, p AddressPolicy, pre Precondition) (AddressPolicy, error)

	// Mode is the stored mode, or empty when no one has set it.
	Mode(ctx context.Context) (ratelimit.Mode, error)
	SetMode(ctx context.Context, a audit.Actor, m ratelimit.Mode) error

	ListAudit(ctx context.Context, f audit.Filter, p Page) (List[audit.Entry], error)
	// RecordRefusals writes entries about attempts that changed nothing; they raise no version.
	RecordRefusals(ctx context.Context, entries []audit.Entry) error

	// Idempotent runs change once per key: the first call stores its status and body with the request's hash, a repeat
	// with the same hash gets them back, one with another hash gets ErrConflict. Rows live 24 h.
	Idempotent(ctx context.Context, key string, requestHash [32]byte, change func(ctx context.Context) (status int, body []byte, err error)) (status int, body []byte, replayed bool, err error)
}

// ExceptionRepository stores the exceptions to plans and the network lists, on the terms of Repository.
type ExceptionRepository interface {
	// ListOverrides lists a tenant's overrides by limit name, expired ones included.
	ListOverrides(ctx context.Context, tenant string, f OverrideFilter, p Page) (List[Override], error)
	// PutOverride sets the exception to one limit (created: there was none); of o, what only the store knows is not read.
	PutOverride(ctx context.Context, a audit.Actor, tenant string, o Override) (override Override, created bool, err error)
	DeleteOverride(ctx context.Context, a audit.Actor, tenant, limit string) error

	ListNetworks(ctx context.Context, f NetworkFilter, p Page) (List[Network], error)
	// CreateNetwork adds an entry; the same range with the same action is an ErrConflict.
	CreateNetwork(ctx context.Context, a audit.Actor, n Network) (Network, error)
	DeleteNetwork(ctx context.Context, a audit.Actor, id int64) error
}

// Loader gives the Directory what changed.
type Loader interface {
	// Version is the current configuration version.
	Version(ctx context.Context) (int64, error)
	// Load reads everything that changed after since (0: everything), in one consistent snapshot.
	Load(ctx context.Context, since int64) (Changes, error)
}

// Changes is what a Loader found. Deleted lists the ids that are gone. Full means the lists are complete and replace all.
type Changes struct {
	Version int64
	// Installation is the database's own id.
	Installation  string
	Full          bool
	Plans         []Plan
	Tenants       []Tenant
	Overrides     []Override
	APIKeys       []APIKey
	ServiceTokens []ServiceToken
	AdminTokens   []AdminToken
	Networks      []Network
	AddressPolicy *AddressPolicy // nil: unchanged
	Mode          *ratelimit.Mode
	// Broken names rows that could not be read; their owners get safe defaults.
	Broken []BrokenRow
	// Deleted ids, by kind.
	DeletedPlans, DeletedTenants []int64
	DeletedOverrides             []Override // tenant and limit name only
	DeletedNetworks              []int64
}

// BrokenRow is a row that validation refused, with the reason.
type BrokenRow struct {
	Table, ID string
	Err       error
}
