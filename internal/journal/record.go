package journal

import (
	"time"

	"github.com/google/uuid"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// Reason is why a hit was refused, in the words of the problem that its client got; empty when it was not refused.
type Reason string

// The reasons.
const (
	RateLimitExceeded Reason = "rate-limit-exceeded"
	CostExceedsLimit  Reason = "cost-exceeds-limit"
	TooManyHeld       Reason = "too-many-held"
	Unauthorized      Reason = "unauthorized"
	TenantSuspended   Reason = "tenant-suspended"
	NetworkDenied     Reason = "network-denied"
	StoreUnavailable  Reason = "store-unavailable"
)

// Facts are what is kept of a hit. No credential is among them: keys are public ids or names that clients gave.
type Facts struct {
	// Verdict is what was decided. Shadow: it was not enforced, and the hit went through.
	Verdict decision.Verdict `json:"verdict"`
	Shadow  bool             `json:"shadow,omitempty"`
	Reason  Reason           `json:"reason,omitempty"`

	Tenant  string `json:"tenant,omitempty"` // slug; empty: only an address paid
	Plan    string `json:"plan,omitempty"`
	User    string `json:"user,omitempty"`
	Key     string `json:"key,omitempty"`
	Address string `json:"address,omitempty"` // the group it was counted in, such as 203.0.113.7/32
	Service string `json:"service,omitempty"` // name of the service token

	Method string        `json:"method,omitempty"`
	Path   string        `json:"path,omitempty"` // canonical, without query, at most maxPath bytes; not in explanations
	Door   decision.Door `json:"door,omitempty"`

	// LimitName, Used and Quota are the tightest limit's, in units; LimitName is empty when no limit applied or nobody decided.
	LimitName string           `json:"limit_name,omitempty"`
	Used      int64            `json:"used,omitempty"`
	Quota     int64            `json:"quota,omitempty"`
	Cost      int64            `json:"cost"`
	Delay     time.Duration    `json:"delay,omitempty"` // whole milliseconds
	Source    ratelimit.Source `json:"source,omitempty"`
	Replica   string           `json:"replica"`
}

// Request is one row of the request log.
type Request struct {
	// ID is a UUIDv7 of the row's own: rows sort by it as they happened.
	ID uuid.UUID
	At time.Time
	// DecisionID is zero for a refusal that no decision stands behind.
	DecisionID uuid.UUID
	// Count is how many calls that do not differ the row stands for; At is the first one's.
	Count int64
	Facts
}

// Explanation is why a decision fell as it did.
type Explanation struct {
	ID uuid.UUID `json:"-"`
	At time.Time `json:"-"`
	// Count is how many hits had this very answer, LastAt when the last one did.
	Count  int64     `json:"-"`
	LastAt time.Time `json:"-"`

	Facts
	// Peek: it was a look, nothing was consumed.
	Peek bool `json:"peek,omitempty"`
	// RetryAfter is what a refused client was told to wait; 0: no waiting helps.
	RetryAfter time.Duration `json:"retry_after,omitempty"`
	// Limits are all that held, in the order of the plan, then of the address policy. After an address's refusal, its own only.
	Limits []LimitLine `json:"limits"`
}

// LimitLine is one limit's part in a decision.
type LimitLine struct {
	Name  string          `json:"name"`
	Scope ratelimit.Scope `json:"scope"`
	// Subject is whose counter it was: `tenant school-17`, `user u42 of school-17`, `address 203.0.113.7/32`.
	Subject   string              `json:"subject"`
	Algorithm ratelimit.Algorithm `json:"algorithm"`
	// Effective is what really decided; empty when nobody did.
	Effective ratelimit.Algorithm `json:"effective,omitempty"`
	// Methods and Pattern are what of the limit's match held; empty: it holds for all.
	Methods []string `json:"methods,omitempty"`
	Pattern string   `json:"pattern,omitempty"`
	// Quota is what held; PlanQuota is the plan's, which differs under an override.
	Quota     int64         `json:"quota"`
	PlanQuota int64         `json:"plan_quota"`
	Window    time.Duration `json:"window"`
	Used      int64         `json:"used"`
	Remaining int64         `json:"remaining"`
	Delay     time.Duration `json:"delay,omitempty"`
	// SlowFrom is the utilisation from which the limit delays; 0: it does not.
	SlowFrom   float64       `json:"slow_from,omitempty"`
	ResetAfter time.Duration `json:"reset_after,omitempty"`
	// RetryAfter is ratelimit.Never for a cost above the quota.
	RetryAfter time.Duration `json:"retry_after,omitempty"`
	// Refused: there was no room. Watches: the limit is in shadow mode and never part of the verdict.
	Refused bool             `json:"refused,omitempty"`
	Watches bool             `json:"watches,omitempty"`
	Source  ratelimit.Source `json:"source"`
	// Override is the exception in force, nil without one.
	Override *OverrideLine `json:"override,omitempty"`
}

// OverrideLine is the exception that set a limit's quota.
type OverrideLine struct {
	Reason    string    `json:"reason"`
	ExpiresAt time.Time `json:"expires_at,omitzero"` // zero: never
}

// Gap is a stretch of time of which a replica dropped something.
type Gap struct {
	Replica   string
	From, To  time.Time
	Requests  int64 // rows of the request log
	Decisions int64 // explanations
}
