package dashboard_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// Guarantee: a tenant's page tells what changed for it, its API keys and overrides included, and the audit page still does when it
// is gone.
func TestWhatChangedForATenantIsOnItsPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, token := w.administrator(tenants.Operator)
	b := w.signIn(token)
	for _, slug := range []string{"school-17", "school-18"} {
		b.post("/dashboard/tenants", "slug", slug, "name", slug, "plan", "light", "once", slug)
		p := b.post("/dashboard/tenants/"+slug+"/keys", "name", "edge", "expires_in", "8h", "once", "key-of-"+slug)
		require.Equal(t, http.StatusOK, p.status, p.body)
		b.post("/dashboard/tenants/"+slug+"/overrides", "name", "requests-per-minute", "limit", "7", "reason", "loop", "expires_in", "8h")
	}
	b.post("/dashboard/tenants/school-17/unoverride", "name", "requests-per-minute")

	page := b.get("/dashboard/tenants/school-17").body
	for _, action := range []string{"tenant.create", "api_key.create", "override.put", "override.delete"} {
		require.Contains(t, page, action)
	}
	require.Contains(t, page, `href="/dashboard/audit?tenant=school-17"`)
	require.NotContains(t, b.get("/dashboard/tenants/school-18").body, "override.delete")

	p := b.post("/dashboard/tenants/school-17/delete", "confirm", "school-17", "etag", b.page(t, "/dashboard/tenants/school-17").value(t, "etag"))
	require.Equal(t, "/dashboard/tenants", p.path)
	gone := b.get("/dashboard/audit?tenant=school-17")
	for _, action := range []string{"tenant.create", "api_key.create", "override.put", "override.delete", "tenant.delete"} {
		require.Contains(t, gone.body, action)
	}
	require.Contains(t, gone.body, "operator of the tests")
	require.NotContains(t, gone.body, "school-18")
	require.Equal(t, http.StatusOK, b.get("/dashboard/audit?tenant=Not%20a%20slug").status)
}
