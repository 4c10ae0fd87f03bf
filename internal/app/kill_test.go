package app_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// Guarantee (B073): a change and its audit entry are there both or neither, whenever the process is killed, and what was answered
// is there.
func TestKilledWhileAdministering(t *testing.T) {
	t.Parallel()
	killWhileAdministering(t, 25)
}

// TestSoakKilledWhileAdministering is the same at 200 moments.
func TestSoakKilledWhileAdministering(t *testing.T) {
	testenv.Soak(t)
	killWhileAdministering(t, 200)
}

func killWhileAdministering(t *testing.T, rounds int) {
	t.Helper()
	database, binary := testenv.Postgres(t), buildPegel(t)
	conn, err := pgx.Connect(t.Context(), database)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	k := &killed{t: t, conn: conn}
	for round := range rounds {
		p, cmd, ended := launch(t, binary, "PEGEL_DATABASE_URL="+database)
		if round == 0 {
			require.NoError(t, conn.QueryRow(t.Context(), `SELECT version - (SELECT count(*) FROM audit_log WHERE request_id <> '') FROM config_version`).Scan(&k.installed))
		}
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for worker := range 4 {
			all.Go(func() {
				k.administer(ctx, p, fmt.Sprintf("r%d-w%d", round, worker))
			})
		}
		moment := time.NewTimer(rand.N(300 * time.Millisecond))
		<-moment.C
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, <-ended, "it was killed")
		stop()
		all.Wait()
		k.verify()
		if t.Failed() {
			t.Log(p.logs.String())
			return
		}
	}
	t.Logf("killed %d times in %d changes that were answered and %d that were not", rounds, len(k.answered), k.cut)
	require.Positive(t, k.cut, "no moment was during a change")
	require.NotEmpty(t, k.answered)
}

// killed is what clients know of changes made by processes that were killed.
type killed struct {
	t         *testing.T
	conn      *pgx.Conn
	installed int64 // versions before the first change
	mu        sync.Mutex
	answered  []string // request ids
	cut       int      // requests that were sent and not answered
}

// administer changes one thing after the other until the process is gone.
func (k *killed) administer(ctx context.Context, p *process, name string) {
	slug, id := "", ""
	plan := "plan-" + name
	for n := 0; ctx.Err() == nil; n++ {
		request := fmt.Sprintf("%s-%d", name, n)
		method, path, body := http.MethodPost, "", map[string]any{}
		switch n % 10 {
		case 0:
			slug, path = fmt.Sprintf("t-%s-%d", name, n), "/admin/tenants"
			body = map[string]any{"slug": slug, "name": "T", "plan": "light"}
		case 1:
			method, path = http.MethodPatch, "/admin/tenants/"+slug
			body["status"] = "suspended"
		case 2:
			method, path = http.MethodPut, "/admin/plans/"+plan
			body["name"], body["limits"] = plan, []any{perMinute(n)}
		case 3:
			path = "/admin/tenants/" + slug + "/keys"
			body["name"] = "k"
		case 4:
			method, path = http.MethodPut, "/admin/tenants/"+slug+"/overrides/requests-per-minute"
			body["limit"], body["reason"] = n, "r"
		case 5:
			path = "/admin/tenants/" + slug + "/reset"
			body = nil
		case 6:
			path = "/admin/configuration"
			body["tenants"] = []any{map[string]any{"slug": slug + "-a", "name": "A", "plan": "pro"}, map[string]any{"slug": slug + "-b", "name": "B", "plan": "pro"}}
		case 7:
			method, path, body = http.MethodDelete, "/admin/tenants/"+slug+"/keys/"+id, nil
		case 8:
			method, path = http.MethodPut, "/admin/mode"
			body["mode"] = "enforce"
		case 9:
			method, path, body = http.MethodDelete, "/admin/tenants/"+slug, nil
		}
		req, err := http.NewRequestWithContext(ctx, method, p.admin+path, jsonBody(k.t, body))
		if err != nil {
			k.t.Error(err)
			return
		}
		if body == nil {
			req.Body, req.ContentLength = http.NoBody, 0
		}
		req.Header.Set("Authorization", "Bearer "+adminToken)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("If-Match", "*")
		req.Header.Set("X-Request-Id", request)
		if n%10 == 2 && n < 10 {
			req.Header.Del("If-Match") // it is new
		}
		a, err := roundTrip(req)
		k.mu.Lock()
		if err != nil {
			k.cut++
		} else {
			k.answered = append(k.answered, request)
		}
		k.mu.Unlock()
		if err != nil {
			return
		}
		if a.status >= http.StatusMultipleChoices {
			k.t.Errorf("%s %s: %d %s", method, path, a.status, a.body)
			return
		}
		if n%10 == 3 {
			id, _ = a.json(k.t)["id"].(string)
		}
	}
}

