package dashboard_test

import (
	"html"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// typedForms are forms with something typed into each, by path; what was typed begins with "typed".
func typedForms() map[string][]string {
	limit := []string{
		"limits", "1", "limits.0.name", "typed-limit", "limits.0.limit", "10", "limits.0.window", "1m", "limits.0.algorithm", "sliding_window_log", "limits.0.cost", "1",
		"limits.0.on_store_failure", "open", "limits.0.mode", "enforce",
	}
	plan := append([]string{"limits.0.scope", "tenant", "title", "typed title", "alert_at", "80", "alert_for", "10m", "request_log", "denied"}, limit...)
	return map[string][]string{
		"/dashboard/tenants":                      {"slug", "typed-slug", "name", "typed name", "plan", "light", "once", "o1"},
		"/dashboard/tenants/school-17":            {"name", "typed \"name\"", "plan", "light", "etag", `"1"`},
		"/dashboard/tenants/school-17/keys":       {"name", "typed key", "expires_in", "never", "once", "o2"},
		"/dashboard/tenants/school-17/overrides":  {"name", "requests-per-minute", "limit", "3000", "reason", "typed \"reason\"\r\nof two lines", "expires_in", "24h"},
		"/dashboard/plans/new":                    append([]string{"name", "typed-plan", "once", "o3"}, plan...),
		"/dashboard/plans/light":                  append([]string{"etag", `"1"`}, plan...),
		"/dashboard/addresses":                    append([]string{"limits.0.scope", "address", "limits.0.applies_to", "all", "etag", `"1"`}, limit...),
		"/dashboard/addresses/networks":           {"cidr", "198.51.100.0/24", "action", "deny", "reason", "typed reason", "expires_in", "24h", "once", "o4"},
		"/dashboard/tokens/services":              {"name", "typed service", "may", "check", "may", "status", "exempt", "address", "expires_in", "never", "once", "o5"},
		"/dashboard/tokens/admins":                {"name", "typed admin", "role", "viewer", "expires_in", "90d", "once", "o6"},
		"/dashboard/tenants/school-17/unoverride": {"name", "typed-limit"},
	}
}

var hiddenField = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// keptOn is the form that a page keeps, as its button would send it.
func keptOn(t *testing.T, p *seen) (path string, pairs []string) {
	t.Helper()
	_, form, found := strings.Cut(p.body, `<section class="panel">`)
	require.True(t, found, "%s", p.body)
	m := regexp.MustCompile(`<form method="post" action="([^"]*)">`).FindStringSubmatch(form)
	require.NotNil(t, m, "%s", p.body)
	for _, f := range hiddenField.FindAllStringSubmatch(form, -1) {
		pairs = append(pairs, html.UnescapeString(f[1]), html.UnescapeString(f[2]))
	}
	return html.UnescapeString(m[1]), pairs
}

// sameFields reports that two lists of pairs hold the same, values of one name in their order.
func sameFields(pairs []string) map[string][]string {
	m := map[string][]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = append(m[pairs[i]], pairs[i+1])
	}
	return m
}

// Guarantee: a session that ends in the middle of a form loses nothing that was typed: it comes back after signing in, also after a
// wrong token, and nothing is saved before the administrator says so again.
func TestFormsOutliveTheirSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tenant("school-17", "School 17", "light")
	for path, pairs := range typedForms() {
		b := w.browser() // its session has ended
		p := b.post(path, pairs...)
		require.Equal(t, http.StatusUnauthorized, p.status, path)
		require.Contains(t, p.body, "Your session has ended.")
		require.Contains(t, p.body, `autocomplete="username"`, "password managers keep a secret under a name")
		p = b.post("/dashboard/sign-in", "username", "pegel admin", "token", "pga_wrong", "kept", p.value(t, "kept"), "kept_for", p.value(t, "kept_for"))
		require.Equal(t, http.StatusUnauthorized, p.status)
		p = b.post("/dashboard/sign-in", "token", bootstrap, "kept", p.value(t, "kept"), "kept_for", p.value(t, "kept_for"))
		require.Equal(t, http.StatusOK, p.status, "%s", p.body)
		to, again := keptOn(t, &p)
		require.Equal(t, path, to)
		require.Equal(t, sameFields(pairs), sameFields(again), path)
	}
	_, err := w.repository.Tenant(t.Context(), "typed-slug")
	require.ErrorIs(t, err, tenants.ErrNotFound, "nothing is done by signing in")
	b := w.signIn(bootstrap)
	require.Contains(t, b.post("/dashboard/tenants", typedForms()["/dashboard/tenants"]...).body, "Tenant created.")

	p := w.browser().post("/dashboard/plans/light", "json", strings.Repeat("%", 1<<19))
	require.Equal(t, http.StatusRequestEntityTooLarge, b.post("/dashboard/plans/light", "json", strings.Repeat("%", 1<<19)).status)
	require.NotContains(t, p.body, "%25%25")
	p = w.browser().post("/dashboard/plans/light", "json", strings.Repeat("x", 1<<19))
	require.Contains(t, p.body, "too long to be kept here")
	for _, to := range []string{"https://evil.example/", "//evil.example", "/admin/plans", "/dashboard/../admin"} {
		p = w.browser().post("/dashboard/sign-in", "token", bootstrap, "kept", "a=b", "kept_for", to)
		require.Equal(t, "/dashboard", p.path, "what is kept goes to the dashboard alone: %s", to)
	}
}

