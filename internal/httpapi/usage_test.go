package httpapi_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/usage"
)

// Guarantee: a tenant's history comes in whole steps, split as asked, and what cannot be answered is said.
func TestTenantUsageIsShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plan("small", 10)
	w.tenant("a", "small")
	tenant, ok := w.directory.Snapshot().Tenant("a")
	require.True(t, ok)
	start := w.clock.now().UTC().Truncate(time.Hour)
	write := func(kind usage.Kind, name string, minute int, c usage.Counts) usage.Row {
		return usage.Row{Minute: start.Add(time.Duration(minute) * time.Minute), TenantID: tenant.ID, Kind: kind, Name: name, Counts: c}
	}
	history := postgres.NewUsageHistory(w.repository)
	require.NoError(t, history.Write(t.Context(), uuid.NewString(), []usage.Row{
		write(usage.KindTenant, "", 0, usage.Counts{Admitted: 3, Units: 3, Peak: 0.5}),
		write(usage.KindTenant, "", 7, usage.Counts{Slowed: 2, Refused: 1, Units: 2, Peak: 1}),
		write(usage.KindUser, "u1", 0, usage.Counts{Admitted: 1}),
		write(usage.KindUser, "u2", 0, usage.Counts{Admitted: 2}),
	}))
	ask := func(query string) *response {
		return w.administer(http.MethodGet, "/admin/tenants/a/usage?from="+url.QueryEscape(start.Format(time.RFC3339))+query, "")
	}
	var body gen.UsageHistory
	require.NoError(t, json.Unmarshal(ask("&step=5m&to="+url.QueryEscape(start.Add(58*time.Minute).Format(time.RFC3339))).ok(http.StatusOK).body, &body))
	for _, to := range []string{"9999-12-31T23:59:59Z", "9999-12-31T23:59:59-23:00", "2099-01-01T00:00:00Z"} {
		p := w.administer(http.MethodGet, "/admin/tenants/a/usage?to="+to, "").problem(problem.Validation)
		require.Equal(t, "/query/to", p.Errors[0].Pointer)
	}
	require.Equal(t, start, body.From)
	require.Equal(t, start.Add(time.Hour), body.To, "whole steps")
	require.Len(t, body.Series, 1)
	require.Equal(t, gen.UsageCounts{Allowed: 3, Slowed: 2, Refused: 1, Units: 5, Peak: 1}, body.Series[0].Total)
	require.Len(t, body.Series[0].Points, 2)
	require.Equal(t, start.Add(5*time.Minute), body.Series[0].Points[1].At)

	body = gen.UsageHistory{}
	require.NoError(t, json.Unmarshal(ask("&by=user&to="+url.QueryEscape(start.Add(time.Hour).Format(time.RFC3339))).ok(http.StatusOK).body, &body))
	require.EqualValues(t, "1m", body.Step)
	require.Equal(t, []string{"u2", "u1"}, []string{body.Series[0].Name, body.Series[1].Name}, "most requests first")

	w.administer(http.MethodGet, "/admin/tenants/nobody/usage", "").problem(problem.NotFound)
	w.administer(http.MethodGet, "/admin/tenants/a/usage", "").ok(http.StatusOK)
	for _, query := range []string{"&to=2020-01-01T00:00:00Z", "&step=1m&to=2031-01-01T00:00:00Z", "&step=2m", "&by=address"} {
		ask(query).problem(problem.Validation)
	}
}
