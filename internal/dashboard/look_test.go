package dashboard_test

import (
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/alert"
	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/usage"
)

// furnish fills the world with what a busy installation looks like, hostile names included.
func (w *world) furnish() {
	w.t.Helper()
	o := usage.Overview{
		At: w.now(), Active: 1243, Total: usage.Counts{Admitted: 94_120, Slowed: 2310, Refused: 50_412}, WrongCredentials: 17,
		Addresses: []usage.Refusals{{Name: "198.51.100.23", Count: 4120}, {Name: "2001:db8:17::/64", Count: 96}},
		Services:  []usage.Refusals{{Name: "edge-frankfurt", Count: 12}},
		Replicas: []usage.Replica{
			{Name: "pegel-0", Version: "1.0.0", Status: "ok", Source: "redis", Redis: "up", Postgres: "up", RedisBreaker: "closed", Since: w.now().Add(-26 * time.Hour), ReportedAt: w.now().Add(-time.Second)},
			{Name: "pegel-1", Version: "1.0.0", Status: "ok", Source: "redis", Redis: "up", Postgres: "up", RedisBreaker: "closed", Since: w.now().Add(-26 * time.Hour), ReportedAt: w.now().Add(-2 * time.Second)},
		},
	}
	for i := range 360 {
		at := w.now().Add(-time.Duration(360-i) * usage.SeriesStep)
		p := usage.Point{At: at, Allowed: 1400 + 200*math.Sin(float64(i)/23) + 60*math.Sin(float64(i)/3), Slowed: 12 + 8*math.Sin(float64(i)/9)}
		if i > 250 {
			p.Refused, p.Slowed = 820+30*math.Sin(float64(i)/4), 40
		}
		o.Series = append(o.Series, p)
	}
	names := []struct{ slug, name, plan string }{
		{"school-17", "School 17", "light"},
		{"academy", "Academy of Music", "pro"},
		{"campus", "Campus North", "dedicated"},
		{"hostile", `<script>alert("1")</script> & "quotes"`, "light"},
		{"long", "Gesellschaft zur Förderung der außerordentlich langen Vereinsnamen und Donaudampfschifffahrt e.V.", "light"},
		{"rtl", "مدرسة \u202e النور", "pro"},
		{"nursery-3", "Nursery 3", "light"},
		{"lyceum", "Lycée Émile-Zola", "pro"},
		{"k12-west", "K12 West", "dedicated"},
		{"gym-4", "Gymnasium 4", "light"},
	}
	shares := []float64{1, .93, .84, .61, .4, .33, .2, .12, .05, .004}
	for i, n := range names {
		t := w.tenant(n.slug, n.name, n.plan)
		plan, ok := w.directory.Snapshot().Plan(n.plan)
		require.True(w.t, ok)
		quota := plan.Limits[0].Quota
		u := usage.TenantUsage{TenantID: t.ID, Tenant: n.slug, Plan: n.plan, LimitName: "requests-per-minute", Limit: quota, Used: int64(shares[i] * float64(quota)), Utilization: shares[i], LastAt: w.now()}
		u.Last60s = usage.Counts{Admitted: u.Used * 4 / 5, Slowed: u.Used / 5}
		if i == 0 {
			u.Last60s.Refused = 50_412
		}
		if u.Utilization >= .8 {
			u.HighSince = w.now().Add(-time.Duration(27-8*i) * time.Minute)
			o.High = append(o.High, u)
		}
		o.Tenants = append(o.Tenants, u)
		view, ok := w.directory.Snapshot().Tenant(n.slug)
		require.True(w.t, ok)
		_, err := w.engine.Decide(w.t.Context(), decision.Hit{Tenant: view, Cost: max(1, u.Used), Method: "POST", Path: "/v1/messages"})
		require.NoError(w.t, err)
	}
	w.live.Store(&o)

	ctx := w.t.Context()
	_, _, err := w.repository.PutOverride(ctx, testActor, "school-17", tenants.Override{LimitName: "requests-per-minute", Quota: 2500, Reason: "Report week: agreed with the office until Friday", ExpiresAt: w.now().Add(70 * time.Hour)})
	require.NoError(w.t, err)
	for i, cidr := range []string{"203.0.113.0/24", "198.51.100.0/25", "2001:db8:bad::/48"} {
		n := tenants.Network{CIDR: netip.MustParsePrefix(cidr), Action: tenants.Deny, Reason: "credential stuffing, ticket 4711"}
		if i == 1 {
			n.Action, n.ExpiresAt = tenants.Allow, w.now().Add(3*time.Hour)
		}
		_, err := w.repository.CreateNetwork(ctx, testActor, n)
		require.NoError(w.t, err)
	}
	for i := range 3 {
		_, err := w.repository.CreateKey(ctx, testActor, "school-17", tenants.APIKey{ID: fmt.Sprintf("key%013d", i), Name: []string{"n8n", "mobile app", "<b>bold</b>"}[i], Hash: [32]byte{byte(i + 1)}})
		require.NoError(w.t, err)
		_, err = w.repository.CreateServiceToken(ctx, testActor, tenants.ServiceToken{ID: fmt.Sprintf("svc%013d", i), Name: []string{"edge-frankfurt", "orchestrator", "job-runner"}[i], Hash: [32]byte{byte(i + 1)}, May: []tenants.Permission{tenants.MayCheck, tenants.MayIdentify}})
		require.NoError(w.t, err)
	}
	var rows []usage.Row
	school, ok := w.directory.Snapshot().Tenant("school-17")
	require.True(w.t, ok)
	for i := range 60 {
		c := usage.Counts{Admitted: 1500 + int64(150*math.Sin(float64(i)/5)), Peak: 1}
		if i > 30 {
			c.Slowed, c.Refused = 380, int64(700*(i-30))
		}
		rows = append(rows, usage.Row{Minute: w.now().Add(-time.Duration(60-i) * time.Minute).Truncate(time.Minute), TenantID: school.ID, Kind: usage.KindTenant, Counts: c})
	}
	require.NoError(w.t, w.history.Write(ctx, "0190a000-0000-7000-8000-000000000001", rows))
	w.incident(alert.TenantHigh, &alert.Facts{TenantID: school.ID, Tenant: "school-17", TenantName: "School 17", Plan: "light", Limit: "requests-per-minute", Quota: 2000, Window: time.Minute, Slowed: true, At: .8, Below: .7, For: 10 * time.Minute}, w.now().Add(-27*time.Minute))
	w.incident(alert.StoreDown, &alert.Facts{Name: "redis", Replicas: []string{"pegel-1: redis down"}, For: time.Minute}, w.now().Add(-30*time.Hour))
	require.NoError(w.t, w.repository.RevokeKey(ctx, testActor, "school-17", "key0000000000001"))
	w.refresh()
}

