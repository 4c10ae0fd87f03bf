package dashboard_test

import (
	"html"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/testenv"
	"github.com/pegel-dev/pegel/internal/usage"
)

// Guarantee: a change is the API's change: it is validated by the same code, audited under the signed-in administrator, and
// refused to whoever may not.
func TestChangesAreAuditedUnderTheirActor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, token := w.administrator(tenants.Operator)
	b := w.signIn(token)
	p := b.post("/dashboard/tenants", "slug", "school-17", "name", "School 17", "plan", "light", "once", "a")
	require.Equal(t, "/dashboard/tenants/school-17", p.path, "%s", p.body)
	require.Contains(t, p.body, "Tenant created.")

	p = b.post("/dashboard/tenants/school-17", "name", "School Seventeen", "plan", "pro", "contact_email", "office@example.org", "etag", p.value(t, "etag"))
	require.Contains(t, p.body, "Saved.")
	p = b.post("/dashboard/tenants/school-17", "status", "suspended", "etag", p.value(t, "etag"))
	require.Contains(t, p.body, "Suspended.")
	p = b.post("/dashboard/tenants/school-17/reset", "once", "b")
	require.Contains(t, p.body, "Counters cleared.")
	tenant, err := w.repository.Tenant(t.Context(), "school-17")
	require.NoError(t, err)
	require.Equal(t, []any{"School Seventeen", "pro", tenants.Suspended, int64(1)}, []any{tenant.Name, tenant.Plan, tenant.Status, tenant.Generation})

	entries, err := w.repository.ListAudit(t.Context(), audit.Filter{ResourceID: "school-17"}, tenants.Page{Limit: 10})
	require.NoError(t, err)
	require.Len(t, entries.Items, 4)
	for _, e := range entries.Items {
		require.Equal(t, audit.Actor{Kind: "admin_token", ID: id, Name: "operator of the tests", Address: "127.0.0.1", RequestID: e.Actor.RequestID}, e.Actor)
		require.NotEmpty(t, e.Actor.RequestID)
	}
	require.Contains(t, b.get("/dashboard/audit?resource_id=school-17").body, "tenant.reset")

	p = b.post("/dashboard/tenants/school-17/delete", "confirm", "something else", "etag", p.value(t, "etag"))
	require.Equal(t, http.StatusUnprocessableEntity, p.status)
	p = b.post("/dashboard/tenants/school-17/delete", "confirm", "school-17", "etag", b.page(t, "/dashboard/tenants/school-17").value(t, "etag"))
	require.Equal(t, "/dashboard/tenants", p.path)
	require.Equal(t, http.StatusNotFound, b.get("/dashboard/tenants/school-17").status)
}

func (b *browser) page(t *testing.T, path string) *seen {
	t.Helper()
	p := b.get(path)
	require.Equal(t, http.StatusOK, p.status)
	return &p
}

// Guarantee: a change made on what somebody else has changed meanwhile is refused and says so (B074).
func TestTwoAdministrators(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.signIn(bootstrap)
	etag := b.page(t, "/dashboard/plans/light?json").value(t, "etag")
	body := `{"name":"light","title":"first","limits":[{"name":"requests-per-minute","limit":100,"window":"1m"}]}`
	require.Contains(t, b.post("/dashboard/plans/light", "json", body, "etag", etag).body, "Plan saved.")
	p := b.post("/dashboard/plans/light", "json", strings.Replace(body, "first", "second", 1), "etag", etag)
	require.Equal(t, http.StatusPreconditionFailed, p.status)
	require.Contains(t, p.body, "somebody changed it")
	require.Contains(t, html.UnescapeString(p.body), `"title":"second"`, "what was entered is kept")
	plan, err := w.repository.Plan(t.Context(), "light")
	require.NoError(t, err)
	require.Equal(t, "first", plan.Title)
}

var formValue = regexp.MustCompile(`(?s)<(?:input|select|textarea)[^>]*name="(limits(?:\.\d+\.\w+)?|etag|title|alert_at|alert_for|request_log)"[^>]*?(?: value="([^"]*)"[^>]*>|>(.*?)</(?:select|textarea)>)`)

