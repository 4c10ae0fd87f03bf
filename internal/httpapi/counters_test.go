package httpapi_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// Guarantee: the answer to a change says which limits begin new counters by it, and nothing where they go on.
func TestAnswersNameNewCounters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	plan := func(name string, quota int, window string) string {
		return fmt.Sprintf(`{"name":%q,"limits":[{"name":"kept","limit":5,"window":"1h"},{"name":"per-window","limit":%d,"window":%q}]}`, name, quota, window)
	}
	names := func(a *response) string { return a.header.Get("X-Pegel-New-Counters") }

	created := w.administer(http.MethodPut, "/admin/plans/small", plan("small", 10, "1m"), "If-None-Match", "*").ok(http.StatusCreated)
	require.Empty(t, names(created))
	raised := w.administer(http.MethodPut, "/admin/plans/small", plan("small", 20, "1m"), "If-Match", created.header.Get("ETag")).ok(http.StatusOK)
	require.Empty(t, names(raised), "another quota acts on the live counter")
	wider := w.administer(http.MethodPut, "/admin/plans/small", plan("small", 20, "2m"), "If-Match", raised.header.Get("ETag")).ok(http.StatusOK)
	require.Equal(t, `"per-window"`, names(wider))

	w.administer(http.MethodPost, "/admin/plans", plan("large", 100, "2m")).ok(http.StatusCreated)
	w.administer(http.MethodPost, "/admin/plans", plan("other", 100, "1m")).ok(http.StatusCreated)
	tenant := w.administer(http.MethodPost, "/admin/tenants", `{"slug":"a","name":"A","plan":"small"}`).ok(http.StatusCreated)
	moved := w.administer(http.MethodPatch, "/admin/tenants/a", `{"plan":"large"}`, "If-Match", tenant.header.Get("ETag")).ok(http.StatusOK)
	require.Empty(t, names(moved), "equally named limits keep their usage")
	moved = w.administer(http.MethodPatch, "/admin/tenants/a", `{"plan":"other"}`, "If-Match", moved.header.Get("ETag")).ok(http.StatusOK)
	require.Equal(t, `"per-window"`, names(moved))
	renamed := w.administer(http.MethodPatch, "/admin/tenants/a", `{"name":"B"}`, "If-Match", moved.header.Get("ETag")).ok(http.StatusOK)
	require.Empty(t, names(renamed))
}
