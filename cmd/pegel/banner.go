package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/pegel-dev/pegel/internal/app"
)

// banner is what `pegel dev` prints when it is ready.
type banner struct {
	public, admin, proxy string // URLs; proxy is empty when it is off
	secure               bool   // the certificate may be a private one
	examples             *app.Examples
	notes                []string // warnings
	keysFile             string
}

// line is a command to paste, with what it shows.
type line struct{ says, command string }

// print writes the keys and the commands. Each command is complete, stands alone at the start of its line and ends
// within 10 s (curl's own -m).
func (b *banner) print(w io.Writer) error {
	var out strings.Builder
	if len(b.notes) > 0 {
		rule := strings.Repeat("!", 100)
		fmt.Fprintf(&out, "\n%s\n", rule)
		for _, n := range b.notes {
			fmt.Fprintf(&out, "!!  %s\n", n)
		}
		fmt.Fprintf(&out, "%s\n", rule)
	}
	fmt.Fprintf(&out, "\nPegel is ready.\n\n  public %s   admin %s", b.public, b.admin)
	if b.proxy != "" {
		fmt.Fprintf(&out, "   proxy to a demo upstream %s", b.proxy)
	}
	fmt.Fprintf(&out, "\n  the API to read and try: %s/docs\n  the dashboard: %s/dashboard, with the admin token below\n\n", b.public, b.admin)
	for _, t := range b.examples.Tenants {
		fmt.Fprintf(&out, "  %-13s plan %-10s key %s\n", t.Slug, t.Plan, t.Key)
	}
	fmt.Fprintf(&out, "  %-29s %s\n", "service token", b.examples.ServiceToken)
	fmt.Fprintf(&out, "  %-29s %s\n", "admin token", b.examples.AdminToken)
	fmt.Fprintf(&out, "  (kept in %s; `pegel dev --fresh` makes new ones)\n", b.keysFile)
	fmt.Fprintf(&out, "\n# the names under which README.md uses them\nexport LIGHT=%s TOKEN=%s ADMIN=%s\n",
		b.examples.Tenants[0].Key, b.examples.ServiceToken, b.examples.AdminToken)
	for _, l := range b.lines() {
		fmt.Fprintf(&out, "\n# %s\n%s\n", l.says, l.command)
	}
	out.WriteString("\nCtrl-C ends it.\n\n")
	if _, err := io.WriteString(w, out.String()); err != nil {
		return fmt.Errorf("print what to try: %w", err)
	}
	return nil
}

func (b *banner) lines() []line {
	light, pro := b.examples.Tenants[0], b.examples.Tenants[1]
	check := func(cost int) string {
		return b.curl(b.examples.ServiceToken, b.public+"/v1/check",
			`-H 'Content-Type: application/json'`, fmt.Sprintf(`-d '{"tenant":"%s","cost":%d}'`, light.Slug, cost))
	}
	lines := []line{
		{
			"an administrator starts " + light.Slug + "'s count anew, so that all of this works however often it is pasted",
			b.curl(b.examples.AdminToken, b.admin+"/admin/tenants/"+light.Slug+"/reset", "-X POST"),
		},
		{"a rate-limited endpoint: the headers tell what is left", b.curl(pro.Key, b.public+"/v1/ping")},
		{"a service asks for a tenant: 1,700 of 2,000 at once are let through, but slowed down (delay_ms)", check(1700)},
		{"400 more do not fit: 429, with the wait", check(400)},
		{"how the tenant stands; asking costs nothing", b.curl(light.Key, b.public+"/v1/status")},
	}
	if b.proxy != "" {
		lines = append(lines, line{
			"the same behind the reverse proxy: the demo upstream shows what it is sent, without the key",
			b.curl(pro.Key, b.proxy+"/hello"),
		})
	}
	return append(lines, line{
		"who uses most, as the administrator sees it",
		b.curl(b.examples.AdminToken, b.admin+"/admin/rate-limits?top=10"),
	})
}

// curl is one command: at most 10 s, headers shown.
func (b *banner) curl(credential, url string, more ...string) string {
	parts := []string{"curl", "-sS", "-i", "-m", "10"}
	if b.secure {
		parts = append(parts, "-k")
	}
	parts = append(parts, more...)
	parts = append(parts, "-H", "'Authorization: Bearer "+credential+"'", "'"+url+"'")
	return strings.Join(parts, " ") + ` -w '\n'`
}
