package tenants_test

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func goodPlan() tenants.Plan {
	p := tenants.Plan{Name: "light", Limits: []tenants.Rule{
		{Limit: ratelimit.Limit{Name: "requests-per-minute", Quota: 2000, Window: time.Minute, Slowdown: &ratelimit.Slowdown{From: 0.8, MaxDelay: 2 * time.Second}}},
		{
			Limit: ratelimit.Limit{Name: "exports", Scope: ratelimit.ScopeUser, Algorithm: ratelimit.TokenBucket, Quota: 10, Refill: ratelimit.Rate{Units: 1, Every: time.Second}},
			Match: tenants.Match{Methods: []string{"post"}, Paths: []string{"/v1/Exports/*"}},
		},
	}}
	p.SetDefaults()
	return p
}

func TestDefaultsOfAPlan(t *testing.T) {
	t.Parallel()
	p := goodPlan()
	require.Empty(t, tenants.ValidatePlan(&p))
	require.Equal(t, tenants.Alert{At: 0.8, For: 10 * time.Minute}, p.Alert)
	require.Equal(t, tenants.LogDenied, p.RequestLog)
	first := p.Limits[0]
	require.Equal(t, ratelimit.SlidingWindowLog, first.Algorithm)
	require.Equal(t, ratelimit.ScopeTenant, first.Scope)
	require.Equal(t, ratelimit.FailOpen, first.OnStoreFailure)
	require.Equal(t, ratelimit.Enforce, first.Mode)
	require.EqualValues(t, 1, first.Cost)
	require.Equal(t, tenants.Match{Methods: []string{"POST"}, Paths: []string{"/v1/exports/*"}}, p.Limits[1].Match)
}

func TestBuiltInsAreValid(t *testing.T) {
	t.Parallel()
	for _, p := range tenants.DefaultPlans() {
		require.Empty(t, tenants.ValidatePlan(&p), p.Name)
	}
	policy := tenants.DefaultAddressPolicy()
	require.Empty(t, tenants.ValidateAddressPolicy(&policy))
	require.Equal(t, []string{"burst", "per-minute", "login"}, []string{policy.Limits[0].Name, policy.Limits[1].Name, policy.Limits[2].Name})
	require.Equal(t, ratelimit.FailClosed, policy.Limits[2].OnStoreFailure)
	require.Len(t, policy.Limits[2].Match.Paths, 6)
	require.Equal(t, "burst (leaky_bucket 60, 30 per 1s)", policy.Limits[0].String())
	require.EqualValues(t, 2000, tenants.BuiltinLimits()[0].Quota)
	tenants.BuiltinLimits()[0].Quota = 1
	require.EqualValues(t, 2000, tenants.BuiltinLimits()[0].Quota, "each caller gets its own")
}

