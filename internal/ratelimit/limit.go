package ratelimit

import (
	"fmt"
	"time"
)

// Algorithm is how a limit counts. Adding one means: a file of pure functions here, a function in redisstore's Lua, a
// mapping in pgstore, a row in storetest, the enum in api/openapi.yaml and the CHECK in migrations.
type Algorithm string

// The five algorithms, by their name in the API.
const (
	SlidingWindowLog     Algorithm = "sliding_window_log"
	SlidingWindowCounter Algorithm = "sliding_window_counter"
	FixedWindow          Algorithm = "fixed_window"
	TokenBucket          Algorithm = "token_bucket"
	LeakyBucket          Algorithm = "leaky_bucket"
)

// SlidingWindowSegments is never configured: it is the EffectiveAlgorithm of a limit that Postgres decided with rows of
// one eighth of the window (at most that much stricter than the exact log, never looser).
const SlidingWindowSegments Algorithm = "sliding_window_segments"

// Bucket reports whether the algorithm is set by a refill rate instead of a window.
func (a Algorithm) Bucket() bool { return a == TokenBucket || a == LeakyBucket }

// Scope says whose hits share a counter.
type Scope string

// The scopes. ScopeAddress belongs to the address policy, the others to plans.
const (
	ScopeTenant  Scope = "tenant"
	ScopeUser    Scope = "user"
	ScopeKey     Scope = "key"
	ScopeAddress Scope = "address"
)

// FailureMode says what happens to a limit when no store can decide.
type FailureMode string

// The failure modes.
const (
	FailOpen   FailureMode = "open"   // allow, source none
	FailClosed FailureMode = "closed" // refuse to decide: 503
	FailLocal  FailureMode = "local"  // count in this replica's memory; bound: replicas × quota
)

// Mode says whether a limit acts or only watches.
type Mode string

// The modes, of one limit and of the whole service.
const (
	Enforce Mode = "enforce"
	Shadow  Mode = "shadow"
)

// Bounds of every limit; tenants validates against them before anything is stored.
const (
	MaxQuota  = int64(1_000_000_000_000)
	MaxCost   = int64(1_000_000)
	MinWindow = time.Second
	MaxWindow = 366 * 24 * time.Hour
)

// Rate is a refill or outflow: Units every Every. Both are positive on a bucket and zero elsewhere.
type Rate struct {
	Units int64
	Every time.Duration
}

// Slowdown delays admitted hits from a utilisation on: delay = MaxDelay × (utilisation − From) ÷ (1 − From), with the
// utilisation after the hit.
type Slowdown struct {
	From     float64 // [0, 1)
	MaxDelay time.Duration
}

// Delay is the added delay at a utilisation in [0, 1]; 0 at or below From and on a nil receiver.
func (s *Slowdown) Delay(utilisation float64) time.Duration {
	if s == nil || utilisation <= s.From {
		return 0
	}
	return time.Duration(float64(s.MaxDelay) * min(1, (utilisation-s.From)/(1-s.From)))
}

// Limit is one rule of a plan or of the address policy. It is immutable once it is part of a snapshot.
type Limit struct {
	Name      string
	Scope     Scope
	Algorithm Algorithm
	// Quota is units per window, or a bucket's capacity: 0…MaxQuota; 0 always refuses.
	Quota int64
	// Window is MinWindow…MaxWindow; on a bucket 0 (see Span).
	Window time.Duration
	Refill Rate
	// Cost multiplies each hit's cost; at least 1.
	Cost           int64
	Slowdown       *Slowdown
	OnStoreFailure FailureMode
	Mode           Mode
}

// Span is the window, or for a bucket the time an empty one takes to be whole again: Quota ÷ Refill, rounded up to a
// microsecond and at most MaxSpan.
func (l *Limit) Span() time.Duration {
	if !l.Algorithm.Bucket() {
		return l.Window
	}
	if l.Refill.Units <= 0 {
		return 0
	}
	us := float64(l.Quota) * float64(l.Refill.Every.Microseconds()) / float64(l.Refill.Units)
	if us >= float64(MaxSpan.Microseconds()) {
		return MaxSpan
	}
	d := time.Duration(us) * time.Microsecond
	if float64(d.Microseconds()) < us {
		d += time.Microsecond
	}
	return d
}

// MaxSpan bounds how long a bucket may take to refill; validation refuses slower ones.
const MaxSpan = 10 * MaxWindow

// UnitsPerHit is what one hit of the given cost takes from this limit: at most MaxQuota + 1, which fits no quota and
// overflows nothing.
func (l *Limit) UnitsPerHit(cost int64) int64 {
	if cost <= 0 {
		return 0
	}
	factor := max(1, l.Cost)
	if factor > (MaxQuota+1)/cost {
		return MaxQuota + 1
	}
	return cost * factor
}

// String names the limit with its numbers, as operators read it.
func (l *Limit) String() string {
	if l.Algorithm.Bucket() {
		return fmt.Sprintf("%s (%s %d, %d per %s)", l.Name, l.Algorithm, l.Quota, l.Refill.Units, l.Refill.Every)
	}
	return fmt.Sprintf("%s (%s %d per %s)", l.Name, l.Algorithm, l.Quota, l.Window)
}
