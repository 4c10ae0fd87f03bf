package httpapi

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// GetAddressPolicy is GET /admin/address-policy.
func (a *admin) GetAddressPolicy(c *gin.Context) {
	policy, err := a.repository.AddressPolicy(c.Request.Context())
	a.tagged(c, policy.Version, showPolicy(&policy), err)
}

// PutAddressPolicy is PUT /admin/address-policy.
func (a *admin) PutAddressPolicy(c *gin.Context, params gen.PutAddressPolicyParams) {
	policy, err := readPolicy(c)
	if err != nil {
		a.fail(c, err)
		return
	}
	ctx := c.Request.Context()
	pre, err := mustMatch(ctx, params.IfMatch, func(context.Context) error { return nil }) // it always exists
	if err != nil {
		a.fail(c, err)
		return
	}
	stored, err := a.repository.PutAddressPolicy(ctx, actor(c), policy, pre)
	a.finish(c, &outcome{status: http.StatusOK, version: stored.Version, body: showPolicy(&stored)}, err)
}

// GetMode is GET /admin/mode.
func (a *admin) GetMode(c *gin.Context) {
	mode, err := a.repository.Mode(c.Request.Context())
	if err != nil {
		a.fail(c, err)
		return
	}
	if mode == "" {
		mode = a.mode
	}
	a.writeJSON(c, http.StatusOK, gen.ModeBody{Mode: gen.Mode(mode)})
}

// PutMode is PUT /admin/mode.
func (a *admin) PutMode(c *gin.Context) {
	var in gen.ModeBody
	err := decodeBody(c, &in)
	if err == nil {
		err = a.repository.SetMode(c.Request.Context(), actor(c), ratelimit.Mode(in.Mode))
	}
	a.finish(c, &outcome{status: http.StatusOK, body: in}, err)
}

func readPolicy(c *gin.Context) (tenants.AddressPolicy, error) {
	var in gen.AddressPolicyInput
	if err := decodeBody(c, &in); err != nil {
		return tenants.AddressPolicy{}, err
	}
	var d durations
	policy := tenants.AddressPolicy{Limits: readRules(&d, "/limits", in.Limits)}
	if err := d.err(); err != nil {
		return policy, err
	}
	policy.SetDefaults()
	return policy, invalidConfig(tenants.ValidateAddressPolicy(&policy))
}

func showPolicy(p *tenants.AddressPolicy) gen.AddressPolicy {
	return gen.AddressPolicy{Limits: showRules(p.Limits), Version: p.Version, UpdatedAt: p.UpdatedAt.UTC()}
}
