package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// beforeTenants is how many steps lead back to a log without tenants.
const beforeTenants = 2

// liveAndDie has every kind of change happen to a tenant, until it is deleted, and returns what the audit log must have, oldest first.
func (b *bench) liveAndDie(t *testing.T, slug string) []string {
	t.Helper()
	ctx := t.Context()
	name, suspended := "renamed", tenants.Suspended
	limit := "requests-per-minute"
	id := func(n int) string { return strings.ReplaceAll(slug, "-", "") + "k" + strconv.Itoa(n) }
	incident := b.number(t, `INSERT INTO incidents (kind, subject, tenant, facts, since, opened_at, value, peak)
		VALUES ('tenant_high', $1, $1, '{}', now(), now(), 1, 1) RETURNING id`, slug)
	for _, do := range []func() error{
		func() error { _, err := b.CreateTenant(ctx, alice, tenant(slug, "light")); return err },
		func() error {
			_, err := b.PatchTenant(ctx, alice, slug, tenants.TenantPatch{Name: &name}, tenants.Precondition{})
			return err
		},
		func() error {
			_, err := b.PatchTenant(ctx, alice, slug, tenants.TenantPatch{Status: &suspended}, tenants.Precondition{})
			return err
		},
		func() error { _, err := b.ResetTenant(ctx, alice, slug); return err },
		func() error { _, err := b.CreateKey(ctx, alice, slug, key(id(1))); return err },
		func() error {
			_, err := b.RotateKey(ctx, alice, slug, id(1), key(id(2)), time.Now().Add(time.Hour))
			return err
		},
		func() error { return b.RevokeKey(ctx, alice, slug, id(2)) },
		func() error {
			_, _, err := b.PutOverride(ctx, alice, slug, tenants.Override{LimitName: limit, Quota: 5, Reason: "exam week"})
			return err
		},
		func() error { return b.DeleteOverride(ctx, alice, slug, limit) },
		func() error { _, err := b.AckIncident(ctx, alice, incident); return err },
		func() error {
			refused := audit.Refusal{Actor: alice, Action: "request.refused", Resource: "override", ResourceID: slug + "/" + limit, Cause: "role"}
			ofKey := audit.Refusal{Actor: alice, Action: "request.refused", Resource: "api_key", Tenant: slug, Cause: "role"}
			return b.RecordRefusals(ctx, []audit.Entry{refused.Entry(1, now(), now()), ofKey.Entry(1, now(), now())})
		},
		func() error { return b.applyTo(t, slug, 7) },
		func() error { return b.applyTo(t, slug, 0) },
		func() error { return b.DeleteTenant(ctx, alice, slug, tenants.Precondition{}) },
	} {
		require.NoError(t, do())
	}
	return []string{
		"tenant.create", "tenant.update", "tenant.update", "tenant.reset", "api_key.create", "api_key.rotate", "api_key.revoke",
		"override.put", "override.delete", "alert.ack", "request.refused", "request.refused",
		"tenant.update", "override.put", "tenant.update", "override.delete", "tenant.delete",
	}
}

// applyTo renames the tenant by a configuration file, and sets its override to a quota, or removes it for none.
func (b *bench) applyTo(t *testing.T, slug string, quota int64) error {
	t.Helper()
	c := b.configuration(t)
	for i := range c.Tenants {
		if of := &c.Tenants[i]; of.Slug == slug {
			of.Name += " by file"
			of.Overrides = nil
			if quota > 0 {
				of.Overrides = []tenants.Override{{LimitName: "requests-per-minute", Quota: quota, Reason: "by file"}}
			}
		}
	}
	_, err := b.ApplyConfiguration(t.Context(), alice, c, tenants.ApplyOptions{Prune: true, Now: now()})
	return err
}

// entriesOf walks the log of a tenant in small pages, oldest entry first.
func (b *bench) entriesOf(t *testing.T, f audit.Filter) (found []audit.Entry) {
	t.Helper()
	for p := (tenants.Page{Limit: 3}); ; {
		list, err := b.ListAudit(t.Context(), f, p)
		require.NoError(t, err)
		found = append(found, list.Items...)
		if p.Cursor = list.Next; p.Cursor == "" {
			slices.Reverse(found)
			return found
		}
	}
}

