// Package signin says who an administrator is, for every door of the administration: the bootstrap token, or an admin token
// of the Directory. It answers from memory, so a failed attempt costs no query, and it is safe for concurrent use. While
// Postgres is away it knows what the Directory knew last.
package signin

import (
	"crypto/sha256"
	"crypto/subtle"
	"time"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// Administrator is somebody who proved who they are.
type Administrator struct {
	// Actor is who the audit log names; address and request id are the door's to add.
	Actor audit.Actor
	Role  tenants.Role
}

// May reports whether the administrator has at least a role.
func (a *Administrator) May(role tenants.Role) bool { return rank(a.Role) >= rank(role) }

// rank orders the roles; each includes the ones below. An unknown role has none.
func rank(r tenants.Role) int {
	switch r {
	case tenants.Viewer:
		return 1
	case tenants.Operator:
		return 2
	case tenants.Admin:
		return 3
	}
	return 0
}

// KindBootstrap is the actor of PEGEL_ADMIN_TOKEN, which has no public id.
const KindBootstrap = "bootstrap"

// Verifier checks admin tokens.
type Verifier struct {
	directory *tenants.Directory
	now       func() time.Time
	used      func(kind tenants.Kind, id string, at time.Time)

	bootstrap    [sha256.Size]byte
	hasBootstrap bool
}

// Config is what a Verifier needs.
type Config struct {
	Directory *tenants.Directory
	// Now is this replica's clock.
	Now func() time.Time
	// Bootstrap is PEGEL_ADMIN_TOKEN; empty: there is none.
	Bootstrap string
	// Used is told of every admin token that signs in (tenants.LastUsed.Note); nil: nobody is.
	Used func(kind tenants.Kind, id string, at time.Time)
}

// New makes a Verifier.
func New(cfg Config) *Verifier {
	return &Verifier{
		directory: cfg.Directory, now: cfg.Now, used: cfg.Used,
		hasBootstrap: cfg.Bootstrap != "", bootstrap: sha256.Sum256([]byte(cfg.Bootstrap)),
	}
}

// Verify is the administrator a token proves, and when the token expires (zero: never). Malformed, unknown, wrong, expired
// and revoked are one answer.
func (v *Verifier) Verify(token string) (who Administrator, expires time.Time, ok bool) {
	if v.isBootstrap(token) {
		return Administrator{Actor: audit.Actor{Kind: KindBootstrap, Name: "bootstrap"}, Role: tenants.Admin}, time.Time{}, true
	}
	credential, err := tenants.ParseCredential(token)
	if err != nil {
		return Administrator{}, time.Time{}, false
	}
	now := v.now()
	t, ok := v.directory.Snapshot().VerifyAdminToken(credential, now)
	if !ok {
		return Administrator{}, time.Time{}, false
	}
	if v.used != nil {
		v.used(tenants.KindAdminToken, t.ID, now)
	}
	return Administrator{Actor: audit.Actor{Kind: "admin_token", ID: t.ID, Name: t.Name}, Role: t.Role}, t.ExpiresAt, true
}

// Refused says why Verify refused a token, for the audit log and nobody else, and the public id when there is such a token.
func (v *Verifier) Refused(token string) (id, cause string) {
	if token == "" {
		return "", "no credential"
	}
	credential, err := tenants.ParseCredential(token)
	switch {
	case err != nil:
		return "", "malformed token"
	case credential.Kind != tenants.KindAdminToken:
		return "", "not an admin token"
	}
	snapshot := v.directory.Snapshot()
	t, known := snapshot.AdminToken(credential.ID)
	switch {
	case !known:
		return "", "unknown token"
	case subtle.ConstantTimeCompare(t.Hash[:], credential.Hash[:]) != 1:
		return t.ID, "wrong secret"
	case !t.RevokedAt.IsZero():
		return t.ID, "revoked token"
	case t.AliveAt(v.now()) && !snapshot.TokensTrusted(v.now()):
		return t.ID, "token that Postgres has not confirmed for too long"
	}
	return t.ID, "expired token"
}

// Hash is the stored hash of the secret of an actor's token, on every replica the same; ok is false for a token that is not
// known. It says nothing about whether the token may still be used.
func (v *Verifier) Hash(kind, id string) (hash [sha256.Size]byte, ok bool) {
	if kind == KindBootstrap {
		return v.bootstrap, v.hasBootstrap
	}
	t, ok := v.directory.Snapshot().AdminToken(id)
	if !ok {
		return hash, false
	}
	return t.Hash, true
}

// Loaded reports whether there is a configuration at all: before the first load nobody can tell a good token from a bad one.
func (v *Verifier) Loaded() bool { return v.directory.Snapshot().Version != 0 }

// isBootstrap compares hashes, so that neither the length nor the text of the token shows in the time it takes.
func (v *Verifier) isBootstrap(token string) bool {
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], v.bootstrap[:]) == 1 && v.hasBootstrap
}
