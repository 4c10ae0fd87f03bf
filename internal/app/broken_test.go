package app_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// dropFences takes away what keeps broken rows out of the tables of plans and tenants.
const dropFences = `DO $$ DECLARE c record; BEGIN
	FOR c IN SELECT conrelid::regclass AS tab, conname FROM pg_constraint
		WHERE contype IN ('c', 'f') AND conrelid::regclass::text IN ('plans', 'limits', 'tenants', 'overrides', 'address_limits') LOOP
		EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', c.tab, c.conname);
	END LOOP;
	ALTER TABLE limits ALTER COLUMN quota DROP NOT NULL;
	ALTER TABLE tenants ALTER COLUMN plan_id DROP NOT NULL;
END $$`

// Guarantee (B038): a row that somebody broke by hand harms its own tenant alone, which gets the built-in limits within a second; log and
// metric name the row; a service that starts on it runs; and mended by hand, the row holds again within a second.
func TestRowsBrokenAndMendedByHand(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	pool, err := pgxpool.New(t.Context(), database)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	sql := func(query string, args ...any) {
		t.Helper()
		_, err := pool.Exec(t.Context(), query, args...)
		require.NoError(t, err)
	}
	env := []string{"PEGEL_DATABASE_URL=" + database, "PEGEL_DATABASE_DECISION_TIMEOUT=5s"}
	one := startReplica(t, env...).ready()
	sql(dropFences)
	bystander, key := one.tenant(perMinute(77))
	limitsOf := `UPDATE limits SET %s WHERE plan_id = (SELECT plan_id FROM tenants WHERE slug = $1)`
	cases := []struct{ name, table, breaks, mends string }{
		{"NULL limit", "limits", fmt.Sprintf(limitsOf, "quota = NULL"), fmt.Sprintf(limitsOf, "quota = 55")},
		{"unknown algorithm", "plans", fmt.Sprintf(limitsOf, "algorithm = 'magic'"), fmt.Sprintf(limitsOf, "algorithm = 'sliding_window_log'")},
		{"negative window", "plans", fmt.Sprintf(limitsOf, "window_ms = -60000"), fmt.Sprintf(limitsOf, "window_ms = 60000")},
		{
			"dangling plan", "tenants", `UPDATE tenants SET plan_id = plan_id + 1000000 WHERE slug = $1`,
			`UPDATE tenants SET plan_id = plan_id - 1000000 WHERE slug = $1`,
		},
		{
			"broken metadata", "tenants", `UPDATE tenants SET metadata = '[1]' WHERE slug = $1`,
			`UPDATE tenants SET metadata = '{}' WHERE slug = $1`,
		},
	}
	slugs, keys := make([]string, len(cases)), make([]string, len(cases))
	for i := range cases {
		slugs[i], keys[i] = one.tenant(perMinute(55))
	}
	limit := func(r *replica, key string) any {
		a := r.call(http.MethodPost, r.public+"/v1/check", key, map[string]any{})
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		return a.json(t)["limit"]
	}
	within := func(r *replica, key string, want float64, claim string) time.Duration {
		t.Helper()
		begun := time.Now()
		require.Eventually(t, func() bool { return limit(r, key) == want }, 10*time.Second, 10*time.Millisecond, claim)
		return time.Since(begun)
	}
	metrics := func(r *replica) string { return string(r.call(http.MethodGet, r.admin+"/metrics", "", nil).body) }
	require.Contains(t, metrics(one), "pegel_config_broken_rows 0")

	for i, c := range cases {
		sql(c.breaks, slugs[i])
	}
	two := startReplica(t, env...).ready() // starts on broken rows
	for i, c := range cases {
		for _, r := range []*replica{one, two} {
			within(r, keys[i], 2000, c.name+": the built-in limit holds")
			require.Contains(t, r.logs.String(), "table="+c.table)
			row := rowOf(t, pool, c.table, slugs[i])
			require.Contains(t, r.logs.String(), row, "the log names the row")
			require.Contains(t, metrics(r), fmt.Sprintf("pegel_config_broken_row{row=%q,table=%q} 1", namedRow(metrics(r), row), c.table), "and so does the metric")
		}
	}
	for _, r := range []*replica{one, two} {
		require.EqualValues(t, 77, limit(r, key), "others are not affected")
		require.Contains(t, metrics(r), fmt.Sprintf("pegel_config_broken_rows %d", len(cases)))
		require.Equal(t, http.StatusOK, r.call(http.MethodGet, r.public+"/readyz", "", nil).status)
		require.Equal(t, http.StatusOK, r.call(http.MethodGet, r.admin+"/admin/tenants/"+slugs[3], adminToken, nil).status, "administration works on broken rows")
	}

	for i, c := range cases {
		sql(c.mends, slugs[i])
	}
	fastest := within(one, keys[0], 55, "the first that was mended")
	for i, c := range cases {
		within(one, keys[i], 55, c.name+": mended by hand")
		within(two, keys[i], 55, c.name+": mended by hand, on the other")
	}
	require.Contains(t, metrics(one), "pegel_config_broken_rows 0")
	require.NotContains(t, metrics(one), "pegel_config_broken_row{")
	require.Contains(t, one.logs.String(), "a configuration row can be used again")

	// What is changed by hand without breaking anything acts as well, the mode and a deletion included.
	sql(fmt.Sprintf(limitsOf, "quota = 78"), bystander)
	fastest = min(fastest, within(two, key, 78, "a quota by hand"))
	sql(`DELETE FROM tenants WHERE slug = $1`, slugs[0])
	require.Eventually(t, func() bool {
		return two.call(http.MethodPost, two.public+"/v1/check", keys[0], map[string]any{}).status == http.StatusUnauthorized
	}, 10*time.Second, 10*time.Millisecond)
	sql(`UPDATE config_version SET mode = 'shadow'`)
	require.Eventually(t, func() bool { // nothing is refused any more
		return two.call(http.MethodPost, two.public+"/v1/check", key, map[string]any{"cost": 1000}).status == http.StatusOK
	}, 10*time.Second, 10*time.Millisecond)
	t.Logf("the fastest change was seen after %s", fastest.Round(time.Millisecond))
	require.LessOrEqual(t, fastest, time.Second, "a busy machine may be slow, but not each time")
}

// rowOf is how a log names the broken row of a tenant.
func rowOf(t *testing.T, pool *pgxpool.Pool, table, slug string) (name string) {
	t.Helper()
	if table == "tenants" {
		return slug
	}
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT p.id || ' (' || p.name || ')' FROM plans p JOIN tenants t ON t.plan_id = p.id WHERE t.slug = $1`, slug).Scan(&name))
	return name
}

// namedRow is the whole label of the row in the metrics that has a name in it.
func namedRow(metrics, name string) string {
	for line := range strings.Lines(metrics) {
		if rest, ok := strings.CutPrefix(line, `pegel_config_broken_row{row="`); ok && strings.Contains(line, name) {
			label, _, _ := strings.Cut(rest, `",`)
			return label
		}
	}
	return "none"
}
