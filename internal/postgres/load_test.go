package postgres_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// describe is everything a snapshot answers, in comparable form.
func describe(t require.TestingT, s *tenants.Snapshot, keys, services []string) string {
	type tenantFacts struct {
		Tenant tenants.Tenant
		Plan   tenants.Plan
		Limits []tenants.EffectiveRule
	}
	facts := map[string]any{"version": s.Version, "policy": s.AddressRules, "mode": s.StoredMode, "count": s.TenantCount()}
	for view := range s.Tenants() {
		bySlug, ok := s.Tenant(view.Slug)
		require.True(t, ok)
		require.Same(t, view, bySlug)
		facts["tenant "+view.Slug] = tenantFacts{view.Tenant, *view.Plan, view.Limits}
	}
	for n := range 4 {
		name := fmt.Sprintf("p%d", n)
		if p, ok := s.Plan(name); ok {
			facts["plan "+name] = *p
		}
		slug := fmt.Sprintf("t%d", n)
		_, facts["has "+slug] = s.Tenant(slug)
		facts[fmt.Sprintf("denied %d", n)] = s.NetworkDenied(netip.MustParseAddr(fmt.Sprintf("10.%d.0.1", n)), time.Unix(1, 0))
	}
	for _, id := range keys {
		if k, ok := s.APIKey(id); ok {
			facts["key "+id] = *k
		}
	}
	for _, id := range services {
		if k, ok := s.ServiceToken(id); ok {
			facts["service "+id] = *k
		}
	}
	raw, err := json.MarshalIndent(facts, "", " ")
	require.NoError(t, err)
	return string(raw)
}

