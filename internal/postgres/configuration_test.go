package postgres_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// now is when the files of these tests are applied.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// haveAll is an installation with something in every section.
func haveAll(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	ctx := t.Context()
	require.NoError(t, b.InstallDefaults(ctx))
	b.haveTenant(t, "school-17", "light")
	b.haveTenant(t, "school-18", "pro")
	_, _, err := b.PutOverride(ctx, alice, "school-17", tenants.Override{LimitName: "requests-per-minute", Quota: 5000, Reason: "exams", ExpiresAt: now().Add(time.Hour)})
	require.NoError(t, err)
	_, err = b.CreateNetwork(ctx, alice, tenants.Network{CIDR: prefix("203.0.113.0/24"), Action: tenants.Deny, Reason: "scan"})
	require.NoError(t, err)
	require.NoError(t, b.SetMode(ctx, alice, ratelimit.Enforce))
	return b
}

func (b *bench) configuration(tb testing.TB) tenants.Configuration {
	tb.Helper()
	c, err := b.Configuration(tb.Context())
	require.NoError(tb, err)
	return c
}

// changed names the changes of an answer, such as "create tenant school-19".
func changed(done tenants.Applied) (names []string) {
	for _, c := range done.Changes {
		names = append(names, c.Action+" "+c.Resource+" "+c.Name)
	}
	return names
}

// edited is an export with something created, changed and left out in every section.
func edited(c tenants.Configuration) tenants.Configuration {
	c.Mode = ratelimit.Shadow
	c.Plans = append(slices.Clone(c.Plans), plan("gold", 99))
	c.Plans[1].Limits = slices.Clone(c.Plans[1].Limits)
	c.Plans[1].Limits[0].Quota = 2500 // light
	c.Plans = slices.Delete(c.Plans, 0, 1)
	c.Tenants = []tenants.ConfiguredTenant{
		{Tenant: tenant("school-17", "gold")},
		{Tenant: tenant("school-19", "light"), Overrides: []tenants.Override{{LimitName: "requests-per-minute", Quota: 1, Reason: "loop"}}},
	}
	c.Networks = []tenants.Network{{CIDR: prefix("2001:db8::/32"), Action: tenants.Deny, Reason: "scan"}}
	c.AddressPolicy = &tenants.AddressPolicy{Limits: tenants.DefaultAddressPolicy().Limits[:2]}
	return c
}

// Guarantee: applying what was read changes nothing: no version, no audit entry, with and without prune.
func TestApplyingAnExportChangesNothing(t *testing.T) {
	t.Parallel()
	b := haveAll(t)
	before := b.configuration(t)
	entries := b.number(t, `SELECT count(*) FROM audit_log`)
	for _, o := range []tenants.ApplyOptions{{}, {Prune: true}, {DryRun: true, Prune: true}} {
		o.Now = now()
		done, err := b.ApplyConfiguration(t.Context(), alice, b.configuration(t), o)
		require.NoError(t, err)
		require.Equal(t, tenants.Applied{Version: before.Version, Changes: []tenants.AppliedChange{}}, done)
	}
	require.Equal(t, before, b.configuration(t))
	require.Equal(t, entries, b.number(t, `SELECT count(*) FROM audit_log`))
}

// Guarantee: a dry run answers exactly what applying then does, and leaves no trace; applying is one version, and one audit
// entry per object with the same fields; doing it again changes nothing; replicas that load the difference have the same.
func TestDryRunIsWhatApplyDoes(t *testing.T) {
	t.Parallel()
	b := haveAll(t)
	ctx := t.Context()
	before := b.configuration(t)
	entries := b.number(t, `SELECT count(*) FROM audit_log`)

	o := tenants.ApplyOptions{DryRun: true, Prune: true, Now: now()}
	dry, err := b.ApplyConfiguration(ctx, alice, edited(before), o)
	require.NoError(t, err)
	require.Equal(t, before.Version, dry.Version)
	require.Equal(t, before, b.configuration(t))
	require.Equal(t, entries, b.number(t, `SELECT count(*) FROM audit_log`))

	o.DryRun, o.If.Versions = false, []int64{dry.Version}
	done, err := b.ApplyConfiguration(ctx, alice, edited(before), o)
	require.NoError(t, err)
	require.Equal(t, dry.Changes, done.Changes)
	require.Equal(t, before.Version+1, done.Version)
	require.Equal(t, []string{
		"update plan light", "create plan gold",
		"update tenant school-17", "delete override school-17/requests-per-minute",
		"create tenant school-19", "create override school-19/requests-per-minute",
		"update address_policy address-policy",
		"create network deny 2001:db8::/32", "delete network deny 203.0.113.0/24",
		"update mode mode",
		"delete tenant school-18", "delete plan dedicated",
	}, changed(done))

	list, err := b.ListAudit(ctx, audit.Filter{}, tenants.Page{Limit: len(done.Changes)})
	require.NoError(t, err)
	slices.Reverse(list.Items)
	for i, e := range list.Items {
		said, err := json.Marshal(done.Changes[i].Diff)
		require.NoError(t, err)
		kept, err := json.Marshal(e.Diff)
		require.NoError(t, err)
		require.JSONEq(t, string(said), string(kept))
		require.Equal(t, alice, e.Actor)
	}
	require.Equal(t, entries+int64(len(done.Changes)), b.number(t, `SELECT count(*) FROM audit_log`))
	require.Regexp(t, `^\d+$`, list.Items[7].ResourceID, "a network is audited under its id")

	o.If = tenants.Precondition{}
	again, err := b.ApplyConfiguration(ctx, alice, edited(before), o)
	require.NoError(t, err)
	require.Empty(t, again.Changes)

	o.If.Versions = []int64{before.Version}
	_, err = b.ApplyConfiguration(ctx, alice, edited(before), o)
	require.ErrorIs(t, err, tenants.ErrVersion)

	all, err := b.Load(ctx, 0)
	require.NoError(t, err)
	some, err := b.Load(ctx, before.Version)
	require.NoError(t, err)
	require.False(t, some.Full)
	require.ElementsMatch(t, all.Tenants, some.Tenants)
	require.Len(t, some.DeletedTenants, 1)
	require.Len(t, some.DeletedPlans, 1)
	require.Len(t, some.DeletedNetworks, 1)
	require.Len(t, some.DeletedOverrides, 1)
}