func TestWrongPlansNameTheField(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pointer string
		spoil   func(p *tenants.Plan)
	}{
		"no name":              {"/name", func(p *tenants.Plan) { p.Name = "" }},
		"upper case":           {"/name", func(p *tenants.Plan) { p.Name = "Light" }},
		"hyphen first":         {"/name", func(p *tenants.Plan) { p.Name = "-a" }},
		"64 characters":        {"/name", func(p *tenants.Plan) { p.Name = strings.Repeat("a", 64) }},
		"newline in slug":      {"/name", func(p *tenants.Plan) { p.Name = "light\n" }},
		"NUL in title":         {"/title", func(p *tenants.Plan) { p.Title = "a\x00" }},
		"long title":           {"/title", func(p *tenants.Plan) { p.Title = strings.Repeat("é", 201) }},
		"not UTF-8":            {"/title", func(p *tenants.Plan) { p.Title = "\xff" }},
		"alert at 0":           {"/alert/at", func(p *tenants.Plan) { p.Alert.At = 0 }},
		"alert above 1":        {"/alert/at", func(p *tenants.Plan) { p.Alert.At = 1.01 }},
		"alert NaN":            {"/alert/at", func(p *tenants.Plan) { p.Alert.At = math.NaN() }},
		"alert short":          {"/alert/for", func(p *tenants.Plan) { p.Alert.For = time.Millisecond }},
		"alert long":           {"/alert/for", func(p *tenants.Plan) { p.Alert.For = 25 * time.Hour }},
		"request log":          {"/request_log", func(p *tenants.Plan) { p.RequestLog = "some" }},
		"65 limits":            {"/limits", func(p *tenants.Plan) { p.Limits = make([]tenants.Rule, 65) }},
		"same name twice":      {"/limits/1/name", func(p *tenants.Plan) { p.Limits[1].Name = p.Limits[0].Name }},
		"no limit name":        {"/limits/0/name", func(p *tenants.Plan) { p.Limits[0].Name = "" }},
		"quote in name":        {"/limits/0/name", func(p *tenants.Plan) { p.Limits[0].Name = `a"b` }},
		"space first":          {"/limits/0/name", func(p *tenants.Plan) { p.Limits[0].Name = " a" }},
		"non-ASCII name":       {"/limits/0/name", func(p *tenants.Plan) { p.Limits[0].Name = "é" }},
		"long limit name":      {"/limits/0/name", func(p *tenants.Plan) { p.Limits[0].Name = strings.Repeat("a", 65) }},
		"scope address":        {"/limits/0/scope", func(p *tenants.Plan) { p.Limits[0].Scope = ratelimit.ScopeAddress }},
		"scope":                {"/limits/0/scope", func(p *tenants.Plan) { p.Limits[0].Scope = "planet" }},
		"applies_to":           {"/limits/0/applies_to", func(p *tenants.Plan) { p.Limits[0].AppliesTo = tenants.AppliesToAll }},
		"algorithm":            {"/limits/0/algorithm", func(p *tenants.Plan) { p.Limits[0].Algorithm = "magic" }},
		"internal algorithm":   {"/limits/0/algorithm", func(p *tenants.Plan) { p.Limits[0].Algorithm = ratelimit.SlidingWindowSegments }},
		"negative quota":       {"/limits/0/limit", func(p *tenants.Plan) { p.Limits[0].Quota = -1 }},
		"quota too large":      {"/limits/0/limit", func(p *tenants.Plan) { p.Limits[0].Quota = ratelimit.MaxQuota + 1 }},
		"no window":            {"/limits/0/window", func(p *tenants.Plan) { p.Limits[0].Window = 0 }},
		"negative window":      {"/limits/0/window", func(p *tenants.Plan) { p.Limits[0].Window = -time.Minute }},
		"window 1 ms":          {"/limits/0/window", func(p *tenants.Plan) { p.Limits[0].Window = time.Millisecond }},
		"window 367 d":         {"/limits/0/window", func(p *tenants.Plan) { p.Limits[0].Window = 367 * 24 * time.Hour }},
		"window in µs":         {"/limits/0/window", func(p *tenants.Plan) { p.Limits[0].Window = time.Second + time.Microsecond }},
		"window and refill":    {"/limits/0/refill", func(p *tenants.Plan) { p.Limits[0].Refill = ratelimit.Rate{Units: 1, Every: time.Second} }},
		"bucket with window":   {"/limits/1/window", func(p *tenants.Plan) { p.Limits[1].Window = time.Second }},
		"bucket, no refill":    {"/limits/1/refill/units", func(p *tenants.Plan) { p.Limits[1].Refill.Units = 0 }},
		"bucket, no every":     {"/limits/1/refill/every", func(p *tenants.Plan) { p.Limits[1].Refill.Every = 0 }},
		"bucket, every in µs":  {"/limits/1/refill/every", func(p *tenants.Plan) { p.Limits[1].Refill.Every = time.Microsecond }},
		"bucket never refills": {"/limits/1/refill", func(p *tenants.Plan) { p.Limits[1].Quota = ratelimit.MaxQuota }},
		"cost 0":               {"/limits/0/cost", func(p *tenants.Plan) { p.Limits[0].Cost = 0 }},
		"cost too large":       {"/limits/0/cost", func(p *tenants.Plan) { p.Limits[0].Cost = ratelimit.MaxCost + 1 }},
		"slowdown from 1":      {"/limits/0/slowdown/from", func(p *tenants.Plan) { p.Limits[0].Slowdown.From = 1 }},
		"slowdown NaN":         {"/limits/0/slowdown/from", func(p *tenants.Plan) { p.Limits[0].Slowdown.From = math.NaN() }},
		"slowdown 0":           {"/limits/0/slowdown/max_delay", func(p *tenants.Plan) { p.Limits[0].Slowdown.MaxDelay = 0 }},
		"slowdown of minutes":  {"/limits/0/slowdown/max_delay", func(p *tenants.Plan) { p.Limits[0].Slowdown.MaxDelay = 2 * time.Minute }},
		"on_store_failure":     {"/limits/0/on_store_failure", func(p *tenants.Plan) { p.Limits[0].OnStoreFailure = "panic" }},
		"mode":                 {"/limits/0/mode", func(p *tenants.Plan) { p.Limits[0].Mode = "off" }},
		"method with space":    {"/limits/1/match/methods/0", func(p *tenants.Plan) { p.Limits[1].Match.Methods[0] = "PO ST" }},
		"101 methods":          {"/limits/1/match", func(p *tenants.Plan) { p.Limits[1].Match.Methods = make([]string, 101) }},
		"101 paths":            {"/limits/1/match", func(p *tenants.Plan) { p.Limits[1].Match.Paths = make([]string, 101) }},
		"relative path":        {"/limits/1/match/paths/0", func(p *tenants.Plan) { p.Limits[1].Match.Paths[0] = "login" }},
		"star in a segment":    {"/limits/1/match/paths/0", func(p *tenants.Plan) { p.Limits[1].Match.Paths[0] = "/log*" }},
		"query in a pattern":   {"/limits/1/match/paths/0", func(p *tenants.Plan) { p.Limits[1].Match.Paths[0] = "/a?b" }},
		"encoded pattern":      {"/limits/1/match/paths/0", func(p *tenants.Plan) { p.Limits[1].Match.Paths[0] = "/%61" }},
		"long pattern":         {"/limits/1/match/paths/0", func(p *tenants.Plan) { p.Limits[1].Match.Paths[0] = "/" + strings.Repeat("a", 1024) }},
	} {
		p := goodPlan()
		c.spoil(&p)
		found := tenants.ValidatePlan(&p)
		require.NotEmpty(t, found, name)
		require.Equal(t, c.pointer, found[0].Pointer, name)
		require.NotEmpty(t, found[0].Message, name)
		if name != "65 limits" {
			require.Len(t, found, 1, name)
		}
	}
}

