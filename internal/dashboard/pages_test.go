package dashboard_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/tenants"
)

var postsTo = regexp.MustCompile(`method="post" action="/dashboard/([^"]+)"`)

// every page that needs no name, and those of objects that are always there.
var allPages = []string{
	"/dashboard", "/dashboard/tenants", "/dashboard/tenants/school-17", "/dashboard/plans", "/dashboard/plans/new", "/dashboard/plans/new?json", "/dashboard/plans/light",
	"/dashboard/plans/light?json", "/dashboard/addresses", "/dashboard/tokens", "/dashboard/decisions", "/dashboard/decisions?id=none", "/dashboard/audit", "/dashboard/alerts",
}

// Guarantee: every page answers for every role, whole, without what another host has and without inline scripts or styles.
func TestEveryPageForEveryRole(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tenant("school-17", "School 17", "light")
	for _, role := range []tenants.Role{tenants.Viewer, tenants.Operator, tenants.Admin} {
		_, token := w.administrator(role)
		b := w.signIn(token)
		for _, path := range allPages {
			p := b.get(path)
			require.Equal(t, http.StatusOK, p.status, "%s as %s: %s", path, role, p.body)
			require.Contains(t, p.body, "</html>", path)
			require.NotRegexp(t, `<style|\sstyle="|\son\w+="|<script>|javascript:|(src|href|action)="(https?:)?//`, p.body, path)
			require.Equal(t, "no-store", p.header.Get("Cache-Control"))
			require.Contains(t, p.header.Get("Content-Security-Policy"), "script-src 'self';")
			require.NotContains(t, p.header.Get("Content-Security-Policy"), "unsafe")
			if role == tenants.Viewer {
				for _, to := range postsTo.FindAllStringSubmatch(p.body, -1) {
					require.True(t, to[1] == "theme" || to[1] == "sign-out" || strings.Contains(p.body, "<fieldset class=\"plain\" disabled>") || strings.Contains(p.body, " readonly>"),
						"a viewer is offered %s on %s", to[1], path)
				}
				require.NotContains(t, p.body, `<button class="danger"`, "a viewer is offered a change on %s", path)
			}
		}
	}
	require.NotContains(t, w.logs.String(), `"level":"ERROR"`)
}