// Guarantee: without prune nothing is deleted, and a section that is not described is left alone even with it.
func TestOnlyPruneDeletes(t *testing.T) {
	t.Parallel()
	b := haveAll(t)
	done, err := b.ApplyConfiguration(t.Context(), alice, edited(b.configuration(t)), tenants.ApplyOptions{Now: now()})
	require.NoError(t, err)
	require.NotContains(t, fmt.Sprint(changed(done)), "delete")
	before := b.configuration(t)
	require.Len(t, before.Tenants, 3)

	done, err = b.ApplyConfiguration(t.Context(), alice, tenants.Configuration{}, tenants.ApplyOptions{Prune: true, Now: now()})
	require.NoError(t, err)
	require.Empty(t, done.Changes)
	done, err = b.ApplyConfiguration(t.Context(), alice, tenants.Configuration{Networks: []tenants.Network{}}, tenants.ApplyOptions{Prune: true, Now: now()})
	require.NoError(t, err)
	require.Len(t, done.Changes, 2, "an empty section says that there is none")
	require.Equal(t, before.Tenants, b.configuration(t).Tenants)
}

// Guarantee: what cannot be done is refused as a whole, with the place or the object in the way.
func TestApplyRefusals(t *testing.T) {
	t.Parallel()
	b := haveAll(t)
	before := b.configuration(t)
	var invalid *tenants.InvalidError
	var conflict *tenants.ConflictError

	_, err := b.ApplyConfiguration(t.Context(), alice, tenants.Configuration{
		Plans:   []tenants.Plan{plan("gold", 1)},
		Tenants: []tenants.ConfiguredTenant{{Tenant: tenant("a", "gold")}, {Tenant: tenant("b", "golden")}},
	}, tenants.ApplyOptions{Now: now()})
	require.ErrorAs(t, err, &invalid)
	require.Equal(t, []tenants.FieldError{{Pointer: "/tenants/1/plan", Message: "must name a plan that exists"}}, invalid.Findings)

	_, err = b.ApplyConfiguration(t.Context(), alice, tenants.Configuration{Plans: []tenants.Plan{plan("gold", 1)}}, tenants.ApplyOptions{Prune: true, Now: now()})
	require.ErrorAs(t, err, &conflict)
	require.Contains(t, conflict.Detail, "plan light cannot be pruned: it is used by tenant school-17")

	_, err = b.ApplyConfiguration(t.Context(), alice, tenants.Configuration{
		Plans: []tenants.Plan{plan("gold", 1)}, Tenants: []tenants.ConfiguredTenant{{Tenant: tenant("a", "light")}},
	}, tenants.ApplyOptions{Prune: true, Now: now()})
	require.ErrorAs(t, err, &invalid)
	require.Contains(t, invalid.Findings[0].Message, "would be pruned")

	_, err = b.ApplyConfiguration(t.Context(), audit.Actor{}, edited(before), tenants.ApplyOptions{Now: now()})
	require.ErrorIs(t, err, audit.ErrNoActor)
	require.Equal(t, before, b.configuration(t))
}

// Guarantee: a failure half-way leaves nothing of what went before it, and no audit entry.
func TestAFailureHalfWayLeavesNothing(t *testing.T) {
	t.Parallel()
	b := haveAll(t)
	before := b.configuration(t)
	entries := b.number(t, `SELECT count(*) FROM audit_log`)
	b.exec(t, `ALTER TABLE networks ADD CONSTRAINT no_more CHECK (cidr <> '2001:db8::/32')`) // plans and tenants are written by then
	for _, dry := range []bool{false, true} {
		_, err := b.ApplyConfiguration(t.Context(), alice, edited(before), tenants.ApplyOptions{Prune: true, DryRun: dry, Now: now()})
		require.ErrorContains(t, err, "no_more", "a dry run fails as applying does")
	}
	require.Equal(t, before, b.configuration(t))
	require.Equal(t, entries, b.number(t, `SELECT count(*) FROM audit_log`))
}

