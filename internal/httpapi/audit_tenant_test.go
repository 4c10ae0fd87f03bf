package httpapi_test

import (
	"encoding/csv"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// Guarantee: "what changed for this tenant?" has one answer, over the API, in pages and as an export, also when the tenant is gone.
func TestWhatChangedForATenant(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	viewer := w.administrator(tenants.Viewer)
	const tenant = "/admin/tenants/school-17"
	change := func(method, path, body string) *response {
		r := w.administer(method, path, body, "If-Match", "*")
		require.Less(t, r.status, 300, "%s %s: %s", method, path, r.body)
		return r
	}
	change(http.MethodPost, "/admin/tenants", `{"slug":"school-1","name":"another","plan":"light"}`)
	change(http.MethodPost, "/admin/tenants", `{"slug":"school-17","name":"s","plan":"light"}`)
	change(http.MethodPatch, tenant, `{"plan":"pro"}`)
	change(http.MethodPatch, tenant, `{"status":"suspended"}`)
	key := change(http.MethodPost, tenant+"/keys", `{"name":"edge"}`).json()
	successor := change(http.MethodPost, fmt.Sprint(tenant, "/keys/", key["id"], "/rotate"), `{}`).json()
	change(http.MethodDelete, fmt.Sprint(tenant, "/keys/", successor["id"]), "")
	change(http.MethodPut, tenant+"/overrides/requests-per-minute", `{"limit":5,"reason":"loop"}`)
	change(http.MethodDelete, tenant+"/overrides/requests-per-minute", "")
	change(http.MethodPost, tenant+"/reset", "")
	want := []string{
		"tenant.create", "tenant.update", "tenant.update", "api_key.create", "api_key.rotate", "api_key.revoke", "override.put", "override.delete", "tenant.reset",
	}

	// Refused attempts concern it too, also at a key that is not there yet.
	w.do(w.admin, request{method: http.MethodPost, path: tenant + "/keys", body: `{"name":"x"}`, header: bearer(viewer)}).problem(problem.Forbidden)
	auditOf(w, "tenant=school-17&action=request.refused&resource=api_key", 1)
	w.do(w.admin, request{method: http.MethodPost, path: tenant + "/reset", header: bearer(viewer)}).problem(problem.Forbidden)
	auditOf(w, "tenant=school-17&action=request.refused", 2)
	change(http.MethodDelete, tenant, "")
	want = append(want, "request.refused", "request.refused", "tenant.delete")

	var found []string
	for cursor := ""; ; {
		page := w.administer(http.MethodGet, "/admin/audit?tenant=school-17&limit=5"+cursor, "").ok(http.StatusOK).json()
		items, _ := page["items"].([]any)
		for _, item := range items {
			entry, _ := item.(map[string]any)
			require.Equal(t, "school-17", entry["tenant"])
			found = append([]string{fmt.Sprint(entry["action"])}, found...)
		}
		if page["next_cursor"] == nil {
			break
		}
		cursor = fmt.Sprint("&cursor=", page["next_cursor"])
	}
	require.Equal(t, want, found)
	require.Len(t, auditOf(w, "tenant=school-1", 1), 1)
	require.Empty(t, itemsOf(w, "/admin/audit?tenant=nobody"))
	require.NotContains(t, itemsOf(w, "/admin/audit?resource=plan")[0], "tenant")

	rows, err := csv.NewReader(strings.NewReader(string(w.administer(http.MethodGet, "/admin/audit/export?format=csv&tenant=school-17", "").ok(http.StatusOK).body))).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 1+len(want))
	require.Equal(t, []string{"tenant", "school-17"}, []string{rows[0][10], rows[1][10]})
	for _, path := range []string{"/admin/audit", "/admin/audit/export"} {
		for _, bad := range []string{"", "School%2017", "school-17/x", strings.Repeat("a", 64), "%00"} {
			w.administer(http.MethodGet, path+"?tenant="+bad, "").problem(problem.Validation)
		}
	}
}
