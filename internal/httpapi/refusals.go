package httpapi

import (
	"errors"
	"log/slog"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// What administrators tried in vain is in the audit log beside what they did: a failed sign-in, a role that was not enough
// (both gathered, so that a flood stays a few lines), and a change that met a newer version (one by one: each has cost a transaction anyway).
const (
	actionSignInRefused  = "sign_in.refused"
	actionRequestRefused = "request.refused"
)

// auditSignIn notes a failed sign-in. The token's public id is kept when there is such a token; it proves nothing about who tried.
func (a *admin) auditSignIn(c *gin.Context, token string) {
	if a.refused == nil {
		return
	}
	id, cause := a.admins.Refused(token)
	a.refused(audit.Refusal{
		Actor:  audit.Actor{Kind: "anonymous", ID: id, Name: "anonymous", Address: addressText(c), RequestID: requestID(c)},
		Action: actionSignInRefused, Resource: "administration", Cause: cause,
	})
}

// auditRole notes that an administrator's role was not enough.
func (a *admin) auditRole(c *gin.Context, needs tenants.Role) {
	if a.refused == nil {
		return
	}
	a.refused(refusalOf(c, "needs the role "+string(needs)))
}

// fail answers an error and ends the request; a change that met another version is audited too.
func (a *admin) fail(c *gin.Context, err error) {
	if errors.Is(err, tenants.ErrVersion) && a.repository != nil {
		refusal := refusalOf(c, "the object had changed since it was read")
		entry := refusal.Entry(1, a.now(), a.now())
		ctx := c.Request.Context()
		if err := a.repository.RecordRefusals(ctx, []audit.Entry{entry}); err != nil {
			a.log.LogAttrs(ctx, slog.LevelError, "a refused change could not be written to the audit log",
				slog.String("request_id", requestID(c)), slog.Any("error", err))
		}
	}
	a.surface.fail(c, err)
}

// refusalOf is a refused request of a known administrator.
func refusalOf(c *gin.Context, why string) audit.Refusal {
	resource, id := target(c)
	var tenant string
	if slug := c.Param("tenant"); resource == "api_key" && tenants.ValidSlug(slug) {
		tenant = slug
	}
	return audit.Refusal{
		Actor: actor(c), Action: actionRequestRefused, Resource: resource, ResourceID: id, Tenant: tenant,
		Cause: c.Request.Method + " " + specPath(c.FullPath()) + ": " + why,
	}
}

// resources are the names the audit log has for what the path calls by its segments.
var resources = map[string]string{
	"plans": "plan", "tenants": "tenant", "keys": "api_key", "overrides": "override", "service-tokens": "service_token",
	"admin-tokens": "admin_token", "address-policy": "address_policy", "networks": "network", "mode": "mode",
}

// target is what a route is about, by the names that entries about changes of it have.
func target(c *gin.Context) (resource, id string) {
	const most = 256 // bytes of a path that nobody has validated yet
	for segment := range strings.SplitSeq(strings.TrimPrefix(c.FullPath(), "/admin/"), "/") {
		name, parameter := strings.CutPrefix(segment, ":")
		known, isResource := resources[segment]
		switch {
		case parameter && resource == "override":
			id += "/" + c.Param(name)
		case parameter:
			id = c.Param(name)
		case isResource && known == "override":
			resource = known
		case isResource:
			resource, id = known, ""
		case resource == "":
			resource = strings.ReplaceAll(segment, "-", "_")
		}
	}
	if resource == "address_policy" || resource == "mode" {
		id = strings.ReplaceAll(resource, "_", "-")
	}
	return resource, id[:min(len(id), most)]
}
