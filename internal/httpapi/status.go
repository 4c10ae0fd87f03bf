package httpapi

import (
	"net/http"
	"net/url"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// status is GET /v1/status: what a hit of cost 1 would get. It consumes nothing, and being over is no error of the asker's.
func (p *public) status(c *gin.Context) {
	caller := p.caller(c)
	query, err := readQuery(c)
	switch {
	case err != nil:
		p.fail(c, err)
		return
	case caller.Wrong(), query.Has("tenant") && !identified(&caller), query.Has("address") && !identified(&caller):
		p.unauthorized(c, &caller)
		return
	}
	hit, err := p.statusHit(&caller, query)
	if err != nil {
		p.fail(c, err)
		return
	}
	d, err := p.engine.Status(c.Request.Context(), hit)
	if err != nil {
		p.fail(c, err)
		return
	}
	p.writeAppended(c, http.StatusOK, mediaJSON, decision.Body(d).AppendJSON)
}

func identified(caller *decision.Caller) bool { return caller.APIKey != nil || caller.Service != nil }

// statusHit is whose numbers the caller asks for, within what it may see.
func (p *public) statusHit(caller *decision.Caller, query url.Values) (decision.Hit, error) {
	r, err := statusQuery(query)
	if err != nil {
		return decision.Hit{}, err
	}
	h := decision.Hit{User: r.user, Key: r.key, Cost: 1, Peek: true}
	named := r.tenant != "" || r.address != ""
	switch {
	case caller.BadIdentity:
		return h, decision.ErrBadIdentity
	case caller.UnknownTenant && !named:
		return h, decision.ErrUnknownTenant
	case caller.Service != nil && named:
		return h, p.namedStatus(&h, caller, &r)
	case caller.Tenant != nil:
		return h, ownHit(&h, caller, &r)
	case caller.Service != nil:
		return h, invalid("/query", "must name a tenant or an address")
	}
	own := caller.Hit("", "")
	own.User, own.Key, own.Peek = "", "", true // users and keys belong to a tenant
	return own, nil
}

// namedStatus is what a service token asks for.
func (p *public) namedStatus(h *decision.Hit, caller *decision.Caller, r *checkRequest) error {
	if !caller.May(tenants.MayStatus) {
		return refuse(problem.Forbidden, "this service token may not ask for a status")
	}
	if r.address != "" {
		address, ok := p.engine.AddressPrefix(r.address)
		if !ok {
			return invalid("/query/address", msgAddress)
		}
		h.Address, h.Standing = address, decision.NamedStanding(r.user, r.key)
	}
	if r.tenant != "" {
		tenant, ok := p.directory.Snapshot().Tenant(r.tenant)
		if !ok {
			return refuse(problem.NotFound, "the tenant does not exist")
		}
		h.Tenant = tenant
	}
	return nil
}

// statusQuery reads the parameters by the rules of a check's fields.
func statusQuery(query url.Values) (checkRequest, error) {
	var r checkRequest
	for _, field := range [...]struct {
		name    string
		into    *string
		valid   func(string) bool
		message string
	}{
		{"tenant", &r.tenant, tenants.ValidSlug, msgSlug},
		{"address", &r.address, validAddressText, msgAddress},
		{"user", &r.user, tenants.ValidIdentifier, msgIdentifier},
		{"key", &r.key, tenants.ValidIdentifier, msgIdentifier},
	} {
		if !query.Has(field.name) {
			continue
		}
		if *field.into = query.Get(field.name); !field.valid(*field.into) {
			return r, invalid("/query/"+field.name, field.message)
		}
	}
	return r, nil
}