// Whatever administrators do, loading what changed gives what loading everything gives.
func TestIncrementalLoadEqualsFullLoad(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := t.Context()
	incremental := tenants.NewDirectory(0)
	var keys, services []string
	born := 0
	ops := map[string]func(rt *rapid.T){
		"put plan": func(rt *rapid.T) {
			p := plan(fmt.Sprintf("p%d", rapid.IntRange(0, 3).Draw(rt, "plan")), rapid.Int64Range(0, 9).Draw(rt, "quota"))
			_, _, err := b.PutPlan(ctx, alice, p, tenants.Precondition{})
			require.NoError(rt, err)
		},
		"delete plan": func(rt *rapid.T) {
			_ = b.DeletePlan(ctx, alice, fmt.Sprintf("p%d", rapid.IntRange(0, 3).Draw(rt, "plan")), tenants.Precondition{}) // may be used or absent
		},
		"create tenant": func(rt *rapid.T) {
			_, _ = b.CreateTenant(ctx, alice, tenant(fmt.Sprintf("t%d", rapid.IntRange(0, 3).Draw(rt, "tenant")), fmt.Sprintf("p%d", rapid.IntRange(0, 3).Draw(rt, "plan"))))
		},
		"delete tenant": func(rt *rapid.T) {
			_ = b.DeleteTenant(ctx, alice, fmt.Sprintf("t%d", rapid.IntRange(0, 3).Draw(rt, "tenant")), tenants.Precondition{})
		},
		"move tenant": func(rt *rapid.T) {
			to := fmt.Sprintf("p%d", rapid.IntRange(0, 3).Draw(rt, "plan"))
			_, _ = b.PatchTenant(ctx, alice, fmt.Sprintf("t%d", rapid.IntRange(0, 3).Draw(rt, "tenant")), tenants.TenantPatch{Plan: &to}, tenants.Precondition{})
		},
		"reset tenant": func(rt *rapid.T) {
			_, _ = b.ResetTenant(ctx, alice, fmt.Sprintf("t%d", rapid.IntRange(0, 3).Draw(rt, "tenant")))
		},
		"put override": func(rt *rapid.T) {
			_, _, _ = b.PutOverride(ctx, alice, fmt.Sprintf("t%d", rapid.IntRange(0, 3).Draw(rt, "tenant")),
				tenants.Override{LimitName: rapid.SampledFrom([]string{"requests-per-minute", "other"}).Draw(rt, "limit"), Quota: rapid.Int64Range(0, 99).Draw(rt, "quota"), Reason: "r"})
		},
		"delete override": func(rt *rapid.T) {
			_ = b.DeleteOverride(ctx, alice, fmt.Sprintf("t%d", rapid.IntRange(0, 3).Draw(rt, "tenant")), rapid.SampledFrom([]string{"requests-per-minute", "other"}).Draw(rt, "limit"))
		},
		"create key": func(rt *rapid.T) {
			born++
			id := fmt.Sprintf("k%d", born)
			if _, err := b.CreateKey(ctx, alice, fmt.Sprintf("t%d", rapid.IntRange(0, 3).Draw(rt, "tenant")), key(id)); err == nil {
				keys = append(keys, id)
			}
		},
		"revoke key": func(rt *rapid.T) {
			if len(keys) > 0 {
				_ = b.RevokeKey(ctx, alice, fmt.Sprintf("t%d", rapid.IntRange(0, 3).Draw(rt, "tenant")), rapid.SampledFrom(keys).Draw(rt, "key"))
			}
		},
		"service token": func(rt *rapid.T) {
			born++
			id := fmt.Sprintf("s%d", born)
			_, err := b.CreateServiceToken(ctx, alice, service(id))
			require.NoError(rt, err)
			services = append(services, id)
			if rapid.Bool().Draw(rt, "revoke") {
				require.NoError(rt, b.RevokeServiceToken(ctx, alice, rapid.SampledFrom(services).Draw(rt, "token")))
			}
		},
		"network": func(rt *rapid.T) {
			list, err := b.ListNetworks(ctx, tenants.NetworkFilter{}, tenants.Page{})
			require.NoError(rt, err)
			if len(list.Items) > 0 && rapid.Bool().Draw(rt, "delete") {
				require.NoError(rt, b.DeleteNetwork(ctx, alice, rapid.SampledFrom(list.Items).Draw(rt, "network").ID))
				return
			}
			cidr := rapid.SampledFrom([]string{"10.0.0.0/8", "10.0.0.0/16", "10.1.0.0/16", "10.2.0.0/16", "10.2.0.1/32"}).Draw(rt, "cidr")
			_, _ = b.CreateNetwork(ctx, alice, tenants.Network{CIDR: prefix(cidr), Action: rapid.SampledFrom([]tenants.NetworkAction{tenants.Deny, tenants.Allow}).Draw(rt, "action")})
		},
		"policy": func(rt *rapid.T) {
			p := tenants.DefaultAddressPolicy()
			p.Limits = p.Limits[:rapid.IntRange(0, 3).Draw(rt, "limits")]
			_, err := b.PutAddressPolicy(ctx, alice, p, tenants.Precondition{})
			require.NoError(rt, err)
		},
		"mode": func(rt *rapid.T) {
			require.NoError(rt, b.SetMode(ctx, alice, rapid.SampledFrom([]ratelimit.Mode{ratelimit.Enforce, ratelimit.Shadow}).Draw(rt, "mode")))
		},
	}
	names := make([]string, 0, len(ops))
	for name := range ops {
		names = append(names, name)
	}
	sort.Strings(names)
	rapid.Check(t, func(rt *rapid.T) {
		for range rapid.IntRange(0, 12).Draw(rt, "ops") {
			ops[rapid.SampledFrom(names).Draw(rt, "op")](rt)
		}
		since := incremental.Snapshot().Version
		c, err := b.Load(ctx, since)
		require.NoError(rt, err)
		require.Equal(rt, since == 0, c.Full)
		require.Empty(rt, incremental.Apply(c, time.Unix(1, 0)))
		all, err := b.Load(ctx, 0)
		require.NoError(rt, err)
		full := tenants.NewSnapshot(all, time.Unix(1, 0))
		require.Equal(rt, describe(rt, full, keys, services), describe(rt, incremental.Snapshot(), keys, services))
	})
}

