package dashboard

import (
	"net/http"
	"net/url"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
)

// alertsView is what has been wrong for long enough.
type alertsView struct{ Incidents part[gen.Incident] }

// alerts is GET /dashboard/alerts.
func (d *Dashboard) alerts(x *exchange) { x.alertsPage(http.StatusOK) }

func (x *exchange) alertsPage(status int) {
	x.render(status, "alerts", "Alerts", alertsView{Incidents: read[gen.Incident](x, "/admin/alerts", url.Values{"limit": {"100"}})})
}

// acknowledge is POST /dashboard/alerts/ack.
func (d *Dashboard) acknowledge(x *exchange) {
	f, ok := x.readForm("ack")
	if !ok {
		return
	}
	if _, err := x.call(call{method: http.MethodPost, path: "/admin/alerts/" + segment(f.text("id")) + "/ack"}, nil); err != nil {
		x.refused(f, err, x.alertsPage)
		return
	}
	x.done("/dashboard/alerts", "acknowledged")
}