// formOf is the plan's form as a browser would send it.
func formOf(p *seen) []string {
	var pairs []string
	for _, m := range formValue.FindAllStringSubmatch(p.body, -1) {
		value := m[2]
		if m[3] != "" {
			value = m[3]
			if _, after, found := strings.Cut(value, " selected>"); found {
				value, _, _ = strings.Cut(after, "<")
			}
		}
		pairs = append(pairs, m[1], html.UnescapeString(value))
	}
	return pairs
}

func set(pairs []string, name, value string) []string {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] == name {
			pairs[i+1] = value
		}
	}
	return pairs
}

// Guarantee: a plan saved from its form unchanged is unchanged, and what is wrong is said beside its field.
func TestPlanForm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.signIn(bootstrap)
	before, err := w.repository.Plan(t.Context(), "light")
	require.NoError(t, err)
	pairs := formOf(b.page(t, "/dashboard/plans/light"))
	p := b.post("/dashboard/plans/light", pairs...)
	require.Contains(t, p.body, "Plan saved.", "%v", pairs)
	after, err := w.repository.Plan(t.Context(), "light")
	require.NoError(t, err)
	require.Equal(t, before.Limits, after.Limits)
	require.Equal(t, []any{before.Alert, before.RequestLog, before.Title}, []any{after.Alert, after.RequestLog, after.Title})

	for field, want := range map[string][2]string{
		"limits.0.limit":     {"2,000", "must be a whole number"},
		"limits.0.window":    {"1x", "limit-0-window-error"},
		"limits.0.name":      {`"`, "limit-0-name-error"},
		"limits.0.slow_from": {"900", "limit-0-slow-from-error"},
		"limits.0.paths":     {"no-slash", "limit-0-paths-error"},
		"alert_at":           {"0", "plan-alert-at-error"},
	} {
		p := b.post("/dashboard/plans/light", set(formOf(b.page(t, "/dashboard/plans/light")), field, want[0])...)
		require.Equal(t, http.StatusUnprocessableEntity, p.status, field)
		marker := want[1]
		if strings.HasSuffix(marker, "-error") {
			marker = `class="error" id="` + marker + `"`
		}
		require.Contains(t, p.body, marker, field)
		require.Contains(t, p.body, html.EscapeString(want[0]), "what was entered is kept: %s", field)
	}

	more := append(formOf(b.page(t, "/dashboard/plans/light")), "add", "1")
	p = b.post("/dashboard/plans/light", more...)
	require.Equal(t, http.StatusOK, p.status)
	require.Contains(t, p.body, `name="limits.1.name"`)
	fewer := append(formOf(&p), "remove", "0")
	p = b.post("/dashboard/plans/light", fewer...)
	require.NotContains(t, p.body, `name="limits.1.name"`)
	require.NotContains(t, p.body, `value="requests-per-minute"`)

	p = b.post("/dashboard/plans/light", "json", "{", "etag", "*")
	require.Equal(t, http.StatusUnprocessableEntity, p.status)
	require.Contains(t, p.body, "is not valid JSON")
	p = b.post("/dashboard/plans/light/delete", "etag", "*")
	require.Equal(t, "/dashboard/plans", p.path, "nobody is on it: %s", p.body)
}

// Guarantee: a secret is shown once: a form that is sent twice acts once, and the second answer has no secret.
func TestSecretsAreShownOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tenant("school-17", "School 17", "light")
	b := w.signIn(bootstrap)
	forms := map[string][]string{
		"/dashboard/tenants/school-17/keys": {"name", "n8n", "expires_in", "never", "once", "k1"},
		"/dashboard/tokens/services":        {"name", "edge", "may", "check", "exempt", "address", "once", "s1"},
		"/dashboard/tokens/admins":          {"name", "guest", "role", "viewer", "once", "a1"},
	}
	secret := regexp.MustCompile(`id="secret"[^>]*>(pg[aks]_\w+)<`)
	for path, pairs := range forms {
		p := b.post(path, pairs...)
		require.Equal(t, http.StatusOK, p.status, "%s: %s", path, p.body)
		require.Regexp(t, secret, p.body)
		text := secret.FindStringSubmatch(p.body)[1]
		again := b.post(path, pairs...)
		require.Contains(t, again.body, "had been made already", path)
		require.NotContains(t, again.body, text)
		require.NotContains(t, b.get("/dashboard/tokens").body+b.get("/dashboard/tenants/school-17").body+b.get("/dashboard/audit").body+w.logs.String(), text)
	}
	keys, err := w.repository.ListKeys(t.Context(), "school-17", tenants.CredentialFilter{}, tenants.Page{Limit: 10})
	require.NoError(t, err)
	require.Len(t, keys.Items, 1)

	p := b.post("/dashboard/tenants/school-17/keys/rotate", "id", keys.Items[0].ID, "overlap", "1h", "once", "r1")
	require.Regexp(t, secret, p.body)
	p = b.post("/dashboard/tenants/school-17/keys/revoke", "id", keys.Items[0].ID)
	require.Contains(t, p.body, "API key revoked.")
}

