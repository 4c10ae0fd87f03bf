package dashboard

import (
	"errors"
	"time"

	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/usage"
)

// chart is what uPlot draws: seconds since 1970, and one list of values for each name.
type chart struct {
	Label string      `json:"-"`
	Unit  string      `json:"unit"`
	Names []string    `json:"names"`
	Rows  [][]float64 `json:"rows"` // the first is time
}

var outcomes = []string{"allowed", "slowed", "refused"}

// overviewChart is the last hour, in hits per second.
func overviewChart(series []usage.Point) chart {
	c := chart{Label: "Requests per second over the last hour", Unit: "/s", Names: outcomes, Rows: make([][]float64, 1+len(outcomes))}
	for _, p := range series {
		c.add(p.At, p.Allowed, p.Slowed, p.Refused)
	}
	return c
}

func (c *chart) add(at time.Time, values ...float64) {
	c.Rows[0] = append(c.Rows[0], float64(at.Unix()))
	for i, v := range values {
		c.Rows[i+1] = append(c.Rows[i+1], v)
	}
}

// span is a stretch of the past to look at.
type span struct {
	Value, Label string
	Length, Step time.Duration
}

var spans = []span{
	{"1h", "hour", time.Hour, usage.StepMinute},
	{"24h", "day", 24 * time.Hour, usage.StepFiveMinutes},
	{"7d", "week", 7 * 24 * time.Hour, usage.StepHour},
	{"90d", "quarter", 90 * 24 * time.Hour, usage.StepDay},
}

// history is what one tenant used.
type history struct {
	Spans   []span
	Span    span
	Chart   chart
	Total   *usage.Counts
	Failure *failure
}

// tenantHistory reads what a tenant used over the span that was asked for.
func (x *exchange) tenantHistory(id int64) *history {
	if id == 0 {
		return nil
	}
	h := &history{Spans: spans, Span: spans[0], Total: &usage.Counts{}}
	for _, s := range spans {
		if s.Value == x.r.URL.Query().Get("span") {
			h.Span = s
		}
	}
	if x.away != nil {
		h.Failure = x.historyFailure(tenants.ErrUnavailable)
		return h
	}
	to := x.d.Now().UTC().Truncate(h.Span.Step).Add(h.Span.Step)
	from := to.Add(-h.Span.Length)
	series, err := x.d.History.Usage(x.r.Context(), usage.HistoryQuery{TenantID: id, From: from, To: to, Step: h.Span.Step, By: usage.KindTenant})
	if err != nil {
		h.Failure = x.historyFailure(err)
		return h
	}
	h.Chart = chart{Label: "Requests in the last " + h.Span.Label, Unit: "", Names: outcomes, Rows: make([][]float64, 1+len(outcomes))}
	points := map[int64]usage.HistoryPoint{}
	if len(series.Names) > 0 {
		h.Total = &series.Names[0].Total
		for _, p := range series.Names[0].Points {
			points[p.At.Unix()] = p
		}
	}
	// Steps without hits are left out of the series. The step that is not over yet is in the total alone: drawn, it looks like a fall.
	for at := from; at.Before(to.Add(-h.Span.Step)); at = at.Add(h.Span.Step) {
		p := points[at.Unix()]
		h.Chart.add(at, float64(p.Admitted), float64(p.Slowed), float64(p.Refused))
	}
	return h
}

func (x *exchange) historyFailure(err error) *failure {
	if errors.Is(err, tenants.ErrUnavailable) {
		return &failure{Status: 503, Title: "Postgres does not answer", Detail: "The history is not lost: it is shown again when Postgres is back.", Away: true}
	}
	return x.failureOf(err)
}
