package httpapi

import (
	"errors"
	"log/slog"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// authenticate signs an administrator in, from memory alone: a failed attempt costs no query. It is counted against the
// address like any wrong credential.
func (a *admin) authenticate(c *gin.Context) {
	token := bearerToken(c)
	who, _, ok := a.admins.Verify(token)
	if ok {
		who.Actor.Address, who.Actor.RequestID = addressText(c), requestID(c)
		of(c).who = who
		return
	}
	ctx := c.Request.Context()
	a.auditSignIn(c, token)
	a.log.LogAttrs(ctx, slog.LevelInfo, "administrator not signed in",
		slog.String("request_id", requestID(c)), slog.String("address", addressText(c)), slog.String("route", c.FullPath()))
	caller := decision.Caller{Address: of(c).address, Door: decision.DoorAdmin}
	d, err := a.engine.CountWrong(ctx, &caller, c.Request.Method, c.Request.URL.EscapedPath())
	switch {
	case errors.Is(err, decision.ErrNetworkDenied):
		a.fail(c, err)
	case err == nil && d.Verdict == decision.Deny:
		decision.WriteHeaders(c.Writer.Header(), d)
		denied := decision.Denied(d, requestID(c))
		c.Abort()
		problem.Write(c.Writer, denied.Status, denied)
	case !a.admins.Loaded() && len(c.Request.Header["Authorization"]) > 0:
		a.fail(c, refuse(problem.StoreUnavailable, "the configuration has not been loaded yet"))
	default: // a store that cannot count must not turn a wrong token into anything but a 401
		a.fail(c, refuse(problem.Unauthorized, "no valid admin token"))
	}
}

// bearerToken is the one credential, empty for none. Several Authorization lines are none.
func bearerToken(c *gin.Context) string {
	lines := c.Request.Header["Authorization"]
	if len(lines) != 1 {
		return ""
	}
	scheme, token, found := strings.Cut(strings.TrimSpace(lines[0]), " ")
	if !found || !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// require is the only place where a role is checked; the table in routes.go says which route needs which.
func (a *admin) require(role tenants.Role) gin.HandlerFunc {
	return func(c *gin.Context) {
		who := of(c).who
		if who.May(role) {
			return
		}
		a.log.LogAttrs(c.Request.Context(), slog.LevelWarn, "administrator refused",
			slog.String("request_id", requestID(c)), slog.String("actor", who.Actor.Name), slog.String("actor_id", who.Actor.ID),
			slog.String("role", string(who.Role)), slog.String("needs", string(role)), slog.String("route", c.FullPath()),
			slog.String("method", c.Request.Method), slog.String("address", who.Actor.Address))
		a.auditRole(c, role)
		a.fail(c, refuse(problem.Forbidden, "this needs the role "+string(role)))
	}
}

func actor(c *gin.Context) audit.Actor { return of(c).who.Actor }
