package dashboard

import (
	"net/http"
	"net/url"
	"time"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/usage"
)

// topTenants is how many of the biggest consumers the overview shows.
const topTenants = 10

// overviewView is the state of everything now.
type overviewView struct {
	usage.Overview

	// Rates are of the last 60 s, per second.
	Rates rates
	Chart chart
	// Word is the one sentence on what decides.
	Word word
	Mode string // empty: not known now
	Away *failure
}

// rates are hits per second.
type rates struct{ Allowed, Slowed, Refused float64 }

// word is a sentence and how bad it is: "calm", "high" or "full".
type word struct{ Level, Text, More string }

// overview is GET /dashboard.
func (d *Dashboard) overview(x *exchange) {
	v := x.overviewView()
	var mode gen.ModeBody
	if err := x.get("/admin/mode", nil, &mode); err != nil {
		v.Away = x.failureOf(err)
	} else {
		v.Mode = string(mode.Mode)
	}
	out := x.view("overview", "Overview", v)
	out.Stream = "/dashboard/live"
	x.show(http.StatusOK, out)
}

// overviewLive is GET /dashboard/live.
func (d *Dashboard) overviewLive(x *exchange) {
	x.stream(func() (*view, bool) { return x.view("overview", "Overview", x.overviewView()), true })
}

func (x *exchange) overviewView() overviewView {
	o := x.d.Live.Overview(x.r.Context(), topTenants)
	v := overviewView{Overview: o, Chart: overviewChart(o.Series), Word: wordOn(&o)}
	const span = 60
	v.Rates = rates{Allowed: float64(o.Total.Admitted) / span, Slowed: float64(o.Total.Slowed) / span, Refused: float64(o.Total.Refused) / span}
	return v
}

// wordOn says honestly what decides, over all replicas that are known.
func wordOn(o *usage.Overview) word {
	by := map[string]int{}
	for i := range o.Replicas {
		by[o.Replicas[i].Source]++
	}
	switch {
	case len(o.Replicas) == 0:
		return word{"high", "No replica has reported.", "What decides is not known here."}
	case by["none"] == len(o.Replicas):
		return word{"full", "Nobody decides.", "Redis and Postgres are away: each limit does what its on_store_failure says."}
	case len(by) > 1:
		return word{"full", "Replicas decide by different stores.", "Until they agree, a tenant can get one more quota for each store."}
	case by["redis"] > 0:
		return word{"calm", "Redis decides.", "One budget, exact, on every replica."}
	case by["postgres"] > 0 && o.Replicas[0].Redis == "unconfigured":
		return word{"calm", "Postgres decides.", "It is the primary store here: no Redis is configured."}
	case by["postgres"] > 0:
		return word{"high", "Postgres decides: Redis is away.", "Usage was carried over. It goes back to Redis by itself."}
	}
	return word{"high", "Each replica decides for itself.", "Counters are local while the stores are away."}
}

// setMode is POST /dashboard/mode.
func (d *Dashboard) setMode(x *exchange) {
	f, ok := x.readForm("mode")
	if !ok {
		return
	}
	if _, err := x.call(call{method: http.MethodPut, path: "/admin/mode", body: map[string]any{"mode": f.text("mode")}}, nil); err != nil {
		x.fail(err)
		return
	}
	x.done("/dashboard", "mode-set")
}

// formTime is what <input type="datetime-local"> sends, as the API reads it; anything else is left for the API to refuse.
func formTime(value string) string {
	at, err := time.Parse(dateForm, value)
	if err != nil {
		return value
	}
	return at.Format(time.RFC3339)
}

// auditView is the audit log, searched.
type auditView struct {
	Actor, Action, Resource, ResourceID, Tenant, From, To string

	Entries []gen.AuditEntry
	Next    string // address of the page after this one
	First   string
	Failure *failure
}

// audit is GET /dashboard/audit.
func (d *Dashboard) audit(x *exchange) {
	query := x.r.URL.Query()
	v := auditView{
		Actor: query.Get("actor"), Action: query.Get("action"), Resource: query.Get("resource"), ResourceID: query.Get("resource_id"),
		Tenant: query.Get("tenant"), From: query.Get("from"), To: query.Get("to"),
	}
	filter, asked := url.Values{}, url.Values{"limit": {"50"}}
	for _, name := range []string{"actor", "action", "resource", "resource_id", "tenant", "from", "to"} {
		value := query.Get(name)
		if value == "" {
			continue
		}
		filter.Set(name, value)
		if name == "from" || name == "to" {
			value = formTime(value)
		}
		asked.Set(name, value)
	}
	if cursor := query.Get("cursor"); cursor != "" {
		asked.Set("cursor", cursor)
		v.First = "/dashboard/audit?" + filter.Encode()
	}
	var list page[gen.AuditEntry]
	if err := x.get("/admin/audit", asked, &list); err != nil {
		v.Failure = x.failureOf(err)
	}
	v.Entries = list.Items
	if list.NextCursor != "" {
		filter.Set("cursor", list.NextCursor)
		v.Next = "/dashboard/audit?" + filter.Encode()
	}
	out := x.view("audit", "Audit", v)
	if x.r.Header.Get("HX-Request") != "" {
		x.fragment(out, "rows")
		return
	}
	x.show(http.StatusOK, out)
}
