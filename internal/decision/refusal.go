package decision

import (
	"context"
	"errors"

	"github.com/pegel-dev/pegel/internal/problem"
)

// Admit is the whole way of a request that a client sends for itself (ping, forward-auth, the proxy): who is asking was
// settled by Identify; a wrong API key is counted and refused, an identity that cannot be believed is refused, anything
// else is decided. Errors come without a decision; ProblemOf maps them.
func (e *Engine) Admit(ctx context.Context, caller *Caller, method, path string) (*Decision, error) {
	switch {
	case caller.WrongAPIKey:
		return nil, e.Unauthorized(ctx, caller, method, path)
	case caller.BadIdentity:
		return nil, ErrBadIdentity
	case caller.UnknownTenant:
		return nil, ErrUnknownTenant
	}
	return e.Decide(ctx, caller.Hit(method, path))
}

// Unauthorized counts a wrong credential and says what the answer is: ErrUnauthorized also when the address has no room
// left or nobody can count, so that a wrong credential always looks the same; ErrNetworkDenied; the caller's own cancellation.
func (e *Engine) Unauthorized(ctx context.Context, caller *Caller, method, path string) error {
	switch _, err := e.CountWrong(ctx, caller, method, path); {
	case errors.Is(err, ErrNetworkDenied):
		return err
	case err != nil && ctx.Err() != nil && !errors.Is(err, ErrClosed):
		return err
	}
	return ErrUnauthorized
}

// CountWrong charges a wrong credential to the address it came from; the decision says whether the address had room.
// A caller whose valid service token exempts it is not charged: its own address carries many tenants' mistakes.
func (e *Engine) CountWrong(ctx context.Context, caller *Caller, method, path string) (*Decision, error) {
	hit := caller.Hit(method, path)
	hit.Tenant, hit.User, hit.Key, hit.WrongCredential, hit.Unauthorized = nil, "", "", true, true
	return e.Decide(ctx, hit)
}

// ProblemOf is the one mapping of Decide's and Admit's errors to problems. ok is false for any other error, the caller's
// own cancellation included.
func ProblemOf(err error) (slug problem.Slug, detail string, ok bool) {
	switch {
	case errors.Is(err, ErrClosed):
		return problem.StoreUnavailable, "no store can decide now and a limit that holds here is closed without one", true
	case errors.Is(err, ErrNotRefunded):
		return problem.StoreUnavailable, "no store can take the refund now", true
	case errors.Is(err, ErrSuspended):
		return problem.TenantSuspended, "the tenant is suspended", true
	case errors.Is(err, ErrNetworkDenied):
		return problem.NetworkDenied, "the network of this address is denied", true
	case errors.Is(err, ErrUnauthorized):
		return problem.Unauthorized, "no valid credential", true
	case errors.Is(err, ErrUnknownTenant):
		return problem.NotFound, "the tenant does not exist", true
	case errors.Is(err, ErrBadIdentity):
		return problem.Validation, "an identity header came more than once or holds no valid identifier", true
	}
	return "", "", false
}

// RetryAfterClosed is the Retry-After of a 503 for ErrClosed, in seconds: about when the breakers have probed again.
const RetryAfterClosed = 2