// B014: every combination of extreme numbers is refused, or its arithmetic stays within what the stores hold.
func TestExtremeNumbers(t *testing.T) {
	t.Parallel()
	accepted := 0
	for _, quota := range []int64{0, 1, math.MaxInt32, math.MaxInt32 + 1, 1_000_000_000_000, 1 << 53, math.MaxInt64, math.MinInt64} {
		for _, d := range []time.Duration{0, 1, time.Millisecond, time.Second, 31 * 24 * time.Hour, 366 * 24 * time.Hour, math.MaxInt64, math.MinInt64} {
			for _, units := range []int64{0, 1, 1 << 53, 1_000_000_000_000, math.MaxInt64, math.MinInt64} {
				p := tenants.Plan{Name: "p", Limits: []tenants.Rule{
					{Limit: ratelimit.Limit{Name: "w", Quota: quota, Window: d}},
					{Limit: ratelimit.Limit{Name: "b", Algorithm: ratelimit.LeakyBucket, Quota: quota, Refill: ratelimit.Rate{Units: units, Every: d}}},
				}}
				p.SetDefaults()
				for i := range p.Limits {
					one := p
					one.Limits = p.Limits[i : i+1]
					if len(tenants.ValidatePlan(&one)) > 0 {
						continue
					}
					accepted++
					l := &one.Limits[0].Limit
					span := l.Span()
					require.True(t, span > 0 || quota == 0, "%v", l)
					require.LessOrEqual(t, span, ratelimit.MaxSpan, "%v", l)
					require.Positive(t, l.UnitsPerHit(ratelimit.MaxCost))
				}
			}
		}
	}
	require.Positive(t, accepted)
}

