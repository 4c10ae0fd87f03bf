package httpapi

import (
	"context"
	"errors"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// ListTenants is GET /admin/tenants.
func (a *admin) ListTenants(c *gin.Context, params gen.ListTenantsParams) {
	filter := tenants.TenantFilter{Search: orZero(params.Search), Plan: orZero(params.Plan), Status: tenants.Status(orZero(params.Status))}
	page, err := a.repository.ListTenants(c.Request.Context(), filter, pageOf(params.Limit, params.Cursor))
	list(a, c, page, err, showTenant)
}

// CreateTenant is POST /admin/tenants.
func (a *admin) CreateTenant(c *gin.Context, params gen.CreateTenantParams) {
	tenant, err := readTenant(c)
	if err != nil {
		a.fail(c, err)
		return
	}
	a.post(c, params.IdempotencyKey, func(ctx context.Context) (outcome, error) {
		stored, err := a.repository.CreateTenant(ctx, actor(c), tenant)
		return outcome{
			status: http.StatusCreated, location: tenantPath(stored.Slug), version: stored.Version, body: showTenant(&stored),
		}, planKnown(err)
	})
}

// GetTenant is GET /admin/tenants/{tenant}.
func (a *admin) GetTenant(c *gin.Context, slug gen.TenantSlug) {
	tenant, err := a.repository.Tenant(c.Request.Context(), slug)
	a.tagged(c, tenant.Version, showTenant(&tenant), err)
}

// PatchTenant is PATCH /admin/tenants/{tenant}.
func (a *admin) PatchTenant(c *gin.Context, slug gen.TenantSlug, params gen.PatchTenantParams) {
	ctx := c.Request.Context()
	patch, err := readTenantPatch(c)
	if err != nil {
		a.fail(c, err)
		return
	}
	pre, err := a.matchTenant(ctx, params.IfMatch, slug)
	if err != nil {
		a.fail(c, err)
		return
	}
	before, err := a.planLeft(ctx, slug, patch.Plan)
	if err != nil {
		a.fail(c, err)
		return
	}
	stored, err := a.repository.PatchTenant(ctx, actor(c), slug, patch, pre)
	if err == nil && before != nil {
		if after, err := a.planBefore(ctx, stored.Plan); err == nil { // it is saved: an answer without the header is right, too
			tellNewCounters(c, before, after)
		}
	}
	a.finish(c, &outcome{status: http.StatusOK, version: stored.Version, body: showTenant(&stored)}, planKnown(err))
}

// DeleteTenant is DELETE /admin/tenants/{tenant}.
func (a *admin) DeleteTenant(c *gin.Context, slug gen.TenantSlug, params gen.DeleteTenantParams) {
	ctx := c.Request.Context()
	pre, err := a.matchTenant(ctx, params.IfMatch, slug)
	if err == nil {
		err = a.repository.DeleteTenant(ctx, actor(c), slug, pre)
	}
	a.deleted(c, err)
}

// ResetTenant is POST /admin/tenants/{tenant}/reset.
func (a *admin) ResetTenant(c *gin.Context, slug gen.TenantSlug, params gen.ResetTenantParams) {
	a.post(c, params.IdempotencyKey, func(ctx context.Context) (outcome, error) {
		stored, err := a.repository.ResetTenant(ctx, actor(c), slug)
		return outcome{status: http.StatusOK, version: stored.Version, body: showTenant(&stored)}, err
	})
}

func (a *admin) matchTenant(ctx context.Context, header *string, slug string) (tenants.Precondition, error) {
	return mustMatch(ctx, header, func(ctx context.Context) error {
		_, err := a.repository.Tenant(ctx, slug)
		return err
	})
}

// planKnown makes a plan that does not exist the mistake of the field that names it.
func planKnown(err error) error {
	if errors.Is(err, tenants.ErrUnknownPlan) {
		return invalid("/plan", "must name a plan that exists")
	}
	return err
}

func tenantPath(slug string) string { return "/admin/tenants/" + slug }

func readTenant(c *gin.Context) (tenants.Tenant, error) {
	var in gen.TenantCreate
	if err := decodeBody(c, &in); err != nil {
		return tenants.Tenant{}, err
	}
	t := tenants.Tenant{
		Slug: in.Slug, Name: in.Name, Plan: in.Plan, Status: tenants.Status(orZero(in.Status)),
		ContactEmail: orZero(in.ContactEmail), Metadata: orZero(in.Metadata),
	}
	t.SetDefaults()
	return t, invalidConfig(tenants.ValidateTenant(&t))
}

func readTenantPatch(c *gin.Context) (tenants.TenantPatch, error) {
	var in gen.TenantPatch
	if err := decodeBody(c, &in); err != nil {
		return tenants.TenantPatch{}, err
	}
	p := tenants.TenantPatch{Plan: in.Plan, ContactEmail: in.ContactEmail}
	if in.Name != nil {
		p.Name = pointer(tenants.TidyName(*in.Name))
	}
	if in.Status != nil {
		p.Status = pointer(tenants.Status(*in.Status))
	}
	if in.Metadata != nil {
		p.Metadata = pointer(map[string]string(*in.Metadata))
	}
	return p, invalidConfig(tenants.ValidateTenantPatch(&p))
}

func showTenant(t *tenants.Tenant) gen.Tenant {
	metadata := t.Metadata
	if metadata == nil {
		metadata = map[string]string{}
	}
	return gen.Tenant{
		Id: t.ID, Slug: t.Slug, Name: t.Name, Plan: t.Plan, Status: gen.TenantStatus(t.Status), ContactEmail: t.ContactEmail,
		Metadata: metadata, Version: t.Version, CreatedAt: t.CreatedAt.UTC(), UpdatedAt: t.UpdatedAt.UTC(),
	}
}
