package dashboard

import (
	"errors"
	"net/http"
	"net/url"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/usage"
)

// tenantView is one tenant with everything that hangs on it. Each part is read on its own: what cannot be read says so, and
// the rest is shown.
type tenantView struct {
	Slug   string
	Tenant *gen.Tenant // nil: it could not be read
	ETag   string
	Plans  []string
	Live   tenantLive

	Keys      part[gen.ApiKey]
	Overrides part[gen.Override]
	Audit     part[gen.AuditEntry]
	History   *history // nil: the tenant is not known here
	// Created is a key that was made just now; its secret is shown this once.
	Created *created
	Failure *failure
}

// part is a list on a page.
type part[T any] struct {
	Items []T
	More  bool // there are more than are shown
	// Next is where the page after this one begins, of readPage the address of that page; First is the first one's, where this is another.
	Next, First string
	Failure     *failure
}

// created is a credential as it is shown once.
type created struct {
	Kind, Name, ID string
	// Secret is empty when the form was sent twice: it has been shown already.
	Secret string
}

// tenantLive is how full the tenant's limits are.
type tenantLive struct {
	Known  bool // the tenant is in this replica's directory
	id     int64
	Name   string
	Plan   string
	Limits []level
	Source string // what decides now
	Usage  *usage.TenantUsage
	Error  string
}

// level is one limit of the tenant itself and how full it is.
type level struct {
	decision.LimitBody

	Decided    bool
	UsedUnits  int64
	Share      float64
	Overridden bool
}

// tenant is GET /dashboard/tenants/{tenant}.
func (d *Dashboard) tenant(x *exchange) { x.tenantPage(http.StatusOK) }

func (x *exchange) tenantPage(status int) { x.showTenant(status, nil) }

func (x *exchange) showTenant(status int, fresh *created) {
	slug := x.r.PathValue("tenant")
	v := tenantView{Slug: slug, Created: fresh, Live: x.tenantLive(slug)}
	var tenant gen.Tenant
	got, err := x.call(call{method: http.MethodGet, path: tenantPath(slug)}, &tenant)
	var refused *apiError
	switch {
	case err == nil:
		v.Tenant, v.ETag = &tenant, got.etag()
	case errors.As(err, &refused) && refused.Status == http.StatusServiceUnavailable && v.Live.Known:
		v.Failure = x.failureOf(err)
		if status == http.StatusOK {
			status = http.StatusServiceUnavailable
		}
	default:
		x.fail(err)
		return
	}
	if v.Tenant != nil {
		v.Plans = x.plans(v.Tenant.Plan)
	}
	if f := x.failed; f != nil && f.Name == "tenant" && f.text("etag") != "" {
		v.ETag = f.text("etag") // a save that follows must still meet what the administrator saw
	}
	v.Keys = readPage[gen.ApiKey](x, tenantPath(slug)+"/keys", "100", tenantPage(slug), "keys", "#keys")
	v.Overrides = read[gen.Override](x, tenantPath(slug)+"/overrides", url.Values{"limit": {"100"}})
	v.Audit = read[gen.AuditEntry](x, "/admin/audit", url.Values{"limit": {maxChanges}, "tenant": {slug}})
	v.History = x.tenantHistory(v.Live.id)
	name := v.Live.Name
	if v.Tenant != nil {
		name = v.Tenant.Name
	}
	out := x.view("tenant", name, v)
	out.Stream = tenantPage(slug) + "/live"
	x.show(status, out)
}

// maxChanges is how many changes a tenant's page shows.
const maxChanges = "10"

// read reads one page of a list for a part of a page.
func read[T any](x *exchange, path string, query url.Values) part[T] {
	var list page[T]
	err := x.get(path, query, &list)
	return part[T]{Items: list.Items, More: list.NextCursor != "", Next: list.NextCursor, Failure: x.failureOf(err)}
}

// readPage reads so much of a list that is leafed through on the page here, in its section (empty: all of it is). The parameter says where
// to begin.
func readPage[T any](x *exchange, path, most, here, parameter, section string) part[T] {
	asked, from := url.Values{"limit": {most}}, x.r.URL.Query().Get(parameter)
	if from != "" {
		asked.Set("cursor", from)
	}
	list := read[T](x, path, asked)
	if list.Next != "" {
		list.Next = here + "?" + parameter + "=" + url.QueryEscape(list.Next) + section
	}
	if from != "" {
		list.First = here + section
	}
	return list
}

// tenantLive asks the engine how full the tenant's limits are; nothing is consumed.
func (x *exchange) tenantLive(slug string) tenantLive {
	snapshot := x.d.Directory.Snapshot()
	tenant, ok := snapshot.Tenant(slug)
	if !ok {
		return tenantLive{}
	}
	live := tenantLive{Known: true, id: tenant.ID, Name: tenant.Name, Plan: tenant.Plan.Name}
	if using, ok := x.d.Live.Tenant(x.r.Context(), tenant.ID); ok {
		live.Usage = &using
	}
	d, err := x.d.Engine.Status(x.r.Context(), decision.Hit{Tenant: tenant})
	switch {
	case errors.Is(err, decision.ErrSuspended):
		live.Error = "The tenant is suspended: every request is refused, and nothing is counted."
		return live
	case errors.Is(err, decision.ErrClosed):
		live.Error = "No store can decide, and a limit of this plan is closed then: requests are answered with 503."
		return live
	case err != nil:
		live.Error = "The limits could not be read just now."
		return live
	}
	body := decision.Body(d)
	live.Source = string(body.Source)
	for i := range body.Limits {
		l := level{LimitBody: body.Limits[i], Overridden: d.Limits[i].Override != nil}
		if l.EffectiveAlgorithm != nil {
			l.Decided, l.UsedUnits, l.Share = true, d.Limits[i].State.Used, d.Limits[i].Utilization()
		}
		live.Limits = append(live.Limits, l)
	}
	return live
}

// tenantLive is GET /dashboard/tenants/{tenant}/live.
func (d *Dashboard) tenantLive(x *exchange) {
	slug := x.r.PathValue("tenant")
	x.stream(func() (*view, bool) {
		live := x.tenantLive(slug)
		return x.view("tenant", slug, tenantView{Slug: slug, Live: live}), live.Known
	})
}

// putOverride is POST /dashboard/tenants/{tenant}/overrides.
func (d *Dashboard) putOverride(x *exchange) {
	f, ok := x.readForm("override")
	if !ok {
		return
	}
	slug := x.r.PathValue("tenant")
	body := map[string]any{"limit": f.whole("limit", "/limit"), "reason": f.text("reason"), "expires_at": f.expiry(d.Now())}
	name := f.text("name")
	if name == "" {
		f.wrong("/name", "must name a limit")
	}
	if f.Summary != "" {
		x.refused(f, nil, x.tenantPage)
		return
	}
	if _, err := x.call(call{method: http.MethodPut, path: tenantPath(slug) + "/overrides/" + segment(name), body: body}, nil); err != nil {
		x.refused(f, err, x.tenantPage)
		return
	}
	x.done(tenantPage(slug), "override-set")
}

// deleteOverride is POST /dashboard/tenants/{tenant}/unoverride.
func (d *Dashboard) deleteOverride(x *exchange) {
	f, ok := x.readForm("unoverride")
	if !ok {
		return
	}
	slug := x.r.PathValue("tenant")
	if _, err := x.call(call{method: http.MethodDelete, path: tenantPath(slug) + "/overrides/" + segment(f.text("name"))}, nil); err != nil {
		x.refused(f, err, x.tenantPage)
		return
	}
	x.done(tenantPage(slug), "override-deleted")
}
