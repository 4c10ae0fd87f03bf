package decision

import (
	"net/netip"
	"strings"
	"time"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// TokenVerifier verifies the tokens that the application behind us gives its users (internal/jwt). Either name may be empty. It
// must not block; from is whom a wrong signature is counted against.
type TokenVerifier interface {
	Verify(token string, from netip.Prefix, now time.Time) (tenant, user string, ok bool)
}

// session is what a verified token of the application says.
type session struct{ tenant, user string }

// session reads the request's token: the one Bearer value of its one Authorization line. A token that does not verify is none of
// ours, and so is one whose names could name nobody.
func (e *Engine) session(c *Credentials, from netip.Prefix, now time.Time) (s session, ok bool) {
	if e.tokens == nil || len(c.Authorization) != 1 {
		return session{}, false
	}
	scheme, token, _ := strings.Cut(strings.TrimSpace(c.Authorization[0]), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" || IsOurs(token) {
		return session{}, false
	}
	s.tenant, s.user, ok = e.tokens.Verify(token, from, now)
	if !ok || s.user != "" && !tenants.ValidIdentifier(s.user) {
		return session{}, false
	}
	return s, true
}

// applySession names tenant and user by a session, as far as nobody who proves more has named them. A tenant that we do not know
// is not ours to refuse: the application knows its own users.
func (c *Caller) applySession(s session, snapshot *tenants.Snapshot) {
	if c.Tenant == nil && s.tenant != "" {
		if found, ok := snapshot.Tenant(s.tenant); ok {
			c.Tenant, c.Vouched, c.Session = found, true, true
		}
	}
	if c.Tenant != nil && c.User == "" && (s.tenant == "" || s.tenant == c.Tenant.Slug) {
		c.User = s.user
	}
}