// Guarantee: every page is accessible (axe-core finds nothing), fits a desk and a phone in both themes without scrolling
// sideways, and no script fails. With PEGEL_PICTURES=1 what it looks like is kept in screenshots/ for people.
func TestLookOfEveryPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.furnish()
	school, ok := w.directory.Snapshot().Tenant("school-17")
	require.True(t, ok)
	refused, err := w.engine.Decide(t.Context(), decision.Hit{Tenant: school, User: "u42", Cost: 700, Method: "POST", Path: "/v1/messages", Address: netip.MustParsePrefix("192.0.2.7/32"), Standing: decision.Authenticated})
	require.NoError(t, err)
	require.Equal(t, decision.Deny, refused.Verdict)
	w.written()
	_, token := w.administrator(tenants.Admin)
	b := chromium(t, w.admin.URL)
	pages := map[string]string{
		"overview": "/dashboard", "tenants": "/dashboard/tenants", "tenant": "/dashboard/tenants/school-17", "hostile": "/dashboard/tenants/hostile",
		"plans": "/dashboard/plans", "plan": "/dashboard/plans/light", "plan-json": "/dashboard/plans/light?json", "plan-new": "/dashboard/plans/new",
		"addresses": "/dashboard/addresses", "tokens": "/dashboard/tokens", "audit": "/dashboard/audit", "alerts": "/dashboard/alerts",
		"decision": "/dashboard/decisions?id=" + refused.ID, "decisions": "/dashboard/decisions?id=none", "not-found": "/dashboard/tenants/nobody",
	}
	look := func(name, path string) {
		for theme, width := range map[string][]int64{"light": {1280, 390}, "dark": {1280, 390}} {
			b.colours(theme)
			for _, width := range width {
				what := fmt.Sprintf("%s-%s-%d", name, theme, width)
				b.size(width, 900)
				b.open(path)
				b.fits(what)
				if theme == "light" || width == 1280 { // a phone's page has the same colours
					b.accessible(what)
				}
				b.picture(what)
				b.clean()
			}
		}
	}
	look("sign-in", "/dashboard/sign-in")
	b.signIn(token)
	for name, path := range pages {
		look(name, path)
	}
}
