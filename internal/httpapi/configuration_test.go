package httpapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/problem"
)

// Guarantee: what GET answers can be posted back and changes nothing; a dry run changes nothing and names what would change; a
// change by somebody else in between is a 412.
func TestConfigurationRoundTrip(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	got := w.administer(http.MethodGet, "/admin/configuration", "").ok(http.StatusOK)
	tag := got.header.Get("ETag")
	same := w.administer(http.MethodPost, "/admin/configuration?prune=true", string(got.body)).ok(http.StatusOK)
	require.Empty(t, same.json()["changes"])
	require.Equal(t, tag, same.header.Get("ETag"))

	const more = `{"tenants":[{"slug":"school-1","name":"School 1","plan":"light","overrides":[{"limit_name":"requests-per-minute","limit":7,"reason":"exams","expires_at":"2999-01-31T00:00:00.123456789Z"}]}],"mode":"shadow"}`
	dry := w.administer(http.MethodPost, "/admin/configuration?dry_run=true", more).ok(http.StatusOK)
	require.Equal(t, true, dry.json()["dry_run"])
	require.Len(t, dry.json()["changes"], 3)
	require.Equal(t, tag, dry.header.Get("ETag"))
	w.administer(http.MethodGet, "/admin/tenants/school-1", "").problem(problem.NotFound)

	done := w.administer(http.MethodPost, "/admin/configuration", more).ok(http.StatusOK)
	require.Equal(t, dry.json()["changes"], done.json()["changes"])
	require.NotEqual(t, tag, done.header.Get("ETag"))
	view, ok := w.directory.Snapshot().Tenant("school-1")
	require.True(t, ok, "this replica has it when the answer comes")
	require.EqualValues(t, 7, view.Limits[0].LimitAt(w.clock.now()).Quota)
	require.Empty(t, w.administer(http.MethodPost, "/admin/configuration", more).ok(http.StatusOK).json()["changes"], "moments are compared as they are stored")

	stale := w.do(w.admin, request{
		method: http.MethodPost, path: "/admin/configuration", body: more, header: map[string]string{"Authorization": "Bearer " + bootstrap, "If-Match": tag},
	})
	stale.problem(problem.PreconditionFailed)
}

// Guarantee: every fault has its pointer, whether the contract, the rules or the database finds it, and nothing is changed.
func TestConfigurationFaults(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for body, pointer := range map[string]string{
		`{"plans":[{"name":"a","limits":[]},{"name":"a","limits":[]}]}`:                                                 "/plans/1/name",
		`{"plans":[{"name":"a","limits":[{"name":"x","limit":1,"window":"1ms"}]}]}`:                                     "/plans/0/limits/0/window",
		`{"plans":[{"name":"a","limits":[],"alert":{"at":0,"for":"0s"}}]}`:                                              "/plans/0/alert/at",
		`{"address_policy":{"limits":[{"name":"x","limit":1,"window":"999999999h"}]}}`:                                  "/address_policy/limits/0/window",
		`{"tenants":[{"slug":"a","name":"A","plan":"nowhere"}]}`:                                                        "/tenants/0/plan",
		`{"tenants":[{"slug":"a","name":"A","plan":"light","contact_email":"x"}]}`:                                      "/tenants/0/contact_email",
		`{"tenants":[{"slug":"a","name":"A","plan":"light","overrides":[{"limit_name":"\"","limit":1,"reason":"r"}]}]}`: "/tenants/0/overrides/0/limit_name",
		`{"tenants":[{"slug":"a","name":"A","plan":"light","overrides":[{"limit_name":"x","limit":1,"reason":" "}]}]}`:  "/tenants/0/overrides/0/reason",
		`{"networks":[{"cidr":"10.0.0.1/8","action":"deny"}]}`:                                                          "/networks/0/cidr",
		`{"networks":null}`: "/networks",
		`{"mode":"off"}`:    "/mode",
		`{"tenant":[]}`:     "/tenant",
	} {
		p := w.administer(http.MethodPost, "/admin/configuration", body).problem(problem.Validation)
		require.Equal(t, pointer, p.Errors[0].Pointer, body)
	}
	p := w.administer(http.MethodPost, "/admin/configuration?dry_run=yes", "{}").problem(problem.Validation)
	require.Equal(t, "/query/dry_run", p.Errors[0].Pointer)
	require.Equal(t, "must be true or false", p.Errors[0].Message)
	p = w.administer(http.MethodPost, "/admin/configuration?dryrun=true", `{"mode":"shadow"}`).problem(problem.Validation)
	require.Equal(t, "/query/dryrun", p.Errors[0].Pointer, "a change with a misspelt option is not made without it")
	require.Equal(t, "enforce", w.administer(http.MethodGet, "/admin/mode", "").ok(http.StatusOK).json()["mode"])
	w.administer(http.MethodPost, "/admin/configuration?prune=true", `{"plans":[]}`).ok(http.StatusOK)

	// The zero moment is long ago. It is not "never".
	r := w.administer(http.MethodPost, "/admin/configuration", `{"networks":[{"cidr":"203.0.113.0/24","action":"deny","expires_at":"0001-01-01T00:00:00.0000001Z"}]}`).ok(http.StatusOK)
	require.Empty(t, r.json()["changes"])
	require.Contains(t, fmt.Sprint(r.json()["warnings"]), "ended at 0001-01-01T00:00:00Z: it is not created")
}

// Guarantee: this body, and no other, may have 8 MiB.
func TestConfigurationMayBeLarge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	padded := func(bytes int) string { return `{` + strings.Repeat(" ", bytes-2) + `}` }
	w.administer(http.MethodPost, "/admin/configuration", padded(8<<20)).ok(http.StatusOK)
	p := w.administer(http.MethodPost, "/admin/configuration", padded(8<<20+1)).problem(problem.PayloadTooLarge)
	require.Equal(t, "a body may have at most 8 MiB", p.Detail)
	p = w.administer(http.MethodPost, "/admin/plans", padded(1<<20+1)).problem(problem.PayloadTooLarge)
	require.Equal(t, "a body may have at most 1 MiB", p.Detail)
}