func TestAddressPolicyValidation(t *testing.T) {
	t.Parallel()
	p := tenants.DefaultAddressPolicy()
	p.Limits[0].Scope = ratelimit.ScopeTenant
	p.Limits[1].AppliesTo = "some"
	found := tenants.ValidateAddressPolicy(&p)
	require.Len(t, found, 2)
	require.Equal(t, "/limits/0/scope", found[0].Pointer)
	require.Equal(t, "/limits/1/applies_to", found[1].Pointer)
}

func TestTenantValidation(t *testing.T) {
	t.Parallel()
	good := func() tenants.Tenant {
		in := tenants.Tenant{
			Slug: "school-17", Name: "x Bcc: a@evil <b> \u202e 😀", Plan: "light", ContactEmail: "office@example.org", Metadata: map[string]string{"k": "v"},
		}
		in.SetDefaults()
		return in
	}
	ok := good()
	require.Empty(t, tenants.ValidateTenant(&ok))
	tooMany := map[string]string{}
	for i := range 51 {
		tooMany[fmt.Sprint(i)] = ""
	}
	for name, c := range map[string]struct {
		pointer string
		spoil   func(in *tenants.Tenant)
	}{
		"no slug":         {"/slug", func(in *tenants.Tenant) { in.Slug = "" }},
		"slug with slash": {"/slug", func(in *tenants.Tenant) { in.Slug = "a/b" }},
		"no name":         {"/name", func(in *tenants.Tenant) { in.Name = "" }},
		"megabyte":        {"/name", func(in *tenants.Tenant) { in.Name = strings.Repeat("x", 1<<20) }},
		"line break":      {"/name", func(in *tenants.Tenant) { in.Name = "x\r\nBcc: a@evil" }},
		"NUL":             {"/name", func(in *tenants.Tenant) { in.Name = "a\x00b" }},
		"plan":            {"/plan", func(in *tenants.Tenant) { in.Plan = "a b" }},
		"status":          {"/status", func(in *tenants.Tenant) { in.Status = "gone" }},
		"mail break":      {"/contact_email", func(in *tenants.Tenant) { in.ContactEmail = "a@b.org\r\nBcc: c@d.org" }},
		"two mails":       {"/contact_email", func(in *tenants.Tenant) { in.ContactEmail = "a@b.org,c@d.org" }},
		"named mail":      {"/contact_email", func(in *tenants.Tenant) { in.ContactEmail = "A <a@b.org>" }},
		"no mail":         {"/contact_email", func(in *tenants.Tenant) { in.ContactEmail = "office" }},
		"long mail":       {"/contact_email", func(in *tenants.Tenant) { in.ContactEmail = strings.Repeat("a", 250) + "@b.org" }},
		"51 entries":      {"/metadata", func(in *tenants.Tenant) { in.Metadata = tooMany }},
		"metadata key":    {"/metadata", func(in *tenants.Tenant) { in.Metadata = map[string]string{"": "v"} }},
		"metadata value":  {"/metadata", func(in *tenants.Tenant) { in.Metadata = map[string]string{"canary": "\x00"} }},
	} {
		in := good()
		c.spoil(&in)
		found := tenants.ValidateTenant(&in)
		require.Len(t, found, 1, name)
		require.Equal(t, c.pointer, found[0].Pointer, name)
		require.NotContains(t, found[0].Message+found[0].Pointer, "canary")
	}
	stored := good()
	stored.Name = "x\r\nBcc: a@evil <b> \u202e 😀"
	require.Empty(t, tenants.ValidateStoredTenant(&stored), "one from before is served")
	bad := "a\x00"
	require.Len(t, tenants.ValidateTenantPatch(&tenants.TenantPatch{Name: &bad}), 1)
	require.Empty(t, tenants.ValidateTenantPatch(&tenants.TenantPatch{}), "what is not named is not checked")
	empty := ""
	require.Empty(t, tenants.ValidateTenantPatch(&tenants.TenantPatch{ContactEmail: &empty}), "an address may be taken away")
}

