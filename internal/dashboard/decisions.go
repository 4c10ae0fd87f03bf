package dashboard

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
)

// decisionsView explains one decision, and lists the last calls that were logged.
type decisionsView struct {
	ID          string
	Explanation *gen.Explanation
	// Unknown: the id is none, or its explanation is gone or was never kept.
	Unknown bool
	Failure *failure

	Tenant   string // whose calls are listed; empty: everybody's
	Refused  bool   // only refused ones
	Requests part[gen.LoggedRequest]
}

// decisions is GET /dashboard/decisions.
func (d *Dashboard) decisions(x *exchange) {
	query := x.r.URL.Query()
	v := decisionsView{ID: strings.TrimSpace(query.Get("id")), Tenant: strings.TrimSpace(query.Get("tenant")), Refused: query.Has("refused")}
	if v.ID != "" {
		var found gen.Explanation
		err := x.get("/admin/decisions/"+segment(v.ID), nil, &found)
		var refused *apiError
		switch {
		case err == nil:
			v.Explanation = &found
		case errors.As(err, &refused) && (refused.Status == http.StatusNotFound || refused.Status == http.StatusBadRequest):
			v.Unknown = true
		default:
			v.Failure = x.failureOf(err)
		}
	}
	asked := url.Values{"limit": {"25"}}
	if v.Tenant != "" {
		asked.Set("tenant", v.Tenant)
	}
	if v.Refused {
		asked.Set("decision", "deny")
	}
	v.Requests = read[gen.LoggedRequest](x, "/admin/requests", asked)
	x.render(http.StatusOK, "decisions", "Decisions", v)
}