// Guarantee: a role that may not is refused by the API whatever it sends, and the page says why.
func TestRolesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tenant("school-17", "School 17", "light")
	_, viewer := w.administrator(tenants.Viewer)
	_, operator := w.administrator(tenants.Operator)
	for token, paths := range map[string][]string{
		viewer: {
			"/dashboard/mode", "/dashboard/tenants", "/dashboard/tenants/school-17", "/dashboard/tenants/school-17/reset", "/dashboard/tenants/school-17/keys",
			"/dashboard/tenants/school-17/keys/rotate", "/dashboard/tenants/school-17/keys/revoke", "/dashboard/tenants/school-17/unoverride",
			"/dashboard/plans/light", "/dashboard/plans/light/delete", "/dashboard/plans/new", "/dashboard/addresses", "/dashboard/addresses/networks", "/dashboard/addresses/networks/delete",
			"/dashboard/tokens/services", "/dashboard/tokens/admins", "/dashboard/alerts/ack",
		},
		operator: {"/dashboard/tokens/services", "/dashboard/tokens/services/rotate", "/dashboard/tokens/services/revoke", "/dashboard/tokens/admins", "/dashboard/tokens/admins/revoke"},
	} {
		b := w.signIn(token)
		for _, path := range paths {
			p := b.post(path, "json", `{"name":"light","limits":[]}`, "limits", "0", "id", "0", "name", "x", "etag", "*", "mode", "shadow")
			require.Equal(t, http.StatusForbidden, p.status, "%s: %s", path, p.body)
			require.Contains(t, p.body, "Not with your role")
		}
	}
}

// Guarantee: whatever a tenant is called, its name is text.
func TestHostileNamesAreText(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	hostile := `</script><img src=x onerror=alert(1)>{{.}}'"` + "\u202e"
	tenant := w.tenant("hostile", hostile, "light")
	w.live.Store(&usage.Overview{
		Addresses: []usage.Refusals{{Name: hostile, Count: 1}}, Services: []usage.Refusals{{Name: hostile, Count: 1}},
		Tenants: []usage.TenantUsage{{TenantID: tenant.ID, Tenant: hostile, Plan: hostile, LimitName: hostile, Utilization: 2, HighSince: w.now()}},
	})
	b := w.signIn(bootstrap)
	for _, path := range []string{"/dashboard", "/dashboard/tenants", "/dashboard/tenants/hostile", "/dashboard/audit", "/dashboard/plans/light", "/dashboard/tenants?search=" + "%3C/script%3E%3Cimg"} {
		p := b.get(path)
		require.Equal(t, http.StatusOK, p.status)
		require.NotContains(t, p.body, "<img src=x", path)
	}
	require.Contains(t, b.get("/dashboard/tenants").body, html.EscapeString(`<img src=x onerror=alert(1)>`))
}

