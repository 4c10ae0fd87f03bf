package httpapi

import (
	"net/http"
	"net/url"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// ListOverrides is GET /admin/tenants/{tenant}/overrides.
func (a *admin) ListOverrides(c *gin.Context, slug gen.TenantSlug, params gen.ListOverridesParams) {
	filter := tenants.OverrideFilter{Search: orZero(params.Search)}
	page, err := a.repository.ListOverrides(c.Request.Context(), slug, filter, pageOf(params.Limit, params.Cursor))
	limited := a.limitNames(slug)
	list(a, c, page, err, func(o *tenants.Override) gen.Override { return showOverride(o, limited, a.now()) })
}

// PutOverride is PUT /admin/tenants/{tenant}/overrides/{limit}.
func (a *admin) PutOverride(c *gin.Context, slug gen.TenantSlug, limit gen.OverriddenLimit) {
	var in gen.OverridePut
	err := decodeBody(c, &in)
	override := tenants.Override{LimitName: limit, Quota: in.Limit, Reason: in.Reason, ExpiresAt: readEnd(in.ExpiresAt)}
	if err == nil {
		err = invalidConfig(append(tenants.ValidateOverride(&override, a.now()), tenants.ValidateReason(in.Reason)...))
	}
	if err != nil {
		a.fail(c, err)
		return
	}
	stored, created, err := a.repository.PutOverride(c.Request.Context(), actor(c), slug, override)
	done := outcome{status: http.StatusOK, body: showOverride(&stored, a.limitNames(slug), a.now())}
	if created {
		done.status, done.location = http.StatusCreated, tenantPath(slug)+"/overrides/"+url.PathEscape(limit)
	}
	a.finish(c, &done, err)
}

// DeleteOverride is DELETE /admin/tenants/{tenant}/overrides/{limit}.
func (a *admin) DeleteOverride(c *gin.Context, slug gen.TenantSlug, limit gen.OverriddenLimit) {
	a.deleted(c, a.repository.DeleteOverride(c.Request.Context(), actor(c), slug, limit))
}

// limitNames are the limits that a tenant's plan has, as this replica knows it.
func (a *admin) limitNames(slug string) map[string]bool {
	names := make(map[string]bool)
	if t, ok := a.directory.Snapshot().Tenant(slug); ok {
		for i := range t.Limits {
			names[t.Limits[i].Rule.Name] = true
		}
	}
	return names
}

func showOverride(o *tenants.Override, limited map[string]bool, now time.Time) gen.Override {
	return gen.Override{
		Id: o.LimitName, LimitName: o.LimitName, Limit: o.Quota, Reason: o.Reason,
		InForce:   limited[o.LimitName] && o.HoldsAt(now),
		ExpiresAt: timeOrNull(o.ExpiresAt), UpdatedAt: o.UpdatedAt.UTC(), LastUsedAt: timeOrNull(o.LastUsedAt),
	}
}
