package dashboard

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/usage"
)

// page is one page of a list of the API.
type page[T any] struct {
	Items      []T    `json:"items"`
	NextCursor string `json:"next_cursor"`
}

// tenantsView is the list of tenants.
type tenantsView struct {
	Search, Plan, Status string
	Plans                []string
	Rows                 []tenantRow
	// Next is the address of the page after this one, First of the first one; empty: there is none.
	Next, First string
	Failure     *failure
}

// tenantRow is a tenant with what it uses now, when that is known.
type tenantRow struct {
	gen.Tenant

	Usage *usage.TenantUsage
}

// tenants is GET /dashboard/tenants.
func (d *Dashboard) tenants(x *exchange) { x.tenants(http.StatusOK) }

func (x *exchange) tenants(status int) {
	query := x.r.URL.Query()
	v := tenantsView{Search: query.Get("search"), Plan: query.Get("plan"), Status: query.Get("status")}
	filter := url.Values{}
	for name, value := range map[string]string{"search": strings.TrimSpace(v.Search), "plan": v.Plan, "status": v.Status} {
		if value != "" {
			filter.Set(name, value)
		}
	}
	asked := url.Values{"limit": {"50"}}
	for name, values := range filter {
		asked[name] = values
	}
	if cursor := query.Get("cursor"); cursor != "" {
		asked.Set("cursor", cursor)
		v.First = "/dashboard/tenants?" + filter.Encode()
	}
	var list page[gen.Tenant]
	if err := x.get("/admin/tenants", asked, &list); err != nil {
		v.Failure = x.failureOf(err)
	}
	v.Rows = x.rows(list.Items)
	if list.NextCursor != "" {
		filter.Set("cursor", list.NextCursor)
		v.Next = "/dashboard/tenants?" + filter.Encode()
	}
	v.Plans = x.plans(v.Plan)
	out := x.view("tenants", "Tenants", v)
	if x.r.Header.Get("HX-Request") != "" && x.r.Method == http.MethodGet {
		x.fragment(out, "rows")
		return
	}
	x.show(status, out)
}

// rows are tenants with what they use now, which is asked for once for all of them.
func (x *exchange) rows(items []gen.Tenant) []tenantRow {
	if len(items) == 0 {
		return nil
	}
	rows, at := make([]tenantRow, len(items)), make(map[int64]int, len(items))
	for i := range items {
		rows[i].Tenant, at[items[i].Id] = items[i], i
	}
	levels := x.d.Live.Levels(x.r.Context())
	for i := range levels {
		if k, shown := at[levels[i].TenantID]; shown {
			rows[k].Usage = &levels[i]
		}
	}
	return rows
}

// plans are the names of the plans to choose from. What is chosen is always among them: a browser would choose the first of the
// others in its place, and the next save would move the tenant there.
func (x *exchange) plans(chosen string) []string {
	names := x.d.Directory.Snapshot().PlanNames()
	if at, known := slices.BinarySearch(names, chosen); chosen != "" && !known {
		names = slices.Insert(names, at, chosen)
	}
	return names
}

// createTenant is POST /dashboard/tenants.
func (d *Dashboard) createTenant(x *exchange) {
	f, ok := x.readForm("create")
	if !ok {
		return
	}
	body := map[string]any{"slug": f.text("slug"), "name": f.text("name"), "plan": f.text("plan"), "contact_email": f.text("contact_email")}
	if _, err := x.call(call{method: http.MethodPost, path: "/admin/tenants", body: body, once: f.text("once")}, nil); err != nil {
		x.refused(f, err, x.tenants)
		return
	}
	x.done("/dashboard/tenants/"+segment(f.text("slug")), "tenant-created")
}

// changeTenant is POST /dashboard/tenants/{tenant}: only the fields that its form has.
func (d *Dashboard) changeTenant(x *exchange) {
	f, ok := x.readForm("tenant")
	if !ok {
		return
	}
	if !f.Values.Has("name") { // suspend or activate, which has a form of its own
		f.Name = "status"
	}
	body, done := map[string]any{}, "tenant-changed"
	for _, name := range []string{"name", "plan", "contact_email", "status"} {
		if _, given := f.Values[name]; given {
			body[name] = f.text(name)
		}
	}
	switch body["status"] {
	case "suspended":
		done = "tenant-suspended"
	case "active":
		done = "tenant-activated"
	}
	slug := x.r.PathValue("tenant")
	if _, err := x.call(call{method: http.MethodPatch, path: tenantPath(slug), body: body, etag: f.text("etag")}, nil); err != nil {
		x.refused(f, err, x.tenantPage)
		return
	}
	x.done(tenantPage(slug), done)
}

// deleteTenant is POST /dashboard/tenants/{tenant}/delete.
func (d *Dashboard) deleteTenant(x *exchange) {
	f, ok := x.readForm("delete")
	if !ok {
		return
	}
	slug := x.r.PathValue("tenant")
	if f.text("confirm") != slug {
		f.wrong("/confirm", "must be the tenant's slug")
		x.refused(f, nil, x.tenantPage)
		return
	}
	if _, err := x.call(call{method: http.MethodDelete, path: tenantPath(slug), etag: f.text("etag")}, nil); err != nil {
		x.refused(f, err, x.tenantPage)
		return
	}
	x.done("/dashboard/tenants", "tenant-deleted")
}

// resetTenant is POST /dashboard/tenants/{tenant}/reset.
func (d *Dashboard) resetTenant(x *exchange) {
	f, ok := x.readForm("reset")
	if !ok {
		return
	}
	slug := x.r.PathValue("tenant")
	if _, err := x.call(call{method: http.MethodPost, path: tenantPath(slug) + "/reset", once: f.text("once")}, nil); err != nil {
		x.refused(f, err, x.tenantPage)
		return
	}
	x.done(tenantPage(slug), "tenant-reset")
}

func tenantPath(slug string) string { return "/admin/tenants/" + segment(slug) }
func tenantPage(slug string) string { return "/dashboard/tenants/" + segment(slug) }
