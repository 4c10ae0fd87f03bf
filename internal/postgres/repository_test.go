package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

func TestPlanKeepsEveryField(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := tenants.Plan{
		Name: "full", Title: `"Grüße" <b> \ %`, Alert: tenants.Alert{At: 0.5, For: 90 * time.Second}, RequestLog: tenants.LogSampled,
		Limits: []tenants.Rule{
			{
				Limit: ratelimit.Limit{
					Name: "requests", Scope: ratelimit.ScopeUser, Algorithm: ratelimit.FixedWindow, Quota: 1_000_000_000_000, Window: 366 * 24 * time.Hour, Cost: 7,
					Slowdown: &ratelimit.Slowdown{From: 0.25, MaxDelay: 1500 * time.Millisecond}, OnStoreFailure: ratelimit.FailLocal, Mode: ratelimit.Shadow,
				},
				Match: tenants.Match{Methods: []string{"POST"}, Paths: []string{"/a/*", "/*/b"}},
			},
			{Limit: ratelimit.Limit{Name: "exports", Algorithm: ratelimit.TokenBucket, Quota: 10, Refill: ratelimit.Rate{Units: 3, Every: time.Minute}}},
			{Limit: ratelimit.Limit{Name: "none", Quota: 0, Window: time.Second}},
		},
	}
	p.SetDefaults()
	require.Empty(t, tenants.ValidatePlan(&p))
	stored, err := b.CreatePlan(t.Context(), alice, p)
	require.NoError(t, err)
	require.Positive(t, stored.Version)
	require.NotZero(t, stored.ID)
	require.False(t, stored.CreatedAt.IsZero())
	require.Equal(t, p.Limits, stored.Limits)
	read, err := b.Plan(t.Context(), "full")
	require.NoError(t, err)
	require.Equal(t, stored, read)
	p.ID, p.Version, p.CreatedAt, p.UpdatedAt = stored.ID, stored.Version, stored.CreatedAt, stored.UpdatedAt
	require.Equal(t, p, stored)

	_, err = b.CreatePlan(t.Context(), alice, p)
	require.ErrorIs(t, err, tenants.ErrConflict)
	require.ErrorContains(t, err, "a plan of this name exists")
}

func TestPreconditions(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := t.Context()
	p := plan("light", 10)
	_, _, err := b.PutPlan(ctx, alice, p, tenants.Precondition{Versions: []int64{1}})
	require.ErrorIs(t, err, tenants.ErrVersion, "If-Match on what is not there")
	_, _, err = b.PutPlan(ctx, alice, p, tenants.Precondition{Any: true})
	require.ErrorIs(t, err, tenants.ErrVersion)
	first, created, err := b.PutPlan(ctx, alice, p, tenants.Precondition{Absent: true})
	require.NoError(t, err)
	require.True(t, created)
	require.Equal(t, "plan.create", b.lastEntry(t).Action)
	_, _, err = b.PutPlan(ctx, alice, p, tenants.Precondition{Absent: true})
	require.ErrorIs(t, err, tenants.ErrVersion)

	p.Limits[0].Quota = 20
	stored, created, err := b.PutPlan(ctx, alice, p, tenants.Precondition{Versions: []int64{first.Version}})
	require.NoError(t, err)
	require.False(t, created)
	require.Greater(t, stored.Version, first.Version)
	entry := b.lastEntry(t)
	require.Equal(t, "plan.update", entry.Action)
	require.Equal(t, alice, entry.Actor)
	require.Len(t, entry.Diff, 1)
	from, to := field(entry, "limits.requests-per-minute.limit")
	require.Equal(t, "10", from)
	require.Equal(t, "20", to)

	require.ErrorIs(t, b.DeletePlan(ctx, alice, "light", tenants.Precondition{Versions: []int64{first.Version}}), tenants.ErrVersion)
	school := b.haveTenant(t, "school-17", "light")
	require.ErrorIs(t, b.DeletePlan(ctx, alice, "light", tenants.Precondition{Versions: []int64{stored.Version}}), tenants.ErrConflict)
	require.NoError(t, b.DeleteTenant(ctx, alice, "school-17", tenants.Precondition{Versions: []int64{school.Version}}))
	require.NoError(t, b.DeletePlan(ctx, alice, "light", tenants.Precondition{Versions: []int64{stored.Version}}))
	require.Equal(t, "plan.delete", b.lastEntry(t).Action)
	require.ErrorIs(t, b.DeletePlan(ctx, alice, "light", tenants.Precondition{}), tenants.ErrNotFound)
}

