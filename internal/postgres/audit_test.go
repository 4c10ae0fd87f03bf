package postgres_test

import (
	"fmt"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// TestTheAuditLogCannotBeChangedByHand: not by the role the service runs as, owner of every table, and not by a superuser
// who forgets himself, triggers switched off or not.
func TestTheAuditLogCannotBeChangedByHand(t *testing.T) {
	t.Parallel()
	superuser := testenv.EmptyPostgres(t)
	at, err := url.Parse(superuser)
	require.NoError(t, err)
	role := "service_" + at.Path[1:]
	admin := session(t, superuser)
	for _, sql := range []string{ // it ends with the server of the tests
		`CREATE ROLE ` + pgx.Identifier{role}.Sanitize() + ` LOGIN`, `GRANT ALL ON SCHEMA public TO ` + pgx.Identifier{role}.Sanitize(),
	} {
		_, err := admin.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	at.User = url.User(role)
	require.NoError(t, postgres.MigrateUp(t.Context(), at.String(), quiet()))
	b := benchOn(t, at.String())
	require.NoError(t, b.InstallDefaults(t.Context()))
	entries := b.number(t, `SELECT count(*) FROM audit_log`)
	require.Positive(t, entries)

	tamper := []string{
		`UPDATE audit_log SET actor_name = 'nobody'`, `DELETE FROM audit_log`, `TRUNCATE audit_log`,
		`UPDATE audit_log SET actor_name = 'nobody' WHERE false`, `DELETE FROM audit_log WHERE id = 1`,
		`INSERT INTO audit_log (id, actor_kind, actor_name, action, resource) OVERRIDING SYSTEM VALUE VALUES (1, 'x', 'x', 'x', 'x') ON CONFLICT (id) DO UPDATE SET actor_name = 'x'`,
		`UPDATE audit_tenants SET tenant = 'nobody'`, `DELETE FROM audit_tenants`, `TRUNCATE audit_tenants`,
	}
	service := session(t, at.String())
	for _, sql := range tamper {
		_, err := service.Exec(t.Context(), sql)
		require.ErrorContains(t, err, "42501", "as the service's role: %s", sql)
	}
	for _, replication := range []string{"origin", "replica"} {
		_, err := admin.Exec(t.Context(), `SET session_replication_role = `+replication)
		require.NoError(t, err)
		for _, sql := range tamper {
			_, err := admin.Exec(t.Context(), sql)
			require.ErrorContains(t, err, "42501", "as a superuser, %s: %s", replication, sql)
		}
	}
	require.Equal(t, entries, b.number(t, `SELECT count(*) FROM audit_log`))
	require.Zero(t, b.number(t, `SELECT count(*) FROM audit_log WHERE actor_name IN ('nobody', 'x')`))
}

// TestTheAuditLogIsListedByTime: newest first whatever the order of the ids, in pages that neither skip nor repeat, under every filter.
func TestTheAuditLogIsListedByTime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	b.exec(t, `INSERT INTO audit_log (at, actor_kind, actor_id, actor_name, action, resource, resource_id)
		SELECT $1::timestamptz + make_interval(secs => (n * 7919 % 100)), 'admin_token', CASE WHEN n % 3 = 0 THEN 'alice' ELSE 'id' || n END,
			CASE WHEN n % 2 = 0 THEN 'alice' ELSE 'bob' END, 'tenant.update', 'tenant', 'school-' || n % 10 FROM generate_series(1, 300) n`, noon)
	walk := func(f audit.Filter) (found []audit.Entry) {
		for p := (tenants.Page{Limit: 7}); ; {
			list, err := b.ListAudit(t.Context(), f, p)
			require.NoError(t, err)
			found = append(found, list.Items...)
			if p.Cursor = list.Next; p.Cursor == "" {
				return found
			}
		}
	}
	all := walk(audit.Filter{Action: "tenant.update"})
	require.Len(t, all, 300)
	require.True(t, slices.IsSortedFunc(all, func(x, y audit.Entry) int {
		if c := y.Time.Compare(x.Time); c != 0 {
			return c
		}
		return int(y.ID - x.ID)
	}))
	for _, c := range []struct {
		filter audit.Filter
		holds  func(e *audit.Entry) bool
	}{
		{audit.Filter{Actor: "alice"}, func(e *audit.Entry) bool { return e.Actor.ID == "alice" || e.Actor.Name == "alice" }},
		{audit.Filter{ResourceID: "school-3"}, func(e *audit.Entry) bool { return e.ResourceID == "school-3" }},
		{audit.Filter{Resource: "tenant", From: noon.Add(10 * time.Second), To: noon.Add(20 * time.Second)}, func(e *audit.Entry) bool {
			return !e.Time.Before(noon.Add(10*time.Second)) && e.Time.Before(noon.Add(20*time.Second))
		}},
		{audit.Filter{Actor: "alice", ResourceID: "school-4", From: noon.Add(time.Second)}, func(e *audit.Entry) bool {
			return (e.Actor.ID == "alice" || e.Actor.Name == "alice") && e.ResourceID == "school-4" && !e.Time.Before(noon.Add(time.Second))
		}},
	} {
		want := map[int64]bool{}
		for i := range all {
			if c.holds(&all[i]) {
				want[all[i].ID] = true
			}
		}
		require.NotEmpty(t, want)
		got := map[int64]bool{}
		for _, e := range walk(c.filter) {
			require.False(t, got[e.ID], "twice")
			got[e.ID] = true
		}
		require.Equal(t, want, got, fmt.Sprint(c.filter))
	}
	for _, key := range []string{"x", "1", "1 x", "99999999999999999999 1", "9000000000000000000 1", "-9000000000000000000 1"} {
		_, err := b.ListAudit(t.Context(), audit.Filter{}, tenants.Page{Cursor: postgres.EncodeCursor("audit", key)})
		require.ErrorIs(t, err, tenants.ErrCursor, key)
	}
}

// TestSoakAMillionAuditEntries lists and exports a large log: every page within 200 ms, memory that does not grow with it.
func TestSoakAMillionAuditEntries(t *testing.T) {
	testenv.Soak(t)
	b := newBench(t)
	b.exec(t, `INSERT INTO audit_log (at, actor_kind, actor_id, actor_name, action, resource, resource_id, diff)
		SELECT '2026-01-01'::timestamptz + make_interval(secs => n * 20), 'admin_token', 'id' || n % 50, 'name' || n % 50, 'tenant.update', 'tenant', 'school-' || n % 3000,
			'[{"field":"plan","from":"light","to":"pro"}]' FROM generate_series(1, 1000000) n`)
	b.exec(t, `ANALYZE audit_log`)
	for _, f := range []audit.Filter{
		{},
		{Actor: "name7"},
		{Actor: "nobody"},
		{ResourceID: "school-17"},
		{Action: "tenant.update", Actor: "id7"},
		{Action: "none"},
		{From: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), To: time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)},
		{Resource: "tenant", To: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)},
	} {
		started := time.Now()
		_, err := b.ListAudit(t.Context(), f, tenants.Page{Limit: 50})
		require.NoError(t, err)
		t.Logf("%+v: %v", f, time.Since(started))
		require.Less(t, time.Since(started), 200*time.Millisecond, "%+v", f)
	}
	started, n := time.Now(), 0
	for p := (tenants.Page{Limit: 500}); ; {
		list, err := b.ListAudit(t.Context(), audit.Filter{}, p)
		require.NoError(t, err)
		if n += len(list.Items); list.Next == "" {
			break
		}
		p.Cursor = list.Next
	}
	require.GreaterOrEqual(t, n, 1_000_000)
	t.Logf("walked %d entries in %v", n, time.Since(started))
}
