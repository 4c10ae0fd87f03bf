// Package audit is who changed what: the actor every administrative change must carry, the entry it leaves and the field
// diff inside. It knows nobody; internal/postgres writes entries in the transaction of the change they describe.
package audit

import (
	"encoding/json"
	"errors"
	"time"
)

// ErrNoActor is returned for a change that does not say who made it.
var ErrNoActor = errors.New("audit: a change needs an actor")

// Actor is who made a change.
type Actor struct {
	// Kind is "admin_token", "bootstrap", "cli" or "system".
	Kind string
	// ID is the credential's public id, never its secret.
	ID   string
	Name string
	// Address is the canonical client address, empty for the command line and the system.
	Address   string
	RequestID string
}

// Valid reports whether the actor may stand behind a change.
func (a Actor) Valid() bool { return a.Kind != "" && a.Name != "" }

// Entry is one line of the audit log. It is append-only: a trigger forbids UPDATE and DELETE.
type Entry struct {
	ID         int64
	Time       time.Time
	Actor      Actor
	Action     string // "tenant.create", "plan.update", "service_token.revoke", …
	Resource   string // "tenant", "plan", "api_key", …
	ResourceID string // slug, name or public id
	// Tenant is the slug of the tenant it concerns, also when that is gone; empty: of none. It is found out where entries are
	// written (migrations/000012): what a writer puts here is ignored.
	Tenant string
	Diff   []Change
}

// Change is one field before and after. Secrets never enter it.
type Change struct {
	Field string          `json:"field"`
	From  json.RawMessage `json:"from,omitempty"`
	To    json.RawMessage `json:"to,omitempty"`
}

// Filter selects entries; zero fields match all.
type Filter struct {
	Actor, Action, Resource, ResourceID string
	// Tenant is a slug: entries about the tenant itself, its overrides, its API keys and its incidents.
	Tenant   string
	From, To time.Time
}
