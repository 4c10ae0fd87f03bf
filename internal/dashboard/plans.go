package dashboard

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
)

// plansView is the list of plans.
type plansView struct{ Plans part[gen.Plan] }

// planView is one plan, as a form or as JSON.
type planView struct {
	Name   string
	New    bool
	ETag   string
	JSON   string
	AsJSON bool

	Title, AlertAt, AlertFor, RequestLog string

	Limits []limitFields
	// Tenants on the plan, on the first page of them.
	Tenants part[gen.Tenant]
}

// plans is GET /dashboard/plans.
func (d *Dashboard) plans(x *exchange) {
	x.render(http.StatusOK, "plans", "Plans", plansView{Plans: readPage[gen.Plan](x, "/admin/plans", "50", "/dashboard/plans", "cursor", "")})
}

// newPlan is GET /dashboard/plans/new.
func (d *Dashboard) newPlan(x *exchange) { x.newPlanPage(http.StatusOK) }

func (x *exchange) newPlanPage(status int) {
	v := planView{New: true, AlertAt: "80", AlertFor: "10m", RequestLog: "denied", Limits: []limitFields{newLimit(0, false)}, AsJSON: x.r.URL.Query().Has("json")}
	v.Limits[0].Name, v.Limits[0].SlowFrom, v.Limits[0].SlowDelay = "requests-per-minute", "80", "2s"
	v.JSON = "{\n  \"name\": \"\",\n  \"limits\": [\n    {\"name\": \"requests-per-minute\", \"limit\": 2000, \"window\": \"1m\", \"slowdown\": {\"from\": 0.8, \"max_delay\": \"2s\"}}\n  ]\n}"
	x.showPlan(status, "New plan", &v)
}

// plan is GET /dashboard/plans/{plan}.
func (d *Dashboard) plan(x *exchange) { x.planPage(http.StatusOK) }

func (x *exchange) planPage(status int) {
	name := x.r.PathValue("plan")
	var raw json.RawMessage
	got, err := x.call(call{method: http.MethodGet, path: planPath(name)}, &raw)
	var plan gen.Plan
	if err == nil {
		err = json.Unmarshal(raw, &plan)
	}
	if err != nil {
		x.fail(err)
		return
	}
	v := planView{
		Name: plan.Name, ETag: got.etag(), JSON: pretty(raw), AsJSON: x.r.URL.Query().Has("json"),
		Title: plan.Title, AlertAt: strconv.FormatFloat(plan.Alert.At*100, 'f', -1, 64), AlertFor: plan.Alert.For, RequestLog: string(plan.RequestLog),
		Limits:  showLimits(plan.Limits, false),
		Tenants: read[gen.Tenant](x, "/admin/tenants", url.Values{"plan": {name}, "limit": {"10"}}),
	}
	x.showPlan(status, "Plan "+plan.Name, &v)
}

// showPlan shows what was sent in place of what is stored when a form comes back.
func (x *exchange) showPlan(status int, title string, v *planView) {
	if f := x.failed; f != nil && f.Name == "plan" {
		if v.AsJSON = f.Values.Has("json"); v.AsJSON {
			v.JSON = f.Values.Get("json")
		} else {
			v.Limits, _ = sentLimits(f, false)
			v.Title, v.AlertAt, v.AlertFor, v.RequestLog = f.Value("title"), f.Value("alert_at"), f.Value("alert_for"), f.Value("request_log")
		}
		if etag := f.text("etag"); etag != "" {
			v.ETag = etag // a save that follows must still meet what the administrator saw
		}
	}
	x.render(status, "plan", title, v)
}

// createPlan is POST /dashboard/plans/new.
func (d *Dashboard) createPlan(x *exchange) {
	f, ok := x.readForm("plan")
	if !ok {
		return
	}
	body, name, again := readPlan(f, "")
	if again {
		x.refused(f, nil, x.newPlanPage)
		return
	}
	if _, err := x.call(call{method: http.MethodPost, path: "/admin/plans", body: body, once: f.text("once")}, nil); err != nil {
		x.refused(f, err, x.newPlanPage)
		return
	}
	x.done("/dashboard/plans/"+segment(name), "plan-saved")
}

// putPlan is POST /dashboard/plans/{plan}.
func (d *Dashboard) putPlan(x *exchange) {
	f, ok := x.readForm("plan")
	if !ok {
		return
	}
	name := x.r.PathValue("plan")
	body, _, again := readPlan(f, name)
	if again {
		x.refused(f, nil, x.planPage)
		return
	}
	if _, err := x.call(call{method: http.MethodPut, path: planPath(name), body: body, etag: f.text("etag")}, nil); err != nil {
		x.refused(f, err, x.planPage)
		return
	}
	x.done("/dashboard/plans/"+segment(name), "plan-saved")
}

// deletePlan is POST /dashboard/plans/{plan}/delete.
func (d *Dashboard) deletePlan(x *exchange) {
	f, ok := x.readForm("delete")
	if !ok {
		return
	}
	if _, err := x.call(call{method: http.MethodDelete, path: planPath(x.r.PathValue("plan")), etag: f.text("etag")}, nil); err != nil {
		x.refused(f, err, x.planPage)
		return
	}
	x.done("/dashboard/plans", "plan-deleted")
}

// readPlan is the plan of a form, or the JSON that was entered as it is. again: nothing is to be saved, the form comes back.
func readPlan(f *form, name string) (body any, created string, again bool) {
	if f.Values.Has("json") {
		raw := strings.TrimSpace(f.Values.Get("json"))
		var named struct{ Name string }
		if err := json.Unmarshal([]byte(raw), &named); err != nil {
			f.wrong("", "is not valid JSON: "+err.Error())
			return nil, "", true
		}
		return json.RawMessage(raw), named.Name, false
	}
	if name == "" {
		name = f.text("name")
	}
	fields, moved := sentLimits(f, false)
	if moved {
		f.status = http.StatusOK
		return nil, name, true
	}
	plan := map[string]any{"name": name, "title": f.text("title"), "request_log": f.text("request_log"), "limits": readLimits(f, fields)}
	plan["alert"] = map[string]any{"at": share(f, f.text("alert_at"), "/alert/at"), "for": f.text("alert_for")}
	return plan, name, f.Summary != ""
}

func pretty(raw []byte) string {
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return string(raw)
	}
	return b.String()
}

func planPath(name string) string { return "/admin/plans/" + segment(name) }