// B074: of two administrators who saw the same version one wins, and the other is told.
func TestParallelWritersOfOneVersion(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	light := b.havePlan(t, "light", 10)
	school := b.haveTenant(t, "school-17", "light")
	for round := range int64(10) {
		var won, lost atomic.Int64
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				var err error
				if i%2 == 0 {
					_, _, err = b.PutPlan(t.Context(), alice, plan("light", 100*round+int64(i)), tenants.Precondition{Versions: []int64{light.Version + round}})
				} else {
					name := fmt.Sprintf("name %d %d", round, i)
					_, err = b.PatchTenant(t.Context(), alice, "school-17", tenants.TenantPatch{Name: &name}, tenants.Precondition{Versions: []int64{school.Version + round}})
				}
				switch {
				case err == nil:
					won.Add(1)
				case errorIs(err, tenants.ErrVersion):
					lost.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 2, won.Load(), "one plan writer and one tenant writer")
		require.EqualValues(t, 4, lost.Load())
	}
	require.EqualValues(t, 10, b.number(t, `SELECT count(*) FROM audit_log WHERE action = 'plan.update'`))
	require.EqualValues(t, 10, b.number(t, `SELECT count(*) FROM audit_log WHERE action = 'tenant.update'`))
}

func TestTenantLife(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := t.Context()
	b.havePlan(t, "light", 10)
	b.havePlan(t, "pro", 20)
	in := tenant("school-17", "light")
	in.ContactEmail, in.Metadata = "office@example.org", map[string]string{"k": "v <b>"}
	stored, err := b.CreateTenant(ctx, alice, in)
	require.NoError(t, err)
	in.ID, in.Version, in.CreatedAt, in.UpdatedAt = stored.ID, stored.Version, stored.CreatedAt, stored.UpdatedAt
	require.Equal(t, in, stored)

	_, err = b.CreateTenant(ctx, alice, tenant("school-17", "light"))
	require.ErrorIs(t, err, tenants.ErrConflict)
	_, err = b.CreateTenant(ctx, alice, tenant("other", "no-such-plan"))
	require.ErrorIs(t, err, tenants.ErrUnknownPlan)

	pro, suspended := "pro", tenants.Suspended
	patched, err := b.PatchTenant(ctx, alice, "school-17", tenants.TenantPatch{Plan: &pro, Status: &suspended}, tenants.Precondition{Versions: []int64{stored.Version}})
	require.NoError(t, err)
	require.Equal(t, "pro", patched.Plan)
	require.Equal(t, tenants.Suspended, patched.Status)
	require.Equal(t, in.Metadata, patched.Metadata, "a patch never touches what it does not name")
	require.Equal(t, in.ContactEmail, patched.ContactEmail)
	from, to := field(b.lastEntry(t), "plan")
	require.Equal(t, `"light"`, from)
	require.Equal(t, `"pro"`, to)
	require.Len(t, b.lastEntry(t).Diff, 2)
	_, err = b.PatchTenant(ctx, alice, "school-17", tenants.TenantPatch{Metadata: &map[string]string{}}, tenants.Precondition{Versions: []int64{patched.Version}})
	require.NoError(t, err)
	none := "none"
	_, err = b.PatchTenant(ctx, alice, "school-17", tenants.TenantPatch{Plan: &none}, tenants.Precondition{})
	require.ErrorIs(t, err, tenants.ErrUnknownPlan)

	reset, err := b.ResetTenant(ctx, alice, "school-17")
	require.NoError(t, err)
	require.EqualValues(t, 1, reset.Generation)
	require.Empty(t, reset.Metadata)
	require.Equal(t, "tenant.reset", b.lastEntry(t).Action)
	_, err = b.ResetTenant(ctx, alice, "nobody")
	require.ErrorIs(t, err, tenants.ErrNotFound)

	// The name may be given again; the counters' owner may not.
	require.NoError(t, b.DeleteTenant(ctx, alice, "school-17", tenants.Precondition{Any: true}))
	_, err = b.Tenant(ctx, "school-17")
	require.ErrorIs(t, err, tenants.ErrNotFound)
	again := b.haveTenant(t, "school-17", "light")
	require.NotEqual(t, stored.ID, again.ID)
}