func TestCredentialValidation(t *testing.T) {
	t.Parallel()
	require.Empty(t, tenants.ValidateAPIKey(&tenants.APIKey{Name: "app"}, noon))
	require.Empty(t, tenants.ValidateAPIKey(&tenants.APIKey{Name: "app", ExpiresAt: noon.Add(1)}, noon))
	require.Equal(t, "/expires_at", tenants.ValidateAPIKey(&tenants.APIKey{Name: "app", ExpiresAt: noon}, noon)[0].Pointer)
	require.Equal(t, "/expires_at", tenants.ValidateAPIKey(&tenants.APIKey{Name: "app", ExpiresAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}, noon)[0].Pointer)
	require.Equal(t, "/name", tenants.ValidateAPIKey(&tenants.APIKey{}, noon)[0].Pointer)

	good := tenants.ServiceToken{Name: "edge", Exempt: []ratelimit.Scope{"address"}, May: []tenants.Permission{"check", "status", "refund", "identify"}}
	require.Empty(t, tenants.ValidateServiceToken(&good, noon))
	require.Equal(t, "/exempt/0", tenants.ValidateServiceToken(&tenants.ServiceToken{Name: "e", Exempt: []ratelimit.Scope{"tenant"}}, noon)[0].Pointer)
	require.Equal(t, "/exempt/1", tenants.ValidateServiceToken(&tenants.ServiceToken{Name: "e", Exempt: []ratelimit.Scope{"address", "address"}}, noon)[0].Pointer)
	require.Equal(t, "/may/1", tenants.ValidateServiceToken(&tenants.ServiceToken{Name: "e", May: []tenants.Permission{"check", "root"}}, noon)[0].Pointer)
	require.Equal(t, "/may/1", tenants.ValidateServiceToken(&tenants.ServiceToken{Name: "e", May: []tenants.Permission{"check", "check"}}, noon)[0].Pointer)

	require.Empty(t, tenants.ValidateAdminToken(&tenants.AdminToken{Name: "ops", Role: tenants.Viewer}, noon))
	require.Equal(t, "/role", tenants.ValidateAdminToken(&tenants.AdminToken{Name: "ops"}, noon)[0].Pointer)
}

func TestOtherValidation(t *testing.T) {
	t.Parallel()
	require.Empty(t, tenants.ValidateOverride(&tenants.Override{LimitName: "l", Quota: 0, Reason: "exams"}, noon))
	require.Len(t, tenants.ValidateOverride(&tenants.Override{LimitName: "", Quota: -1, Reason: "", ExpiresAt: noon}, noon), 4)
	good := tenants.Network{CIDR: netip.MustParsePrefix("2001:db8::/32"), Action: tenants.Allow}
	require.Empty(t, tenants.ValidateNetwork(&good, noon))
	for _, cidr := range []netip.Prefix{{}, netip.MustParsePrefix("10.0.0.1/8"), netip.MustParsePrefix("::ffff:10.0.0.0/104")} {
		require.Equal(t, "/cidr", tenants.ValidateNetwork(&tenants.Network{CIDR: cidr, Action: tenants.Deny}, noon)[0].Pointer)
	}
	require.Equal(t, "/action", tenants.ValidateNetwork(&tenants.Network{CIDR: good.CIDR, Action: "drop"}, noon)[0].Pointer)
	require.Empty(t, tenants.ValidateMode(ratelimit.Shadow))
	require.NotEmpty(t, tenants.ValidateMode(""))
	for s, want := range map[string]bool{"": false, "u42": true, "ü\n*": true, "a\x00": false, "\xff": false, strings.Repeat("a", 256): true, strings.Repeat("a", 257): false} {
		require.Equal(t, want, tenants.ValidIdentifier(s), "%q", s)
	}
}
