package httpapi

import (
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/usage"
)

const (
	// defaultSpan is how far back a history goes unless asked otherwise.
	defaultSpan = time.Hour
	// maxAhead is how far ahead a history may end, in years.
	maxAhead = 10
	// chosenSteps bounds the steps when nobody says how fine they are to be.
	chosenSteps = 400
)

var usageSteps = []struct {
	name gen.UsageStep
	step time.Duration
}{{"1m", usage.StepMinute}, {"5m", usage.StepFiveMinutes}, {"1h", usage.StepHour}, {"24h", usage.StepDay}}

// GetTenantUsage is GET /admin/tenants/{tenant}/usage.
func (a *admin) GetTenantUsage(c *gin.Context, slug gen.TenantSlug, params gen.GetTenantUsageParams) {
	tenant, ok := a.directory.Snapshot().Tenant(slug)
	if !ok {
		a.fail(c, tenants.ErrNotFound)
		return
	}
	query, step, err := a.usageQuery(&params)
	if err != nil {
		a.fail(c, err)
		return
	}
	query.TenantID = tenant.ID
	history, err := a.history.Usage(c.Request.Context(), query)
	if err != nil {
		a.fail(c, err)
		return
	}
	body := gen.UsageHistory{Tenant: slug, From: query.From, To: query.To, Step: step, By: params.By}
	body.Series = make([]struct {
		Name   string           `json:"name"`
		Points []gen.UsagePoint `json:"points"`
		Total  gen.UsageCounts  `json:"total"`
	}, len(history.Names))
	for i := range history.Names {
		name, shown := &history.Names[i], &body.Series[i]
		shown.Name, shown.Total, shown.Points = name.Name, showCounts(&name.Total), make([]gen.UsagePoint, len(name.Points))
		for k := range name.Points {
			shown.Points[k] = showPoint(&name.Points[k])
		}
	}
	a.writeJSON(c, http.StatusOK, body)
}

// usageQuery is what the parameters ask for, in whole steps.
func (a *admin) usageQuery(params *gen.GetTenantUsageParams) (q usage.HistoryQuery, step gen.UsageStep, err error) {
	q.To = a.now().UTC()
	if params.To != nil {
		q.To = params.To.UTC()
	}
	q.From = q.To.Add(-defaultSpan)
	if params.From != nil {
		q.From = params.From.UTC()
	}
	if !a.now().AddDate(maxAhead, 0, 0).After(q.To) { // nothing is known of it, and rounded up it could be no year that JSON can show
		return q, "", invalid("/query/to", "must be at most 10 years ahead")
	}
	if !q.From.Before(q.To) {
		return q, "", invalid("/query/from", "must be before the end")
	}
	span := q.To.Sub(q.From)
	for _, s := range usageSteps {
		q.Step, step = s.step, s.name
		if params.Step != nil && *params.Step == s.name || params.Step == nil && span <= chosenSteps*s.step {
			break
		}
	}
	if span > (usage.MaxHistoryPoints-2)*q.Step {
		return q, "", invalid("/query/step", "must be longer for so long a time: at most 1500 steps are answered")
	}
	q.From = q.From.Truncate(q.Step)
	if end := q.To.Truncate(q.Step); end.Before(q.To) {
		q.To = end.Add(q.Step)
	}
	if params.By != nil {
		q.By = map[gen.UsageSplit]usage.Kind{"limit": usage.KindLimit, "user": usage.KindUser, "key": usage.KindKey}[*params.By]
	}
	return q, step, nil
}

func showCounts(c *usage.Counts) gen.UsageCounts {
	return gen.UsageCounts{
		Allowed: c.Admitted, Slowed: c.Slowed, Refused: c.Refused, Exempt: c.Exempt, Units: c.Units, Peak: c.Peak,
	}
}

func showPoint(p *usage.HistoryPoint) gen.UsagePoint {
	return gen.UsagePoint{
		At: p.At, Allowed: p.Admitted, Slowed: p.Slowed, Refused: p.Refused, Exempt: p.Exempt, Units: p.Units, Peak: p.Peak,
	}
}