// Guarantee: with Postgres hung every form answers within the bound, says what is wrong and keeps what was typed.
func TestFormsOutliveAPostgresThatHangs(t *testing.T) {
	t.Parallel()
	pg := testenv.PostgresServer(t)
	require.NoError(t, postgres.MigrateUp(t.Context(), pg.URL(), discard()))
	w := newWorldOn(t, pg.URL(), postgres.WithAnswerWithin(500*time.Millisecond))
	w.tenant("school-17", "School 17", "light")
	b := w.signIn(bootstrap)
	require.NoError(t, pg.Pause())
	for path, pairs := range typedForms() {
		p := b.post(path, pairs...)
		require.Equal(t, http.StatusServiceUnavailable, p.status, path)
		require.Contains(t, p.body, "Not saved: Postgres does not answer", path)
		to, again := keptOn(t, &p)
		require.Equal(t, path, to)
		require.Equal(t, sameFields(pairs), sameFields(again), path)
	}
	require.NoError(t, pg.Resume())
	pairs := typedForms()["/dashboard/tenants/school-17/keys"]
	require.Eventually(t, func() bool {
		return strings.Contains(b.post("/dashboard/tenants/school-17/keys", pairs...).body, "typed key")
	}, 10*time.Second, 50*time.Millisecond)
}

// Guarantee: what is no number is said at its field, whatever the words of the language call a number.
func TestNumbersThatAreNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tenant("school-17", "School 17", "light")
	b := w.signIn(bootstrap)
	for field, id := range map[string]string{"limits.0.slow_from": "limit-0-slow-from-error", "alert_at": "plan-alert-at-error", "limits.0.limit": "limit-0-limit-error", "limits.0.cost": "limit-0-cost-error"} {
		for _, value := range []string{"NaN", "Inf", "-Inf", "1e999", "0x1p-2", "-1", "٨٠", "1.5e", "80 80"} {
			p := b.post("/dashboard/plans/light", set(formOf(b.page(t, "/dashboard/plans/light")), field, value)...)
			if p.path == "/dashboard/plans/light" && p.status == http.StatusOK {
				require.Equal(t, "0x1p-2", value, "%s", field) // a quarter of a percent, oddly written
				continue
			}
			require.Equal(t, http.StatusUnprocessableEntity, p.status, "%s=%s", field, value)
			require.Contains(t, p.body, `class="error" id="`+id+`"`, "%s=%s", field, value)
			require.Contains(t, p.body, html.EscapeString(value))
		}
	}
	p := b.post("/dashboard/tokens/services", "name", "svc", "may", "check", "expires_in", "tomorrow")
	require.Equal(t, http.StatusUnprocessableEntity, p.status, "a time that is not understood is not never")
	require.Contains(t, p.body, `class="error" id="service-ends-error"`)
}

