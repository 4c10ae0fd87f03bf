package httpapi_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/alert"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/problem"
)

// incident opens one, with a message that waits.
func (w *world) incident(k alert.Key, f alert.Facts) {
	w.t.Helper()
	now := w.clock.now().UTC()
	in := alert.Incident{Key: k, Facts: f, Since: now, OpenedAt: now, Value: 0.85, Peak: 0.9}
	err := postgres.NewAlerts(w.repository, nil).Judge(w.t.Context(), alert.Replica{Instance: "one"}, func(alert.Book) alert.Ruling {
		return alert.Ruling{Open: []alert.Change{{Incident: in, Messages: []alert.Message{{Channel: alert.Mail, Notice: alert.Notice{Kind: k.Kind, Occasion: alert.OnOpen}}}}}}
	})
	require.NoError(w.t, err)
}

func TestAlertsAreListedAndAcknowledged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.Empty(t, itemsOf(w, "/admin/alerts"))
	const hostile = `"><img src=x onerror=alert(1)>` + "\r\nBcc: x"
	w.incident(alert.Key{Kind: alert.TenantHigh, Subject: "17/m"}, alert.Facts{
		Tenant: "school-17", TenantName: hostile, Limit: "m", Quota: 100, At: 0.8, Below: 0.7,
	})
	for _, k := range alert.Kinds() {
		w.incident(alert.Key{Kind: k, Subject: "redis"}, alert.Facts{Name: "redis", Replicas: []string{"a: up", "b: down"}})
	}
	require.Len(t, itemsOf(w, "/admin/alerts"), 1+len(alert.Kinds()))
	for query, n := range map[string]int{
		"status=open": 7, "status=resolved": 0, "status=acknowledged": 0, "kind=store_down": 1, "tenant=school-17": 1, "limit=3": 3,
		"from=2000-01-01T00:00:00Z": 7, "to=2000-01-01T00:00:00Z": 0,
	} {
		require.Len(t, itemsOf(w, "/admin/alerts?"+query), n, query)
	}
	for _, query := range []string{"status=gone", "kind=x", "tenant=A%20B", "limit=0", "cursor=x", "from=today"} {
		w.administer(http.MethodGet, "/admin/alerts?"+query, "").problem(problem.Validation)
	}

	found := itemsOf(w, "/admin/alerts?tenant=school-17")[0]
	require.Equal(t, "open", found["status"])
	require.InDelta(t, 0.9, found["peak_utilization"], 0)
	require.Contains(t, found["summary"], "school-17 at 90 % of m")
	deliveries, ok := found["deliveries"].([]any)
	require.True(t, ok)
	require.Len(t, deliveries, 1)
	require.Subset(t, deliveries[0], map[string]any{"status": "pending"})

	path := fmt.Sprintf("/admin/alerts/%.0f/ack", found["id"])
	acked := w.administer(http.MethodPost, path, "").ok(http.StatusOK).json()
	require.Equal(t, "acknowledged", acked["status"])
	require.NotEmpty(t, acked["acknowledged_by"])
	require.Equal(t, acked["acknowledged_at"], w.administer(http.MethodPost, path, "").ok(http.StatusOK).json()["acknowledged_at"])
	require.Len(t, itemsOf(w, "/admin/alerts?status=acknowledged"), 1)
	require.Len(t, itemsOf(w, "/admin/audit?action=alert.ack"), 1)
	w.administer(http.MethodPost, "/admin/alerts/999999/ack", "").problem(problem.NotFound)
	w.administer(http.MethodPost, "/admin/alerts/0/ack", "").problem(problem.Validation)
	w.administer(http.MethodPost, "/admin/alerts/x/ack", "").problem(problem.Validation)
}
