package postgres_test

import (
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// Guarantee: an edit by hand of anything that a replica loads is a new version, and has it load everything; a change by the service is one
// version and loads only what changed; when something was last used is neither.
func TestEditsByHandAreVersions(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := t.Context()
	require.NoError(t, b.InstallDefaults(ctx))
	b.haveTenant(t, "school-17", "light")
	_, err := b.CreateKey(ctx, alice, "school-17", key("k1"))
	require.NoError(t, err)
	_, err = b.CreateServiceToken(ctx, alice, service("s1"))
	require.NoError(t, err)
	_, err = b.CreateAdminToken(ctx, alice, tenants.AdminToken{ID: "a1", Name: "a", Role: tenants.Viewer, Hash: key("a1").Hash})
	require.NoError(t, err)
	_, _, err = b.PutOverride(ctx, alice, "school-17", tenants.Override{LimitName: "requests-per-minute", Quota: 5, Reason: "r"})
	require.NoError(t, err)
	_, err = b.CreateNetwork(ctx, alice, tenants.Network{CIDR: prefix("10.0.0.0/8"), Action: tenants.Deny})
	require.NoError(t, err)
	version := func() int64 { return b.number(t, `SELECT version FROM config_version`) }
	// raises requires that something raises the version by so many, and whether loading what is new since then loads everything.
	raises := func(doing string, by int64, full bool, do func()) {
		t.Helper()
		before := version()
		do()
		require.Equal(t, before+by, version(), doing)
		c, err := b.Load(ctx, before)
		require.NoError(t, err)
		require.Equal(t, full, c.Full, doing)
		require.Equal(t, before+by, c.Version)
	}
	for _, sql := range []string{
		`UPDATE plans SET title = 'x' WHERE name = 'light'`, `UPDATE limits SET quota = 1 WHERE position = 0`, `UPDATE address_policy SET version = version`,
		`UPDATE address_limits SET quota = quota`, `UPDATE tenants SET name = 'x'`, `UPDATE networks SET action = 'allow'`, `UPDATE overrides SET quota = 6`,
		`UPDATE api_keys SET expires_at = now()`, `UPDATE service_tokens SET may = '{}'`, `UPDATE admin_tokens SET role = 'admin'`, `UPDATE config_version SET mode = 'shadow'`,
		`INSERT INTO networks (cidr, action, changed_in) VALUES ('10.1.0.0/16', 'deny', 0)`, `DELETE FROM networks`, `DELETE FROM service_tokens`, `TRUNCATE admin_tokens`,
		`BEGIN; UPDATE tenants SET name = 'y'; DELETE FROM overrides; UPDATE limits SET quota = 2 WHERE position = 0; COMMIT`,
	} {
		raises(sql, 1, true, func() {
			_, err := b.pool.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
			require.NoError(t, err)
		})
	}
	raises("last used", 0, false, func() {
		require.NoError(t, b.MarkUsed(ctx, tenants.KindAPIKey, map[string]time.Time{"k1": time.Now()}))
		b.exec(t, `UPDATE overrides SET last_used_at = now()`) //nolint:contextcheck // it takes the test's
	})
	raises("the service's own", 1, false, func() {
		_, err := b.ResetTenant(ctx, alice, "school-17")
		require.NoError(t, err)
	})
	raises("the service's own deletion", 1, false, func() {
		require.NoError(t, b.DeleteTenant(ctx, alice, "school-17", tenants.Precondition{}))
	})
}

// Guarantee: edits by hand and the service's changes of the same rows wait for each other and never deadlock; a role that may edit a
// table needs no right beyond that.
func TestEditsByHandWaitTheirTurn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.havePlan(t, "light", 10)
	b.haveTenant(t, "school-17", "light")
	at, err := url.Parse(b.url)
	require.NoError(t, err)
	role := pgx.Identifier{"editor_" + at.Path[1:]}.Sanitize()
	b.exec(t, `CREATE ROLE `+role+` LOGIN`) // it ends with the server of the tests
	b.exec(t, `GRANT SELECT, UPDATE ON tenants, limits TO `+role)
	at.User = url.User("editor_" + at.Path[1:])
	editor := session(t, at.String())
	before := b.number(t, `SELECT version FROM config_version`)

	const each = 30
	var all sync.WaitGroup
	all.Go(func() {
		for n := range each {
			if _, err := editor.Exec(t.Context(), `UPDATE tenants SET name = $1`, fmt.Sprint("by hand ", n)); err != nil {
				t.Error(err)
			}
			if _, err := editor.Exec(t.Context(), `UPDATE limits SET quota = $1`, n); err != nil {
				t.Error(err)
			}
		}
	})
	all.Go(func() {
		for n := range each {
			if _, _, err := b.PutPlan(t.Context(), alice, plan("light", int64(n)), tenants.Precondition{}); err != nil {
				t.Error(err)
			}
			if _, err := b.ResetTenant(t.Context(), alice, "school-17"); err != nil {
				t.Error(err)
			}
		}
	})
	all.Wait()
	require.EqualValues(t, 4*each, b.number(t, `SELECT version FROM config_version`)-before)
}
