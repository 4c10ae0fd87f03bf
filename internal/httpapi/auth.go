package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"log/slog"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// signIn is an administrator who proved who they are.
type signIn struct {
	actor audit.Actor
	role  tenants.Role
}

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

// authenticate signs an administrator in, from memory alone: a failed attempt costs no query. It is counted against the
// address like any wrong credential.
func (a *admin) authenticate(c *gin.Context) {
	who, ok := a.signIn(c)
	if ok {
		who.actor.Address, who.actor.RequestID = addressText(c), requestID(c)
		of(c).who = who
		return
	}
	ctx := c.Request.Context()
	a.log.LogAttrs(ctx, slog.LevelInfo, "administrator not signed in",
		slog.String("request_id", requestID(c)), slog.String("address", addressText(c)), slog.String("route", c.FullPath()))
	caller := decision.Caller{Address: of(c).address}
	d, err := a.engine.CountWrong(ctx, &caller, c.Request.Method, c.Request.URL.EscapedPath())
	switch {
	case errors.Is(err, decision.ErrNetworkDenied):
		a.fail(c, err)
	case err == nil && d.Verdict == decision.Deny:
		decision.WriteHeaders(c.Writer.Header(), d)
		denied := decision.Denied(d, requestID(c))
		c.Abort()
		problem.Write(c.Writer, denied.Status, denied)
	case a.directory.Snapshot().Version == 0 && len(c.Request.Header["Authorization"]) > 0:
		// Before the first load nobody can tell a good token from a bad one.
		a.fail(c, refuse(problem.StoreUnavailable, "the configuration has not been loaded yet"))
	default: // a store that cannot count must not turn a wrong token into anything but a 401
		a.fail(c, refuse(problem.Unauthorized, "no valid admin token"))
	}
}

// signIn reads the one credential: the bootstrap token, or an admin token of the directory. Several Authorization lines are
// none.
func (a *admin) signIn(c *gin.Context) (signIn, bool) {
	lines := c.Request.Header["Authorization"]
	if len(lines) != 1 {
		return signIn{}, false
	}
	scheme, token, found := strings.Cut(strings.TrimSpace(lines[0]), " ")
	if token = strings.TrimSpace(token); !found || !strings.EqualFold(scheme, "Bearer") {
		return signIn{}, false
	}
	if a.isBootstrap(token) {
		return signIn{actor: audit.Actor{Kind: "bootstrap", Name: "bootstrap"}, role: tenants.Admin}, true
	}
	credential, err := tenants.ParseCredential(token)
	if err != nil {
		return signIn{}, false
	}
	t, ok := a.directory.Snapshot().VerifyAdminToken(credential, a.now())
	if !ok {
		return signIn{}, false
	}
	if a.used != nil {
		a.used(tenants.KindAdminToken, t.ID, a.now())
	}
	return signIn{actor: audit.Actor{Kind: "admin_token", ID: t.ID, Name: t.Name}, role: t.Role}, true
}

// isBootstrap compares hashes, so that neither the length nor the text of the token shows in the time it takes.
func (a *admin) isBootstrap(token string) bool {
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], a.bootstrap[:]) == 1 && a.hasBootstrap
}

// require is the only place where a role is checked; the table in routes.go says which route needs which.
func (a *admin) require(role tenants.Role) gin.HandlerFunc {
	return func(c *gin.Context) {
		who := of(c).who
		if rank(who.role) >= rank(role) {
			return
		}
		a.log.LogAttrs(c.Request.Context(), slog.LevelWarn, "administrator refused",
			slog.String("request_id", requestID(c)), slog.String("actor", who.actor.Name), slog.String("actor_id", who.actor.ID),
			slog.String("role", string(who.role)), slog.String("needs", string(role)), slog.String("route", c.FullPath()),
			slog.String("method", c.Request.Method), slog.String("address", who.actor.Address))
		a.fail(c, refuse(problem.Forbidden, "this needs the role "+string(role)))
	}
}

func actor(c *gin.Context) audit.Actor { return of(c).who.actor }