func actionsOf(entries []audit.Entry) []string {
	actions := make([]string, len(entries))
	for i := range entries {
		actions[i] = entries[i].Action
	}
	return actions
}

// Guarantee: whatever happens to a tenant is in one list, under its slug, also when it is gone; and nothing of others is.
func TestWhatConcernsATenantIsFoundUnderIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.havePlan(t, "light", 10)
	want := b.liveAndDie(t, "school-1")
	require.Equal(t, want, b.liveAndDie(t, "school-17"), "its slug begins like the other's")
	for _, slug := range []string{"school-1", "school-17"} {
		found := b.entriesOf(t, audit.Filter{Tenant: slug})
		require.Equal(t, want, actionsOf(found))
		for _, e := range found {
			require.Equal(t, slug, e.Tenant)
		}
	}
	all := b.entriesOf(t, audit.Filter{})
	of := map[string]int{}
	for i := range all {
		of[all[i].Tenant]++
	}
	require.Equal(t, map[string]int{"": 1, "school-1": len(want), "school-17": len(want)}, of, "the plan is nobody's")

	require.Empty(t, b.entriesOf(t, audit.Filter{Tenant: "school"}))
	require.Empty(t, b.entriesOf(t, audit.Filter{Tenant: "school-1", ResourceID: "school-17"}))
	require.Len(t, b.entriesOf(t, audit.Filter{Tenant: "school-1", Resource: "api_key"}), 4)
	require.Len(t, b.entriesOf(t, audit.Filter{Tenant: "school-1", Action: "tenant.update", Actor: "Alice"}), 4)
	require.Empty(t, b.entriesOf(t, audit.Filter{Tenant: "school-1", Actor: "bob"}))
	third := b.entriesOf(t, audit.Filter{Tenant: "school-1"})[3].Time
	require.Len(t, b.entriesOf(t, audit.Filter{Tenant: "school-1", From: third}), len(want)-3)
	require.Len(t, b.entriesOf(t, audit.Filter{Tenant: "school-1", To: third}), 3)
}

// Guarantee: entries from before the log knew tenants are found like those after; what a previous release writes meanwhile, too.
func TestEntriesFromBeforeAreFoundUnderTheirTenant(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.havePlan(t, "light", 10)
	require.NoError(t, postgres.MigrateDown(t.Context(), b.url, beforeTenants))
	want := b.liveAndDie(t, "school-17")
	require.NoError(t, postgres.MigrateUp(t.Context(), b.url, quiet()))
	require.Equal(t, want, actionsOf(b.entriesOf(t, audit.Filter{Tenant: "school-17"})))

	require.NoError(t, postgres.MigrateDown(t.Context(), b.url, 1))
	second := b.liveAndDie(t, "school-18") // between the steps
	require.NoError(t, postgres.MigrateUp(t.Context(), b.url, quiet()))
	require.Equal(t, second, actionsOf(b.entriesOf(t, audit.Filter{Tenant: "school-18"})))
	require.Len(t, b.entriesOf(t, audit.Filter{Tenant: "school-17"}), len(want), "once each")
}

// Guarantee: odd rows, which only a hand can write, are kept out of the way of their transaction.
func TestOddEntriesHaveNoTenant(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, values := range []string{
		`'tenant', '', '[]'`, `'override', '/x', '[]'`, `'api_key', 'gone', 'null'`, `'api_key', '', '{"field":"tenant"}'`, `'api_key', 'x', '[{"field":"tenant","to":null}]'`,
		`'alert', '99999999999999999999', '[]'`, `'alert', 'x', '[]'`, `'alert', '7', '[]'`, `'mode', 'mode', '[]'`,
	} {
		b.exec(t, `INSERT INTO audit_log (actor_kind, actor_name, action, resource, resource_id, diff) VALUES ('cli', 'root', 'x', `+values+`)`)
	}
	require.Zero(t, b.number(t, `SELECT count(*) FROM audit_tenants`))
	require.NoError(t, postgres.MigrateDown(t.Context(), b.url, beforeTenants))
	require.NoError(t, postgres.MigrateUp(t.Context(), b.url, quiet()))
	require.Zero(t, b.number(t, `SELECT count(*) FROM audit_tenants`))
}

