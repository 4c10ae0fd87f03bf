package httpapi

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// GetConfiguration is GET /admin/configuration.
func (a *admin) GetConfiguration(c *gin.Context) {
	stored, err := a.repository.Configuration(c.Request.Context())
	a.tagged(c, stored.Version, showConfiguration(&stored), err)
}

// ApplyConfiguration is POST /admin/configuration. It takes no Idempotency-Key: applying twice is applying once.
func (a *admin) ApplyConfiguration(c *gin.Context, params gen.ApplyConfigurationParams) {
	wanted, err := readConfiguration(c)
	if err != nil {
		a.fail(c, err)
		return
	}
	options := tenants.ApplyOptions{DryRun: orZero(params.DryRun), Prune: orZero(params.Prune), Now: a.now()}
	if options.If, _, err = readIfMatch(params.IfMatch); err != nil {
		a.fail(c, err)
		return
	}
	done, err := a.repository.ApplyConfiguration(c.Request.Context(), actor(c), wanted, options)
	if err != nil || options.DryRun {
		a.tagged(c, done.Version, showApplied(&done, options.DryRun), err)
		return
	}
	a.finish(c, &outcome{status: http.StatusOK, version: done.Version, body: showApplied(&done, false)}, nil)
}

// readConfiguration is the configuration in the body, with its defaults and within all bounds.
func readConfiguration(c *gin.Context) (tenants.Configuration, error) {
	var in gen.Configuration
	if err := decodeBody(c, &in); err != nil {
		return tenants.Configuration{}, err
	}
	var d durations
	out := tenants.Configuration{Mode: ratelimit.Mode(orZero(in.Mode))}
	if in.AddressPolicy != nil {
		out.AddressPolicy = &tenants.AddressPolicy{Limits: readRules(&d, "/address_policy/limits", in.AddressPolicy.Limits)}
	}
	if in.Plans != nil {
		out.Plans = make([]tenants.Plan, len(*in.Plans))
		for i := range *in.Plans {
			out.Plans[i] = readPlanInput(&d, "/plans/"+strconv.Itoa(i), &(*in.Plans)[i])
		}
	}
	if in.Tenants != nil {
		out.Tenants = make([]tenants.ConfiguredTenant, len(*in.Tenants))
		for i := range *in.Tenants {
			out.Tenants[i] = readConfiguredTenant(&(*in.Tenants)[i])
		}
	}
	if in.Networks != nil {
		out.Networks = make([]tenants.Network, len(*in.Networks))
		for i, n := range *in.Networks {
			out.Networks[i] = tenants.Network{
				CIDR: readNetwork(n.Cidr), Action: tenants.NetworkAction(n.Action), Reason: orZero(n.Reason), ExpiresAt: readEnd(n.ExpiresAt),
			}
		}
	}
	if err := d.err(); err != nil {
		return out, err
	}
	out.SetDefaults()
	return out, invalidConfig(tenants.ValidateConfiguration(&out))
}

func readConfiguredTenant(in *gen.ConfiguredTenant) tenants.ConfiguredTenant {
	t := tenants.ConfiguredTenant{Tenant: tenants.Tenant{
		Slug: in.Slug, Name: in.Name, Plan: in.Plan, Status: tenants.Status(orZero(in.Status)),
		ContactEmail: orZero(in.ContactEmail), Metadata: orZero(in.Metadata),
	}}
	for _, o := range orZero(in.Overrides) {
		t.Overrides = append(t.Overrides, tenants.Override{LimitName: o.LimitName, Quota: o.Limit, Reason: o.Reason, ExpiresAt: readEnd(o.ExpiresAt)})
	}
	return t
}

// showConfiguration leaves out what a file does not hold: ids, versions and times of change.
func showConfiguration(in *tenants.Configuration) gen.Configuration {
	out := gen.Configuration{
		Version: &in.Version, AddressPolicy: &gen.AddressPolicyInput{},
		Plans: pointer(make([]gen.PlanInput, len(in.Plans))), Tenants: pointer(make([]gen.ConfiguredTenant, len(in.Tenants))),
		Networks: pointer(make([]gen.ConfiguredNetwork, len(in.Networks))),
	}
	if in.Mode != "" {
		out.Mode = pointer(gen.Mode(in.Mode))
	}
	out.AddressPolicy.Limits = showRules(in.AddressPolicy.Limits)
	for i := range in.Plans {
		p := &in.Plans[i]
		(*out.Plans)[i] = gen.PlanInput{
			Name: p.Name, Title: &p.Title, RequestLog: pointer(gen.RequestLog(p.RequestLog)),
			Alert: &gen.Alert{At: p.Alert.At, For: formatDuration(p.Alert.For)}, Limits: showRules(p.Limits),
		}
	}
	for i := range in.Tenants {
		(*out.Tenants)[i] = showConfiguredTenant(&in.Tenants[i])
	}
	for i := range in.Networks {
		n := &in.Networks[i]
		(*out.Networks)[i] = gen.ConfiguredNetwork{
			Cidr: n.CIDR.String(), Action: gen.NetworkAction(n.Action), Reason: textOrNil(n.Reason), ExpiresAt: timeOrNull(n.ExpiresAt),
		}
	}
	var warnings []string
	for _, row := range in.Broken {
		warnings = append(warnings, fmt.Sprintf("the row %s of %s cannot be read (%v): safe defaults are shown in its place", row.ID, row.Table, row.Err))
	}
	out.Warnings = listOrNil(warnings)
	return out
}

func showConfiguredTenant(t *tenants.ConfiguredTenant) gen.ConfiguredTenant {
	out := gen.ConfiguredTenant{
		Slug: t.Slug, Name: t.Name, Plan: t.Plan, Status: pointer(gen.TenantStatus(t.Status)), ContactEmail: textOrNil(t.ContactEmail),
	}
	if len(t.Metadata) > 0 {
		out.Metadata = pointer(gen.Metadata(t.Metadata))
	}
	if len(t.Overrides) > 0 {
		overrides := make([]gen.ConfiguredOverride, len(t.Overrides))
		for i, o := range t.Overrides {
			overrides[i] = gen.ConfiguredOverride{LimitName: o.LimitName, Limit: o.Quota, Reason: o.Reason, ExpiresAt: timeOrNull(o.ExpiresAt)}
		}
		out.Overrides = &overrides
	}
	return out
}

func showApplied(done *tenants.Applied, dryRun bool) gen.AppliedConfiguration {
	out := gen.AppliedConfiguration{
		Version: done.Version, DryRun: dryRun, Changes: make([]gen.ConfigurationChange, len(done.Changes)), Warnings: append([]string{}, done.Warnings...),
	}
	for i := range done.Changes {
		ch := &done.Changes[i]
		out.Changes[i] = gen.ConfigurationChange{
			Action: gen.ConfigurationChangeAction(ch.Action), Resource: gen.ConfigurationChangeResource(ch.Resource), Name: ch.Name, Diff: showDiff(ch.Diff),
		}
	}
	return out
}

func textOrNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