// Guarantee: a tenant's form that came back because somebody else changed the tenant does not undo that change when it is sent
// again, and a suspension that was refused leaves the settings' form alone.
func TestTwoAdministratorsOfOneTenant(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tenant("school-17", "School 17", "light")
	b := w.signIn(bootstrap)
	page := b.page(t, "/dashboard/tenants/school-17")
	etag := page.value(t, "etag")
	require.Contains(t, b.post("/dashboard/tenants/school-17", "name", "School 17", "plan", "pro", "contact_email", "", "etag", etag).body, "Saved.")
	mine := []string{"name", "My name", "plan", "light", "contact_email", "", "etag", etag}
	p := b.post("/dashboard/tenants/school-17", mine...)
	require.Equal(t, http.StatusPreconditionFailed, p.status)
	require.Contains(t, p.body, `value="My name"`, "what was entered is kept")
	require.Equal(t, etag, p.value(t, "etag"))
	mine[len(mine)-1] = p.value(t, "etag")
	require.Equal(t, http.StatusPreconditionFailed, b.post("/dashboard/tenants/school-17", mine...).status, "the same form again")

	p = b.post("/dashboard/tenants/school-17", "status", "suspended", "etag", etag)
	require.Equal(t, http.StatusPreconditionFailed, p.status)
	require.Contains(t, p.body, "somebody changed it")
	require.Contains(t, p.body, `name="name" type="text" value="School 17"`, "the form beside it is as it was")
	require.NotEqual(t, etag, p.value(t, "etag"))
}

// Guarantee: with a thousand plans and a tenant with a thousand keys nothing is out of reach, and no form moves a tenant to
// another plan because its own was not among the first.
func TestManyPlansAndKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.pool.Exec(t.Context(), `INSERT INTO plans (name, changed_in) SELECT 'plan-' || to_char(n, 'FM0000'), 0 FROM generate_series(1, 1000) n`)
	require.NoError(t, err)
	tenant := w.tenant("school-17", "School 17", "plan-0999")
	_, err = w.pool.Exec(t.Context(), `INSERT INTO api_keys (id, tenant_id, name, hash, changed_in)
		SELECT 'key' || to_char(n, 'FM0000000000000'), $1, 'key ' || n, sha256(n::text::bytea), 0 FROM generate_series(1, 1000) n`, tenant.ID)
	require.NoError(t, err)
	b := w.signIn(bootstrap)
	p := b.page(t, "/dashboard/tenants/school-17")
	require.Contains(t, p.body, `<option selected>plan-0999</option>`)
	require.Contains(t, b.page(t, "/dashboard/tenants?plan=plan-0999").body, `<option selected>plan-0999</option>`)

	seenKeys, pages := map[string]bool{}, 0
	for path := "/dashboard/tenants/school-17"; path != ""; pages++ {
		p := b.page(t, path)
		for _, m := range regexp.MustCompile(`<code>(key\d{13})</code>`).FindAllStringSubmatch(p.body, -1) {
			seenKeys[m[1]] = true
		}
		path = nextPage(p)
	}
	require.Equal(t, []int{1000, 10}, []int{len(seenKeys), pages})
	plans, pages := 0, 0
	for path := "/dashboard/plans"; path != ""; pages++ {
		p := b.page(t, path)
		plans += strings.Count(p.body, `<section class="panel plan">`)
		path = nextPage(p)
	}
	require.Equal(t, 1003, plans, "in %d pages", pages)
}

// nextPage is where the pager of a page leads.
func nextPage(p *seen) string {
	m := regexp.MustCompile(`<a href="([^"#]*)[^"]*" rel="next">`).FindStringSubmatch(p.body)
	if m == nil {
		return ""
	}
	return html.UnescapeString(m[1])
}

// Guarantee: Enter in a field of a form with several buttons saves it, as the first button of a form does, and removes no limit.
func TestEnterSaves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.signIn(bootstrap)
	for _, path := range []string{"/dashboard/plans/light", "/dashboard/plans/new", "/dashboard/addresses"} {
		for _, form := range strings.Split(b.page(t, path).body, `<form method="post"`)[1:] {
			form, _, _ = strings.Cut(form, "</form>")
			if !strings.Contains(form, `name="remove"`) {
				continue
			}
			first := regexp.MustCompile(`<button[^>]*>`).FindString(form)
			require.NotContains(t, first, "name=", "Enter on %s presses %s", path, first)
		}
	}
}

// Guarantee: a search that cannot be asked for says which part of it, and why.
func TestSearchesThatCannotBe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.signIn(bootstrap)
	for path, want := range map[string]string{
		"/dashboard/tenants?status=bad":                          "status must be",
		"/dashboard/tenants?search=" + strings.Repeat("x", 3000): "search must",
		"/dashboard/tenants?cursor=zzz":                          "cursor must",
		"/dashboard/audit?from=yesterday":                        "from must",
		"/dashboard/plans?cursor=zzz":                            "cursor must",
	} {
		p := b.get(path)
		require.Contains(t, p.body, "That cannot be asked for", path)
		require.Contains(t, p.body, want, path)
	}
}