// Two changes at once must not become visible in the wrong order: a poller that has seen version n would never ask for
// a smaller one that commits later.
func TestPollerNeverMissesAChange(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.havePlan(t, "light", 10)
	const writers, each = 6, 40
	for w := range writers {
		b.haveTenant(t, fmt.Sprintf("w%d", w), "light")
	}
	d := tenants.NewDirectory(0)
	var done atomic.Bool
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for range each {
				if _, err := b.ResetTenant(t.Context(), alice, fmt.Sprintf("w%d", w)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	go func() { wg.Wait(); done.Store(true) }()
	for {
		last := done.Load() // one more round after the writers are through
		c, err := b.Load(t.Context(), d.Snapshot().Version)
		require.NoError(t, err)
		d.Apply(c, time.Unix(1, 0))
		if last {
			break
		}
	}
	for w := range writers {
		view, ok := d.Snapshot().Tenant(fmt.Sprintf("w%d", w))
		require.True(t, ok)
		require.EqualValues(t, each, view.Generation)
	}
}

func TestReplicaThatIsFarBehindLoadsEverything(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.havePlan(t, "p0", 10)
	b.haveTenant(t, "t0", "p0")
	b.haveTenant(t, "t1", "p0")
	d := tenants.NewDirectory(0)
	load := func() tenants.Changes {
		c, err := b.Load(t.Context(), d.Snapshot().Version)
		require.NoError(t, err)
		d.Apply(c, time.Unix(1, 0))
		return c
	}
	load()
	require.NoError(t, b.DeleteTenant(t.Context(), alice, "t0", tenants.Precondition{}))
	b.exec(t, `UPDATE config_deletions SET deleted_at = now() - interval '25 hours'`)
	require.NoError(t, b.DeleteTenant(t.Context(), alice, "t1", tenants.Precondition{})) // forgets the first deletion
	require.EqualValues(t, 1, b.number(t, `SELECT count(*) FROM config_deletions`))
	require.True(t, load().Full)
	require.Zero(t, d.Snapshot().TenantCount())
	require.False(t, load().Full)

	b.exec(t, `UPDATE config_version SET version = 1`) // a restored backup
	require.True(t, load().Full)
}

// B038: rows that break every rule, written past the API and the constraints.
func TestMalformedRowsHarmOnlyTheirOwner(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := t.Context()
	for _, name := range []string{"good", "nulllimit", "algorithm", "window", "planfields", "bucket", "slowdown", "paths"} {
		b.havePlan(t, name, 77)
		b.haveTenant(t, "on-"+name, name)
	}
	for _, name := range []string{"longname", "dangling", "metadata", "nullname", "nullplan", "status"} {
		b.haveTenant(t, name, "good")
	}
	for _, id := range []string{"k1", "k2", "k3", "k4", "k5"} {
		_, err := b.CreateKey(ctx, alice, "on-good", key(id))
		require.NoError(t, err)
	}
	_, err := b.CreateServiceToken(ctx, alice, service("s1"))
	require.NoError(t, err)
	_, _, err = b.PutOverride(ctx, alice, "on-good", tenants.Override{LimitName: "requests-per-minute", Quota: 5, Reason: "r"})
	require.NoError(t, err)
	_, err = b.PutAddressPolicy(ctx, alice, tenants.DefaultAddressPolicy(), tenants.Precondition{})
	require.NoError(t, err)
	n, err := b.CreateNetwork(ctx, alice, tenants.Network{CIDR: prefix("10.0.0.0/8"), Action: tenants.Deny})
	require.NoError(t, err)

	b.exec(t, `DO $$ DECLARE c record; BEGIN
		FOR c IN SELECT conrelid::regclass AS tab, conname FROM pg_constraint
			WHERE contype IN ('c', 'f') AND connamespace = 'public'::regnamespace AND conrelid::regclass::text NOT IN ('rate_limit_windows') LOOP
			EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', c.tab, c.conname);
		END LOOP;
		FOR c IN SELECT attrelid::regclass AS tab, attname FROM pg_attribute a JOIN pg_class r ON r.oid = attrelid
			WHERE attnotnull AND attnum > 0 AND attidentity = '' AND relname IN ('plans', 'limits', 'address_limits', 'tenants', 'overrides', 'api_keys', 'service_tokens', 'networks')
				AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = attrelid AND indisprimary AND attnum = ANY(indkey)) LOOP
			EXECUTE format('ALTER TABLE %s ALTER COLUMN %I DROP NOT NULL', c.tab, c.attname);
		END LOOP; END $$`)
	limitOf := func(set string, name string) {
		b.exec(t, `UPDATE limits SET `+set+` WHERE plan_id = (SELECT id FROM plans WHERE name = $1)`, name)
	}
	limitOf(`quota = NULL`, "nulllimit")
	limitOf(`algorithm = 'magic'`, "algorithm")
	limitOf(`window_ms = -5`, "window")
	limitOf(`window_ms = NULL, algorithm = 'token_bucket', refill_units = 0`, "bucket")
	limitOf(`slowdown_from = 'NaN', slowdown_max_delay_ms = 9223372036854775807`, "slowdown")
	limitOf(`match_paths = ARRAY[NULL, 'x']`, "paths")
	b.exec(t, `UPDATE plans SET alert_at = 'NaN', alert_for_ms = NULL, request_log = NULL, created_at = 'infinity' WHERE name = 'planfields'`)
	b.exec(t, `UPDATE tenants SET name = repeat('x', 1000000) WHERE slug = 'longname'`)
	b.exec(t, `UPDATE tenants SET plan_id = 999999 WHERE slug = 'dangling'`)
	b.exec(t, `UPDATE tenants SET plan_id = NULL WHERE slug = 'nullplan'`)
	b.exec(t, `UPDATE tenants SET metadata = '[1]' WHERE slug = 'metadata'`)
	b.exec(t, `UPDATE tenants SET name = NULL, generation = NULL, version = NULL WHERE slug = 'nullname'`)
	b.exec(t, `UPDATE tenants SET status = 'frozen', created_at = '-infinity' WHERE slug = 'status'`)
	b.exec(t, `UPDATE api_keys SET hash = 'short' WHERE id = 'k1'`)
	b.exec(t, `UPDATE api_keys SET expires_at = 'infinity' WHERE id = 'k2'`)
	b.exec(t, `UPDATE api_keys SET created_at = '20000-01-01', expires_at = '20000-01-01' WHERE id = 'k3'`)
	b.exec(t, `UPDATE api_keys SET expires_at = '0001-01-01 00:00:00+00' WHERE id = 'k4'`)
	b.exec(t, `UPDATE api_keys SET revoked_at = '0044-03-15 BC' WHERE id = 'k5'`)
	b.exec(t, `UPDATE service_tokens SET may = ARRAY['everything']`)
	b.exec(t, `UPDATE overrides SET quota = -1`)
	b.exec(t, `UPDATE networks SET action = 'explode' WHERE id = $1`, n.ID)
	b.exec(t, `UPDATE address_limits SET quota = NULL WHERE position = 0`)
	b.exec(t, `UPDATE config_version SET mode = 'chaos'`)

	// A poller that starts on this serves, says so once per row, and counts.
	var log bytes.Buffer
	var counted atomic.Int64
	d := tenants.NewDirectory(0)
	p := tenants.NewPoller(d, b, tenants.PollerOptions{
		Clock: time.Now, Log: slog.New(slog.NewTextHandler(&log, nil)), OnBroken: func(tenants.BrokenRow) { counted.Add(1) },
	})
	require.NoError(t, p.Refresh(ctx))
	s := d.Snapshot()
	builtin := tenants.BuiltinLimits()[0].Limit
	for _, slug := range []string{
		"on-nulllimit", "on-algorithm", "on-window", "on-bucket", "on-slowdown", "on-paths", "on-planfields",
		"longname", "dangling", "nullplan", "metadata", "nullname", "status",
	} {
		view, ok := s.Tenant(slug)
		require.True(t, ok, slug)
		require.Len(t, view.Limits, 1, slug)
		require.Equal(t, builtin, *view.Limits[0].LimitAt(time.Unix(1, 0)), slug)
		require.Contains(t, log.String(), strings.TrimPrefix(slug, "on-"), "the log names the row")
	}
	good, ok := s.Tenant("on-good")
	require.True(t, ok)
	require.EqualValues(t, 77, good.Limits[0].LimitAt(time.Unix(1, 0)).Quota, "the plan's limit, without the broken override")
	_, ok = s.VerifyAPIKey(tenants.Credential{Kind: tenants.KindAPIKey, ID: "k1", Hash: key("k1").Hash}, time.Now())
	require.False(t, ok)
	_, ok = s.VerifyAPIKey(tenants.Credential{Kind: tenants.KindAPIKey, ID: "k2", Hash: key("k2").Hash}, time.Now())
	require.True(t, ok, "infinity is never")
	_, ok = s.VerifyAPIKey(tenants.Credential{Kind: tenants.KindAPIKey, ID: "k3", Hash: key("k3").Hash}, time.Now())
	require.True(t, ok, "so is the year 20000")
	for _, id := range []string{"k4", "k5"} {
		_, ok = s.VerifyAPIKey(tenants.Credential{Kind: tenants.KindAPIKey, ID: id, Hash: key(id).Hash}, time.Now())
		require.False(t, ok, "the first day of all is long past, and a revocation is one whenever it was: %s", id)
	}
	keys, err := b.ListKeys(ctx, "on-good", tenants.CredentialFilter{}, tenants.Page{})
	require.NoError(t, err)
	require.NotEmpty(t, keys.Items)
	_, err = json.Marshal(keys.Items)
	require.NoError(t, err, "every time can be shown")
	_, ok = s.VerifyServiceToken(tenants.Credential{Kind: tenants.KindServiceToken, ID: "s1", Hash: service("s1").Hash}, time.Now())
	require.False(t, ok)
	require.False(t, s.NetworkDenied(netip.MustParseAddr("10.0.0.1"), time.Unix(1, 0)))
	require.Equal(t, tenants.DefaultAddressPolicy().Limits, s.AddressRules)
	require.Empty(t, s.StoredMode)
	require.GreaterOrEqual(t, counted.Load(), int64(19))
	require.Less(t, log.Len(), 64<<10, "a megabyte of name is not logged")

	// The administrator sees a broken plan as what holds, and putting it cures it.
	read, err := b.Plan(ctx, "nulllimit")
	require.NoError(t, err)
	require.Equal(t, tenants.BuiltinLimits(), read.Limits)
	_, _, err = b.PutPlan(ctx, alice, plan("nulllimit", 3), tenants.Precondition{Versions: []int64{read.Version}})
	require.NoError(t, err)
	require.NoError(t, p.Refresh(ctx))
	view, ok := d.Snapshot().Tenant("on-nulllimit")
	require.True(t, ok)
	require.EqualValues(t, 3, view.Limits[0].Rule.Quota)
}

// 10,000 tenants with a key each load in under 2 s, the queries included.
func TestTenThousandTenantsLoadInTime(t *testing.T) {
	b := newBench(t)
	require.NoError(t, b.InstallDefaults(t.Context()))
	b.manyTenants(t, 10_000)
	var d *tenants.Directory
	var read, took time.Duration
	// The bound is for a machine that does this: on one that is busy with other tests, the best of five counts.
	for range 5 {
		d = tenants.NewDirectory(0)
		start := time.Now()
		c, err := b.Load(t.Context(), 0)
		require.NoError(t, err)
		read = time.Since(start)
		require.Empty(t, d.Apply(c, time.Unix(1, 0)))
		if took = time.Since(start); took < 2*time.Second {
			break
		}
	}
	require.Equal(t, 10_000, d.Snapshot().TenantCount())
	require.Less(t, took, 2*time.Second)

	name := "renamed"
	_, err := b.PatchTenant(t.Context(), alice, "school-5000", tenants.TenantPatch{Name: &name}, tenants.Precondition{})
	require.NoError(t, err)
	start := time.Now()
	c, err := b.Load(t.Context(), d.Snapshot().Version)
	require.NoError(t, err)
	readChange, start := time.Since(start), time.Now()
	d.Apply(c, time.Unix(1, 0))
	t.Logf("10,000 tenants: read %v, build %v; one change: read %v, build %v", read, took-read, readChange, time.Since(start))
	require.Len(t, c.Tenants, 1)
	require.Empty(t, c.APIKeys)
	view, ok := d.Snapshot().Tenant("school-5000")
	require.True(t, ok)
	require.Equal(t, name, view.Name)
}

func (b *bench) manyTenants(tb testing.TB, n int) {
	tb.Helper()
	b.exec(tb, `INSERT INTO tenants (slug, name, plan_id, metadata, changed_in)
		SELECT 'school-' || n, 'School ' || n, p.id, '{"region": "north"}', 1 FROM generate_series(1, $1::int) n, plans p WHERE p.name = 'light'`, n)
	b.exec(tb, `INSERT INTO api_keys (id, tenant_id, name, hash, changed_in) SELECT 'key' || id, id, 'app', sha256(slug::bytea), 1 FROM tenants`)
}

func BenchmarkFullLoad(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := newBench(b)
			require.NoError(b, r.InstallDefaults(b.Context()))
			r.manyTenants(b, n)
			b.ReportAllocs()
			for b.Loop() {
				c, err := r.Load(context.Background(), 0)
				require.NoError(b, err)
				tenants.NewDirectory(0).Apply(c, time.Unix(1, 0))
			}
		})
	}
}