// Guarantee: with Postgres away the dashboard says so, live numbers go on, and the administrator stays signed in.
func TestPostgresAway(t *testing.T) {
	t.Parallel()
	pg := testenv.PostgresServer(t)
	require.NoError(t, postgres.MigrateUp(t.Context(), pg.URL(), discard()))
	w := newWorldOn(t, pg.URL())
	tenant := w.tenant("school-17", "School 17", "light")
	b := w.signIn(bootstrap)
	w.live.Store(&usage.Overview{Tenants: []usage.TenantUsage{{TenantID: tenant.ID, Tenant: "school-17", Plan: "light", LimitName: "requests-per-minute", Used: 1900, Limit: 2000, Utilization: .95}}})
	require.NoError(t, pg.Stop())

	for _, path := range []string{"/dashboard", "/dashboard/tenants/school-17"} {
		p := b.get(path)
		require.Contains(t, p.body, "Postgres does not answer", path)
		require.Regexp(t, "1,900|of 2,000", p.body, "live numbers go on: %s", path)
	}
	for _, path := range []string{"/dashboard/tenants", "/dashboard/plans", "/dashboard/addresses", "/dashboard/tokens", "/dashboard/audit", "/dashboard/alerts"} {
		p := b.get(path)
		require.Contains(t, p.body, "Postgres does not answer", path)
		require.Contains(t, p.body, "</html>", path)
	}
	p := b.post("/dashboard/tenants", "slug", "new", "name", "New", "plan", "light")
	require.Equal(t, http.StatusServiceUnavailable, p.status)
	require.Contains(t, p.body, "Not saved: Postgres does not answer")
	require.Contains(t, p.body, `value="new"`, "what was entered is kept")
}

// Guarantee: tenants are found by a part of their name and walked page by page, also without scripts.
func TestSearchAndPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 60 {
		slug := "school-" + strconv.Itoa(i)
		tn := tenants.Tenant{Slug: slug, Name: "School " + strconv.Itoa(i), Plan: "light"}
		tn.SetDefaults()
		_, err := w.repository.CreateTenant(t.Context(), testActor, tn)
		require.NoError(t, err)
	}
	w.refresh()
	b := w.signIn(bootstrap)
	p := b.get("/dashboard/tenants?search=SCHOOL")
	require.Equal(t, 50, strings.Count(p.body, `<code class="dim">school-`))
	next := regexp.MustCompile(`href="(/dashboard/tenants\?[^"]+)" rel="next"`).FindStringSubmatch(p.body)
	require.NotNil(t, next)
	p = b.get(html.UnescapeString(next[1]))
	require.Equal(t, 10, strings.Count(p.body, `<code class="dim">school-`))
	require.Contains(t, b.get("/dashboard/tenants?search=none").body, "No tenant fits this search.")

	r := b.request(http.MethodGet, "/dashboard/tenants?search=school-59", nil)
	r.Header.Set("Hx-Request", "true")
	part := b.do(r)
	require.NotContains(t, part.body, "<html", "a script gets the rows alone")
	require.Equal(t, 1, strings.Count(part.body, `<code class="dim">school-`))
}

// Guarantee: an override ends when the form says.
func TestOverrideForm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tenant("school-17", "School 17", "light")
	b := w.signIn(bootstrap)
	p := b.post("/dashboard/tenants/school-17/overrides", "name", "requests-per-minute", "limit", "5000", "reason", "fair", "expires_in", "8h")
	require.Contains(t, p.body, "Override saved.")
	list, err := w.repository.ListOverrides(t.Context(), "school-17", tenants.OverrideFilter{}, tenants.Page{Limit: 10})
	require.NoError(t, err)
	require.WithinDuration(t, w.now().Add(8*time.Hour), list.Items[0].ExpiresAt, time.Minute)
	p = b.post("/dashboard/tenants/school-17/overrides", "name", "requests-per-minute", "limit", "5000", "reason", "", "expires_in", "8h")
	require.Equal(t, http.StatusUnprocessableEntity, p.status)
	require.Contains(t, p.body, `class="error" id="override-reason-error"`)
	p = b.post("/dashboard/tenants/school-17/overrides", "name", "requests-per-minute", "limit", "5000", "reason", "fair", "expires_in", "at", "expires_at", "2020-01-01T00:00")
	require.Equal(t, http.StatusUnprocessableEntity, p.status)
	require.Contains(t, p.body, `class="error" id="override-ends-error"`)
	p = b.post("/dashboard/tenants/school-17/unoverride", "name", "requests-per-minute")
	require.Contains(t, p.body, "Override removed.")
}
