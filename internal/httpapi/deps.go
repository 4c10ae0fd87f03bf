package httpapi

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/pegel-dev/pegel/internal/alert"
	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/journal"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/signin"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/usage"
)

// Engine is what the handlers need of *decision.Engine.
type Engine interface {
	Identify(c decision.Credentials, addr netip.Prefix) decision.Caller
	Admit(ctx context.Context, caller *decision.Caller, method, path string) (*decision.Decision, error)
	CountWrong(ctx context.Context, caller *decision.Caller, method, path string) (*decision.Decision, error)
	Unauthorized(ctx context.Context, caller *decision.Caller, method, path string) error
	Decide(ctx context.Context, h decision.Hit) (*decision.Decision, error)
	DecideBatch(ctx context.Context, hits []decision.Hit) []decision.Result
	Refund(ctx context.Context, h decision.Hit) (*decision.Decision, error)
	Status(ctx context.Context, h decision.Hit) (*decision.Decision, error)
	AddressPrefix(text string) (p netip.Prefix, ok bool)
	TooManyHeld(h *decision.Hit, d *decision.Decision) *decision.Decision
}

// AddressResolver finds the client's address (*decision.AddressResolver). peerTrusted: the peer is a trusted proxy.
type AddressResolver interface {
	Resolve(r *http.Request) (prefix netip.Prefix, peerTrusted bool)
}

// Holder holds requests for their delay, within the caps (*decision.Holder).
type Holder interface {
	Wait(ctx context.Context, key string, d time.Duration) error
}

// Readiness is the body of /readyz and whether it is a 200.
type Readiness struct {
	Ready bool `json:"-"`
	// Status is "ok", "degraded", "starting" or "draining".
	Status string `json:"status"`
	// Source is what decides now.
	Source ratelimit.Source `json:"source"`
	// Redis and Postgres are "up", "down" or "unconfigured".
	Redis    string `json:"redis"`
	Postgres string `json:"postgres"`
	// Warnings are what an operator should change although all is well now.
	Warnings []string `json:"warnings,omitempty"`
}

// Health knows how the process and its stores do. It answers at once and asks no store.
type Health interface {
	Readiness() Readiness
}

// Common is what both listeners need.
type Common struct {
	Engine    Engine
	Directory *tenants.Directory
	Addresses AddressResolver
	Health    Health
	// Now is this replica's clock.
	Now func() time.Time
	Log *slog.Logger
}

// PublicConfig is what the public listener needs.
type PublicConfig struct {
	Common

	Holder Holder
	// TrustIdentity is PEGEL_TRUST_IDENTITY_HEADERS: believe X-Pegel-Tenant and X-Pegel-User from trusted proxies.
	TrustIdentity bool
}

// AdminConfig is what the admin listener needs.
type AdminConfig struct {
	Common

	Repository tenants.Repository
	// Journal is what was decided.
	Journal journal.Reader
	// Incidents are what alerts found (*postgres.Repository).
	Incidents alert.Incidents
	Usage     usage.Live
	// History is what tenants used (*postgres.UsageHistory).
	History usage.History
	// SignIn knows the administrators.
	SignIn *signin.Verifier
	// Refused is told of refused attempts, for the audit log ((*audit.Refusals).Note); nil: nobody is.
	Refused func(audit.Refusal)
	// Mode is PEGEL_MODE, which holds until an administrator stores a mode.
	Mode ratelimit.Mode
	// Metrics serves /metrics.
	Metrics http.Handler
	// Pages, when it is set, makes what answers under /dashboard, given this API to ask; / leads there. The id of a request
	// is in the X-Request-Id of its answer.
	Pages func(api http.Handler) (http.Handler, error)
	// Random makes credentials: crypto/rand.Reader.
	Random io.Reader
	// Changed, when it is set, is called after a change so that this replica shows it at once; the others follow by polling.
	// The answer waits for it: it must return within a few hundred milliseconds.
	Changed func(ctx context.Context)
}