// Guarantee: a role that may only add to the log, and read it, has its entries noted, and cannot alter what is noted.
func TestARoleThatMayOnlyAddToTheLogHasItsTenantsNoted(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	role := pgx.Identifier{fmt.Sprint("auditor_", time.Now().UnixNano())}.Sanitize()
	b.exec(t, `CREATE ROLE `+role)
	t.Cleanup(func() {
		_, err := b.pool.Exec(context.WithoutCancel(t.Context()), `DROP OWNED BY `+role+`; DROP ROLE `+role)
		require.NoError(t, err)
	})
	b.exec(t, `GRANT SELECT, INSERT ON audit_log TO `+role+`; GRANT SELECT ON audit_tenants TO `+role)
	config, err := pgxpool.ParseConfig(b.url)
	require.NoError(t, err)
	config.ConnConfig.RuntimeParams["role"] = role[1 : len(role)-1]
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	limited := &bench{Repository: postgres.NewRepository(pool, postgres.WithAnswerWithin(time.Minute)), pool: pool, url: b.url}
	refused := audit.Refusal{Actor: alice, Action: "request.refused", Resource: "tenant", ResourceID: "school-17"}
	require.NoError(t, limited.RecordRefusals(t.Context(), []audit.Entry{refused.Entry(1, now(), now())}))
	require.Len(t, limited.entriesOf(t, audit.Filter{Tenant: "school-17"}), 1)
	_, err = pool.Exec(t.Context(), `INSERT INTO audit_tenants (audit_id, at, tenant) VALUES (7, now(), 'x')`)
	require.ErrorContains(t, err, "permission denied")
}

// TestSoakTenantsOfAnOldAuditLog notes the tenants of a large log while changes go on: none of them waits for it.
func TestSoakTenantsOfAnOldAuditLog(t *testing.T) {
	testenv.Soak(t)
	b := newBench(t)
	b.havePlan(t, "light", 10)
	b.haveTenant(t, "busy", "light")
	require.NoError(t, postgres.MigrateDown(t.Context(), b.url, beforeTenants))
	const rows = 3_000_000
	b.exec(t, `INSERT INTO audit_log (at, actor_kind, actor_id, actor_name, action, resource, resource_id, diff)
		SELECT '2026-01-01'::timestamptz + make_interval(secs => n * 8), 'admin_token', 'id' || n % 50, 'name' || n % 50, 'x.y',
			CASE n % 4 WHEN 0 THEN 'tenant' WHEN 1 THEN 'override' ELSE 'api_key' END,
			CASE n % 4 WHEN 0 THEN 'school-' || n % 3000 WHEN 1 THEN 'school-' || n % 3000 || '/m' WHEN 2 THEN 'key' || n ELSE 'key' || n - 1 END,
			CASE n % 4 WHEN 2 THEN jsonb_build_array(jsonb_build_object('field', 'tenant', 'to', 'school-' || n % 3000)) ELSE '[]' END
		FROM generate_series(1, $1) n`, rows)
	b.exec(t, `ANALYZE audit_log`)
	done := make(chan error, 1)
	started := time.Now()
	go func() { done <- postgres.MigrateUp(t.Context(), b.url, quiet()) }()
	var slowest time.Duration
	changes := 0
	for migrated := false; !migrated; changes++ {
		at := time.Now()
		_, err := b.ResetTenant(t.Context(), alice, "busy")
		require.NoError(t, err)
		slowest = max(slowest, time.Since(at))
		select {
		case err := <-done:
			require.NoError(t, err)
			migrated = true
		default:
		}
	}
	t.Logf("%d entries in %v; the slowest of %d changes meanwhile took %v", rows, time.Since(started), changes, slowest)
	require.Less(t, slowest, 1500*time.Millisecond, "the service's bound")
	b.exec(t, `ANALYZE audit_tenants`)
	require.EqualValues(t, rows+changes+1, b.number(t, `SELECT count(*) FROM audit_tenants`))
	for _, f := range []audit.Filter{
		{Tenant: "school-18"},
		{Tenant: "nobody"},
		{Tenant: "school-18", Action: "none"},
		{Tenant: "school-18", Actor: "name18", From: time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)},
	} {
		at := time.Now()
		_, err := b.ListAudit(t.Context(), f, tenants.Page{Limit: 50})
		require.NoError(t, err)
		t.Logf("%+v: %v", f, time.Since(at))
		require.Less(t, time.Since(at), 200*time.Millisecond, "%+v", f)
	}
}