// verify compares what is stored with what the audit log tells, once the sessions of the killed process are gone.
func (k *killed) verify() {
	k.t.Helper()
	ctx := k.t.Context()
	require.Eventually(k.t, func() bool {
		var left int
		err := k.conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`).Scan(&left)
		return err == nil && left == 0
	}, 20*time.Second, 10*time.Millisecond, "sessions of a killed process must end")
	for claim, query := range map[string]string{
		"every change raised the version once": `SELECT abs(version - $1 - (SELECT count(DISTINCT request_id) FROM audit_log WHERE request_id <> '')) FROM config_version`,
		"every answered change is in the log":  `SELECT count(*) FROM unnest($1::text[]) r WHERE NOT EXISTS (SELECT FROM audit_log WHERE request_id = r)`,
		"tenants are those that were created and not deleted": `SELECT count(*) FROM tenants t FULL JOIN (
			SELECT resource_id AS slug FROM audit_log WHERE resource = 'tenant' GROUP BY resource_id
			HAVING count(*) FILTER (WHERE action = 'tenant.create') > count(*) FILTER (WHERE action = 'tenant.delete')) a USING (slug)
			WHERE t.id IS NULL OR a.slug IS NULL`,
		"a tenant has the status that is told last": `SELECT count(*) FROM tenants t JOIN (
			SELECT DISTINCT ON (resource_id) resource_id AS slug, d ->> 'to' AS last FROM audit_log, jsonb_array_elements(diff) d
			WHERE resource = 'tenant' AND d ->> 'field' = 'status' ORDER BY resource_id, id DESC) a USING (slug) WHERE a.last IS DISTINCT FROM t.status`,
		"a plan has the quota that is told last": `SELECT count(*) FROM plans p JOIN limits l ON l.plan_id = p.id LEFT JOIN (
			SELECT DISTINCT ON (resource_id) resource_id AS name, d ->> 'to' AS last FROM audit_log, jsonb_array_elements(diff) d
			WHERE resource = 'plan' AND d ->> 'field' = 'limits.requests-per-minute.limit' ORDER BY resource_id, id DESC) a ON a.name = p.name
			WHERE a.last IS DISTINCT FROM l.quota::text`,
		"and no other plan is told of": `SELECT count(*) FROM audit_log WHERE resource = 'plan' AND resource_id NOT IN (SELECT name FROM plans)`,
		"a reset is one": `SELECT count(*) FROM tenants t WHERE generation <> (
			SELECT count(*) FROM audit_log WHERE resource_id = t.slug AND action = 'tenant.reset')`,
		"keys are those that were created, revoked ones those that were revoked": `SELECT count(*) FROM api_keys k WHERE
			(SELECT count(*) FROM audit_log WHERE resource_id = k.id AND action = 'api_key.create') <> 1
			OR (revoked_at IS NOT NULL) <> EXISTS (SELECT FROM audit_log WHERE resource_id = k.id AND action = 'api_key.revoke')`,
		"overrides are those that were put": `SELECT count(*) FROM overrides o JOIN tenants t ON t.id = o.tenant_id WHERE NOT EXISTS (
			SELECT FROM audit_log WHERE resource = 'override' AND resource_id = t.slug || '/' || o.limit_name)`,
		"and those that were put are there": `SELECT count(*) FROM audit_log a JOIN tenants t ON a.resource_id = t.slug || '/requests-per-minute'
			WHERE a.resource = 'override' AND NOT EXISTS (SELECT FROM overrides o WHERE o.tenant_id = t.id)`,
	} {
		var args []any
		switch claim {
		case "every change raised the version once":
			args = append(args, k.installed)
		case "every answered change is in the log":
			args = append(args, k.answered)
		}
		var wrong int64
		require.NoError(k.t, k.conn.QueryRow(ctx, query, args...).Scan(&wrong), claim)
		require.Zero(k.t, wrong, claim)
	}
}