// Guarantee: an old file may hold exceptions that have ended since, and they stay ended.
func TestEndedExceptionsOfAnOldFile(t *testing.T) {
	t.Parallel()
	b := haveAll(t)
	file := b.configuration(t)
	file.Networks[0].ExpiresAt = now().Add(30 * time.Minute)
	file.Tenants[1].Overrides = []tenants.Override{{LimitName: "requests-per-minute", Quota: 1, Reason: "x", ExpiresAt: now().Add(30 * time.Minute)}}
	later := now().Add(45 * time.Minute)
	done, err := b.ApplyConfiguration(t.Context(), alice, file, tenants.ApplyOptions{Prune: true, Now: later})
	require.NoError(t, err)
	require.Equal(t, []string{"update network deny 203.0.113.0/24"}, changed(done), "what is stored ends as the file says")
	require.Len(t, done.Warnings, 1)
	require.Contains(t, done.Warnings[0], "override school-18/requests-per-minute ended at ")

	file = tenants.Configuration{Tenants: []tenants.ConfiguredTenant{{Tenant: tenant("school-17", "light"), Overrides: []tenants.Override{{LimitName: "none", Quota: 1, Reason: "x"}}}}}
	done, err = b.ApplyConfiguration(t.Context(), alice, file, tenants.ApplyOptions{Now: later})
	require.NoError(t, err)
	require.Equal(t, []string{"override school-17/none waits: plan light has no limit of that name"}, done.Warnings)
}

// Guarantee: pruning tenants says how many keys end with them, and what broke in the database is named.
func TestApplyWarns(t *testing.T) {
	t.Parallel()
	b := haveAll(t)
	c, _, err := tenants.NewCredential(tenants.KindAPIKey, rand.Reader)
	require.NoError(t, err)
	_, err = b.CreateKey(t.Context(), alice, "school-17", tenants.APIKey{ID: c.ID, Name: "app", Hash: c.Hash})
	require.NoError(t, err)
	file := b.configuration(t)
	file.Tenants = file.Tenants[1:]
	done, err := b.ApplyConfiguration(t.Context(), alice, file, tenants.ApplyOptions{Prune: true, DryRun: true, Now: now()})
	require.NoError(t, err)
	require.Equal(t, []string{"pruning 1 tenant(s) ends 1 API key(s) for good"}, done.Warnings)

	file = b.configuration(t)
	for i := range file.Plans {
		limit := &file.Plans[i].Limits[0].Limit
		limit.Quota++ // acts on the live counter: nothing to warn of
		if file.Plans[i].Name == "light" {
			limit.Window *= 2
		}
	}
	done, err = b.ApplyConfiguration(t.Context(), alice, file, tenants.ApplyOptions{DryRun: true, Now: now()})
	require.NoError(t, err)
	require.Equal(t, []string{
		"plan light: limit requests-per-minute starts new counters, because its algorithm, window or scope changes: what was used is forgiven",
	}, done.Warnings)

	b.exec(t, `ALTER TABLE overrides DROP CONSTRAINT overrides_quota_check`)
	b.exec(t, `UPDATE overrides SET quota = -1`)
	broken := b.configuration(t)
	require.Len(t, broken.Broken, 1)
	file = b.configuration(t)
	file.Tenants[0].Overrides = []tenants.Override{{LimitName: "requests-per-minute", Quota: 7, Reason: "mended"}}
	done, err = b.ApplyConfiguration(t.Context(), alice, file, tenants.ApplyOptions{Now: now()})
	require.NoError(t, err)
	require.Contains(t, done.Warnings[0], "of overrides cannot be read")
	require.Empty(t, b.configuration(t).Broken, "applying mends it")
}

// Guarantee: the largest file is applied well within its bound, and twice is no work.
func TestTheLargestFileIsAppliedInTime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	file := tenants.Configuration{Plans: []tenants.Plan{plan("light", 10)}}
	for i := range tenants.MaxConfiguredTenants {
		file.Tenants = append(file.Tenants, tenants.ConfiguredTenant{Tenant: tenant(fmt.Sprintf("t%05d", i), "light")})
	}
	start := time.Now()
	done, err := b.ApplyConfiguration(t.Context(), alice, file, tenants.ApplyOptions{Now: now()})
	require.NoError(t, err)
	require.Len(t, done.Changes, len(file.Tenants)+1)
	created := time.Since(start)
	start = time.Now()
	done, err = b.ApplyConfiguration(t.Context(), alice, file, tenants.ApplyOptions{Prune: true, Now: now()})
	require.NoError(t, err)
	require.Empty(t, done.Changes)
	t.Logf("%d tenants: created in %s, compared in %s", len(file.Tenants), created, time.Since(start))
}
