package decision

import (
	"errors"
	"time"
)

// Door is the front door that a hit came through.
type Door string

// The doors. A hit whose front door did not say has none.
const (
	DoorCheck Door = "check" // /v1, but for ping
	DoorPing  Door = "ping"  // GET /v1/ping
	DoorAuthz Door = "authz" // forward-auth
	DoorProxy Door = "proxy" // the reverse proxy
	DoorEnvoy Door = "envoy" // Envoy's rate-limit gRPC
	DoorAdmin Door = "admin" // failed sign-ins of administrators
)

// Observation is one finished decision: what was asked and what was answered. Nothing it points to changes any more, so it
// may be kept.
type Observation struct {
	At  time.Time
	Hit *Hit
	// Decision is nil when the hit was refused before any limit was asked: then Err says why.
	Decision *Decision
	// Err is ErrSuspended, ErrNetworkDenied or wraps ErrClosed; nil with a Decision.
	Err error
}

// Observer is told once of every finished decision, peeks included (Hit.Consumes tells). A request that waits in vain for
// its delay is told of a second time, as the refusal that became of it (Decision.Held). Not told are status, refunds and hits
// whose caller has left. Observe is on the hot path: it must not block, and it changes nothing.
type Observer interface {
	Observe(o Observation)
}

// Consumes reports whether the hit is more than a look.
func (h *Hit) Consumes() bool { return !h.Peek && h.Cost > 0 }

// observe tells of a decision, or of the refusal that err is.
func (e *Engine) observe(h *Hit, d *Decision, err error, at time.Time) {
	if e.observer == nil || err != nil && !isRefusal(err) {
		return
	}
	e.observer.Observe(Observation{At: at, Hit: h, Decision: d, Err: err})
}

// isRefusal tells answers of ours from a caller that has left.
func isRefusal(err error) bool {
	return errors.Is(err, ErrSuspended) || errors.Is(err, ErrNetworkDenied) || errors.Is(err, ErrClosed)
}