func TestListTenantsFilters(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.havePlan(t, "light", 10)
	b.havePlan(t, "pro", 20)
	b.haveTenant(t, "alpha", "light")
	b.haveTenant(t, "beta", "pro")
	odd := tenant("gamma", "pro")
	odd.Name, odd.Status = `100%_\ sure`, tenants.Suspended
	_, err := b.CreateTenant(t.Context(), alice, odd)
	require.NoError(t, err)
	for _, c := range []struct {
		filter tenants.TenantFilter
		want   string
	}{
		{tenants.TenantFilter{}, "alpha beta gamma"},
		{tenants.TenantFilter{Plan: "pro"}, "beta gamma"},
		{tenants.TenantFilter{Status: tenants.Suspended}, "gamma"},
		{tenants.TenantFilter{Search: "ALPH"}, "alpha"},
		{tenants.TenantFilter{Search: "name of"}, "alpha beta"},
		{tenants.TenantFilter{Search: "%_"}, "gamma"},
		{tenants.TenantFilter{Search: `\`}, "gamma"},
		{tenants.TenantFilter{Search: "%alpha"}, ""},
		{tenants.TenantFilter{Search: "beta", Plan: "light"}, ""},
	} {
		list, err := b.ListTenants(t.Context(), c.filter, tenants.Page{})
		require.NoError(t, err)
		slugs := make([]string, len(list.Items))
		for i := range list.Items {
			slugs[i] = list.Items[i].Slug
		}
		require.Equal(t, c.want, strings.Join(slugs, " "), "%+v", c.filter)
	}
}

func TestEveryChangeNeedsAnActorAndLeavesOneEntry(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.havePlan(t, "light", 10)
	b.haveTenant(t, "school-17", "light")
	later := time.Now().Add(time.Hour)
	name := "renamed"
	var network int64
	changes := []struct {
		action string
		do     func(ctx context.Context, a audit.Actor) error
	}{
		{"plan.create", func(ctx context.Context, a audit.Actor) error {
			_, err := b.CreatePlan(ctx, a, plan("p2", 1))
			return err
		}},
		{"plan.update", func(ctx context.Context, a audit.Actor) error {
			_, _, err := b.PutPlan(ctx, a, plan("p2", 2), tenants.Precondition{})
			return err
		}},
		{"plan.delete", func(ctx context.Context, a audit.Actor) error {
			return b.DeletePlan(ctx, a, "p2", tenants.Precondition{})
		}},
		{"tenant.create", func(ctx context.Context, a audit.Actor) error {
			_, err := b.CreateTenant(ctx, a, tenant("t2", "light"))
			return err
		}},
		{"tenant.update", func(ctx context.Context, a audit.Actor) error {
			_, err := b.PatchTenant(ctx, a, "t2", tenants.TenantPatch{Name: &name}, tenants.Precondition{})
			return err
		}},
		{"tenant.reset", func(ctx context.Context, a audit.Actor) error { _, err := b.ResetTenant(ctx, a, "t2"); return err }},
		{"tenant.delete", func(ctx context.Context, a audit.Actor) error {
			return b.DeleteTenant(ctx, a, "t2", tenants.Precondition{})
		}},
		{"api_key.create", func(ctx context.Context, a audit.Actor) error {
			_, err := b.CreateKey(ctx, a, "school-17", key("k1"))
			return err
		}},
		{"api_key.rotate", func(ctx context.Context, a audit.Actor) error {
			_, err := b.RotateKey(ctx, a, "school-17", "k1", key("k2"), later)
			return err
		}},
		{"api_key.revoke", func(ctx context.Context, a audit.Actor) error { return b.RevokeKey(ctx, a, "school-17", "k2") }},
		{"service_token.create", func(ctx context.Context, a audit.Actor) error {
			_, err := b.CreateServiceToken(ctx, a, service("s1"))
			return err
		}},
		{"service_token.rotate", func(ctx context.Context, a audit.Actor) error {
			_, err := b.RotateServiceToken(ctx, a, "s1", service("s2"), later)
			return err
		}},
		{"service_token.revoke", func(ctx context.Context, a audit.Actor) error { return b.RevokeServiceToken(ctx, a, "s2") }},
		{"admin_token.create", func(ctx context.Context, a audit.Actor) error {
			_, err := b.CreateAdminToken(ctx, a, tenants.AdminToken{ID: "a1", Name: "ops", Role: tenants.Operator, Hash: [32]byte{1}})
			return err
		}},
		{"admin_token.revoke", func(ctx context.Context, a audit.Actor) error { return b.RevokeAdminToken(ctx, a, "a1") }},
		{"address_policy.update", func(ctx context.Context, a audit.Actor) error {
			_, err := b.PutAddressPolicy(ctx, a, tenants.DefaultAddressPolicy(), tenants.Precondition{Versions: []int64{1}})
			return err
		}},
		{"mode.update", func(ctx context.Context, a audit.Actor) error { return b.SetMode(ctx, a, ratelimit.Shadow) }},
		{"override.put", func(ctx context.Context, a audit.Actor) error {
			_, _, err := b.PutOverride(ctx, a, "school-17", tenants.Override{LimitName: "requests-per-minute", Quota: 5, Reason: "exam week"})
			return err
		}},
		{"override.delete", func(ctx context.Context, a audit.Actor) error {
			return b.DeleteOverride(ctx, a, "school-17", "requests-per-minute")
		}},
		{"network.create", func(ctx context.Context, a audit.Actor) error {
			n, err := b.CreateNetwork(ctx, a, tenants.Network{CIDR: prefix("203.0.113.0/24"), Action: tenants.Deny, Reason: "scan"})
			network = n.ID
			return err
		}},
		{"network.delete", func(ctx context.Context, a audit.Actor) error { return b.DeleteNetwork(ctx, a, network) }},
	}
	for _, c := range changes {
		entries, version := b.number(t, `SELECT count(*) FROM audit_log`), b.number(t, `SELECT version FROM config_version`)
		require.ErrorIs(t, c.do(t.Context(), audit.Actor{}), audit.ErrNoActor, c.action)
		require.ErrorIs(t, c.do(t.Context(), audit.Actor{Kind: "cli"}), audit.ErrNoActor, c.action)
		require.Equal(t, version, b.number(t, `SELECT version FROM config_version`), c.action)
		require.NoError(t, c.do(t.Context(), alice), c.action)
		require.Equal(t, entries+1, b.number(t, `SELECT count(*) FROM audit_log`), c.action)
		require.Equal(t, version+1, b.number(t, `SELECT version FROM config_version`), c.action)
		entry := b.lastEntry(t)
		require.Equal(t, c.action, entry.Action)
		require.Equal(t, alice, entry.Actor)
		require.NotEmpty(t, entry.Diff)
		require.NotEmpty(t, entry.ResourceID)
	}
	require.Zero(t, b.number(t, `SELECT count(*) FROM audit_log WHERE diff::text ILIKE '%hash%'`), "no secret in a diff")
}

func TestAuditLogIsAppendOnly(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.havePlan(t, "light", 10)
	for _, sql := range []string{`UPDATE audit_log SET action = 'x'`, `DELETE FROM audit_log`, `TRUNCATE audit_log`, `UPDATE audit_log SET action = 'x' WHERE false`} {
		_, err := b.pool.Exec(t.Context(), sql)
		require.ErrorContains(t, err, "append-only", sql)
	}
	require.EqualValues(t, 1, b.number(t, `SELECT count(*) FROM audit_log`))
}

func TestListAuditFilters(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.havePlan(t, "light", 10)
	b.haveTenant(t, "school-17", "light")
	bob := audit.Actor{Kind: "cli", Name: "Bob"}
	require.NoError(t, b.SetMode(t.Context(), bob, ratelimit.Shadow))
	all, err := b.ListAudit(t.Context(), audit.Filter{}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, all.Items, 3)
	require.Equal(t, "mode.update", all.Items[0].Action, "newest first")
	for _, c := range []struct {
		filter audit.Filter
		want   int
	}{
		{audit.Filter{Actor: "Bob"}, 1},
		{audit.Filter{Actor: "abc"}, 2},
		{audit.Filter{Action: "plan.create"}, 1},
		{audit.Filter{Resource: "tenant"}, 1},
		{audit.Filter{Resource: "tenant", ResourceID: "school-17"}, 1},
		{audit.Filter{Resource: "tenant", ResourceID: "school-18"}, 0},
		{audit.Filter{From: all.Items[1].Time}, 2},
		{audit.Filter{To: all.Items[1].Time}, 1},
		{audit.Filter{From: all.Items[1].Time, To: all.Items[0].Time, Actor: "Alice"}, 1},
	} {
		list, err := b.ListAudit(t.Context(), c.filter, tenants.Page{})
		require.NoError(t, err)
		require.Len(t, list.Items, c.want, "%+v", c.filter)
	}
	// Long and odd foreign text never makes a change fail.
	odd := audit.Actor{Kind: "cli", Name: strings.Repeat("é", 5000), RequestID: "a\x00b\xff", Address: strings.Repeat("x", 1<<20)}
	require.NoError(t, b.SetMode(t.Context(), odd, ratelimit.Enforce))
	entry := b.lastEntry(t)
	require.Equal(t, "ab", entry.Actor.RequestID)
	require.LessOrEqual(t, len(entry.Actor.Name), 512)
}

func TestDefaultsAreInstalledOnceEver(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := t.Context()
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = b.InstallDefaults(ctx) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	for name, quota := range map[string]int64{"light": 2_000, "pro": 10_000, "dedicated": 20_000} {
		p, err := b.Plan(ctx, name)
		require.NoError(t, err)
		require.Len(t, p.Limits, 1)
		require.Equal(t, quota, p.Limits[0].Quota)
		require.Equal(t, &ratelimit.Slowdown{From: 0.8, MaxDelay: 2 * time.Second}, p.Limits[0].Slowdown)
	}
	policy, err := b.AddressPolicy(ctx)
	require.NoError(t, err)
	require.Equal(t, tenants.DefaultAddressPolicy().Limits, policy.Limits)
	require.Equal(t, "system", b.lastEntry(t).Actor.Kind)

	// What the operator does afterwards stays done.
	require.NoError(t, b.DeletePlan(ctx, alice, "pro", tenants.Precondition{}))
	_, _, err = b.PutPlan(ctx, alice, plan("light", 5), tenants.Precondition{})
	require.NoError(t, err)
	_, err = b.PutAddressPolicy(ctx, alice, tenants.AddressPolicy{}, tenants.Precondition{Versions: []int64{policy.Version}})
	require.NoError(t, err)
	before := b.number(t, `SELECT version FROM config_version`)
	require.NoError(t, b.InstallDefaults(ctx))
	require.Equal(t, before, b.number(t, `SELECT version FROM config_version`))
	_, err = b.Plan(ctx, "pro")
	require.ErrorIs(t, err, tenants.ErrNotFound)
	p, err := b.Plan(ctx, "light")
	require.NoError(t, err)
	require.EqualValues(t, 5, p.Limits[0].Quota)
	policy, err = b.AddressPolicy(ctx)
	require.NoError(t, err)
	require.Empty(t, policy.Limits)
	_, err = b.PutAddressPolicy(ctx, alice, tenants.AddressPolicy{}, tenants.Precondition{Versions: []int64{1}})
	require.ErrorIs(t, err, tenants.ErrVersion)
}

func TestMode(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	m, err := b.Mode(t.Context())
	require.NoError(t, err)
	require.Empty(t, m)
	require.NoError(t, b.SetMode(t.Context(), alice, ratelimit.Shadow))
	m, err = b.Mode(t.Context())
	require.NoError(t, err)
	require.Equal(t, ratelimit.Shadow, m)
	require.Equal(t, ratelimit.Shadow, b.snapshot(t).StoredMode)
}

func TestClipKeepsTextWhole(t *testing.T) {
	t.Parallel()
	require.Equal(t, "short", postgres.Clip("short"))
	require.Equal(t, "a", postgres.Clip("\x00a\xff"))
	long := postgres.Clip("x" + strings.Repeat("é", 600))
	require.Equal(t, "x"+strings.Repeat("é", 255), long, "cut between characters")
}
