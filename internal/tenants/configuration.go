package tenants

import (
	"context"
	"time"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// Bounds of one configuration that is applied as a whole. An installation may have more; it is then described in parts.
const (
	MaxConfiguredPlans     = 1_000
	MaxConfiguredTenants   = 20_000
	MaxConfiguredNetworks  = 20_000
	MaxConfiguredOverrides = 100 // of one tenant
)

// Configuration is what an operator may keep in a file: everything but credentials. A section that is nil is not described
// and stays as it is; an empty list says that there is none.
type Configuration struct {
	// Version is the configuration version it was read at; 0 in one that is to be applied.
	Version int64
	// Mode is empty when nobody has stored one, or when the file leaves it alone.
	Mode          ratelimit.Mode
	AddressPolicy *AddressPolicy
	Plans         []Plan
	Tenants       []ConfiguredTenant
	Networks      []Network
	// Broken names rows that could not be read; safe defaults stand in for them.
	Broken []BrokenRow
}

// ConfiguredTenant is a tenant with its exceptions.
type ConfiguredTenant struct {
	Tenant
	Overrides []Override
}

// ApplyOptions say how a configuration is applied.
type ApplyOptions struct {
	// DryRun does everything and undoes it: the answer is what applying would do.
	DryRun bool
	// Prune deletes what the described sections do not name.
	Prune bool
	// If is about the configuration's version; one that does not hold is an ErrVersion.
	If Precondition
	// Now decides which overrides and networks have ended.
	Now time.Time
}

// Applied is what applying a configuration did, or would do.
type Applied struct {
	// Version is the configuration version after it; the one before when nothing changed, and in a dry run.
	Version int64
	Changes []AppliedChange
	// Warnings are what the operator should know, one sentence each.
	Warnings []string
}

// AppliedChange is one object that was created, updated or deleted.
type AppliedChange struct {
	// Action is create, update or delete.
	Action string
	// Resource is plan, tenant, override, address_policy, network or mode; Name is how an operator calls the object.
	Resource, Name string
	// Diff is what the audit log has of it.
	Diff []audit.Change
}

// ConfigurationRepository reads and replaces the configuration as a whole, on the terms of Repository but for the time it may
// take: up to 30 s for the largest.
type ConfigurationRepository interface {
	// Configuration reads everything, in one consistent snapshot.
	Configuration(ctx context.Context) (Configuration, error)
	// ApplyConfiguration brings the described sections to what c says, in one transaction and under one configuration version, with
	// an audit entry per object that changes. Where nothing changes, nothing is written.
	ApplyConfiguration(ctx context.Context, a audit.Actor, c Configuration, o ApplyOptions) (Applied, error)
}

// InvalidError is input whose faults only the stored configuration shows.
type InvalidError struct{ Findings []FieldError }

func (e *InvalidError) Error() string { return "the configuration is not valid" }
