package httpapi

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/alert"
	"github.com/pegel-dev/pegel/internal/httpapi/gen"
)

// ListAlerts is GET /admin/alerts.
func (a *admin) ListAlerts(c *gin.Context, params gen.ListAlertsParams) {
	filter := alert.Filter{
		Status: string(orZero(params.Status)), Kind: alert.Kind(orZero(params.Kind)), Tenant: orZero(params.Tenant),
		From: orZero(params.From), To: orZero(params.To),
	}
	page, err := a.incidents.ListIncidents(c.Request.Context(), filter, pageOf(params.Limit, params.Cursor))
	list(a, c, page, err, a.showIncident)
}

// AckAlert is POST /admin/alerts/{id}/ack.
func (a *admin) AckAlert(c *gin.Context, id gen.IncidentId, params gen.AckAlertParams) {
	a.post(c, params.IdempotencyKey, func(ctx context.Context) (outcome, error) {
		in, err := a.incidents.AckIncident(ctx, actor(c), id)
		return outcome{status: http.StatusOK, body: a.showIncident(&in)}, err
	})
}

func (a *admin) showIncident(in *alert.Incident) gen.Incident {
	w := alert.Describe(in, a.now())
	shown := gen.Incident{
		Id: in.ID, Kind: gen.IncidentKind(in.Kind), Status: incidentStatus(in), Summary: w.Headline, Detail: w.Lead, Meaning: w.Meaning,
		Tenant: in.Tenant, LimitName: in.Limit, Name: in.Name, Replicas: in.Replicas,
		Threshold: in.At, Utilization: in.Value, PeakUtilization: in.Peak,
		Since: in.Since.UTC(), OpenedAt: in.OpenedAt.UTC(), ResolvedAt: timeOrNull(in.ResolvedAt),
		AcknowledgedAt: timeOrNull(in.AckedAt), AcknowledgedBy: in.AckedBy, Reminders: in.Reminders,
		Deliveries: make([]gen.AlertDelivery, len(in.Deliveries)),
	}
	if shown.Replicas == nil {
		shown.Replicas = []string{}
	}
	for i, d := range in.Deliveries {
		shown.Deliveries[i] = gen.AlertDelivery{
			Channel: gen.AlertDeliveryChannel(d.Channel), Occasion: gen.AlertDeliveryOccasion(d.Occasion), Status: gen.AlertDeliveryStatus(d.Status),
			Attempts: d.Attempts, At: d.At.UTC(), Error: d.Error,
		}
	}
	return shown
}

func incidentStatus(in *alert.Incident) gen.IncidentStatus {
	switch {
	case !in.ResolvedAt.IsZero():
		return gen.IncidentStatusResolved
	case !in.AckedAt.IsZero():
		return gen.IncidentStatusAcknowledged
	}
	return gen.IncidentStatusOpen
}
