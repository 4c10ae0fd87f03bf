package httpapi_test

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// auditOf waits until the audit log has a number of entries under a filter: refusals are written behind the answer.
func auditOf(w *world, query string, n int) []map[string]any {
	w.t.Helper()
	var found []map[string]any
	require.Eventually(w.t, func() bool {
		found = itemsOf(w, "/admin/audit?"+query)
		return len(found) >= n
	}, 20*time.Second, 10*time.Millisecond, query)
	require.Len(w.t, found, n, query)
	return found
}

func TestTwoPutsOfOneVersionAreBothAudited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	read := w.administer(http.MethodGet, "/admin/plans/light", "").ok(http.StatusOK)
	body := func(title string) string {
		return `{"name":"light","title":"` + title + `","limits":[{"name":"requests-per-minute","limit":2000,"window":"1m"}]}`
	}
	var wg sync.WaitGroup
	statuses := make([]int, 2)
	for i := range statuses {
		wg.Go(func() {
			statuses[i] = w.administer(http.MethodPut, "/admin/plans/light", body(fmt.Sprint("writer ", i)), "If-Match", read.header.Get("ETag")).status
		})
	}
	wg.Wait()
	slices.Sort(statuses)
	require.Equal(t, []int{http.StatusOK, http.StatusPreconditionFailed}, statuses)
	entries := auditOf(w, "resource=plan&resource_id=light&actor=bootstrap", 2)
	actions := []string{fmt.Sprint(entries[0]["action"]), fmt.Sprint(entries[1]["action"])}
	slices.Sort(actions)
	require.Equal(t, []string{"plan.update", "request.refused"}, actions)
}

func TestRefusedAttemptsAreAudited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.policy()
	viewer, revoked := w.administrator(tenants.Viewer), w.administrator(tenants.Operator)
	w.tenant("school-17", "light")
	w.do(w.admin, request{method: http.MethodPut, path: "/admin/tenants/school-17/overrides/m", body: `{"limit":1,"reason":"r"}`, header: bearer(viewer), from: "203.0.113.50"}).problem(problem.Forbidden)
	entry := auditOf(w, "action=request.refused", 1)[0]
	require.Equal(t, "override", entry["resource"])
	require.Equal(t, "school-17/m", entry["resource_id"])
	require.Contains(t, fmt.Sprint(entry["diff"]), "PUT /admin/tenants/{tenant}/overrides/{limit}: needs the role operator")
	actor, _ := entry["actor"].(map[string]any)
	require.Equal(t, "viewer", actor["name"])
	require.Equal(t, "203.0.113.50", actor["address"])

	credential, err := tenants.ParseCredential(revoked)
	require.NoError(t, err)
	w.administer(http.MethodDelete, "/admin/admin-tokens/"+credential.ID, "").ok(http.StatusNoContent)
	known, _ := tokenOf(t, 1, 1)
	_, err = w.repository.CreateAdminToken(t.Context(), testActor(), tenants.AdminToken{ID: known.ID, Name: "known", Role: tenants.Viewer, Hash: known.Hash})
	require.NoError(t, err)
	w.refresh()
	_, otherSecret := tokenOf(t, 1, 2)
	_, unknown := tokenOf(t, 2, 2)
	for token, cause := range map[string]string{
		"": "no credential", "pga_nonsense": "malformed token", revoked: "revoked token", w.service("s", false): "not an admin token",
		otherSecret: "wrong secret", unknown: "unknown token",
	} {
		w.do(w.admin, request{method: http.MethodGet, path: "/admin/plans", header: bearer(token), from: "203.0.113.51"}).problem(problem.Unauthorized)
		require.Eventually(t, func() bool {
			return slices.ContainsFunc(itemsOf(w, "/admin/audit?action=sign_in.refused"), func(e map[string]any) bool {
				who, _ := e["actor"].(map[string]any)
				return strings.Contains(fmt.Sprint(e["diff"]), cause) && who["address"] == "203.0.113.51"
			})
		}, 20*time.Second, 10*time.Millisecond, cause)
	}
}

// tokenOf makes an admin token of chosen bytes: the same id, and a secret of one's own.
func tokenOf(t *testing.T, id, secret byte) (tenants.Credential, string) {
	t.Helper()
	random := append(bytes.Repeat([]byte{id}, 12), bytes.Repeat([]byte{secret}, 32)...)
	credential, text, err := tenants.NewCredential(tenants.KindAdminToken, bytes.NewReader(random))
	require.NoError(t, err)
	return credential, text
}

func TestAuditExportIsWholeAndInert(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var entries []audit.Entry
	for i := range 1300 {
		entries = append(entries, audit.Entry{Actor: audit.Actor{Kind: "system", Name: fmt.Sprint("=HYPERLINK(", i, ")")}, Action: "x.y", Resource: "x", ResourceID: "@SUM(1)", Diff: []audit.Change{}})
	}
	require.NoError(t, w.repository.RecordRefusals(t.Context(), entries))

	nd := w.administer(http.MethodGet, "/admin/audit/export", "").ok(http.StatusOK)
	require.Equal(t, "application/x-ndjson", nd.header.Get("Content-Type"))
	seen := map[float64]bool{}
	lines := bufio.NewScanner(strings.NewReader(string(nd.body)))
	for lines.Scan() {
		var e map[string]any
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
		id, _ := e["id"].(float64)
		require.False(t, seen[id], "an entry came twice")
		seen[id] = true
	}
	require.Len(t, seen, 1304, "with the four of the defaults and of this world")

	r := w.administer(http.MethodGet, "/admin/audit/export?format=csv&action=x.y", "").ok(http.StatusOK)
	require.Equal(t, `attachment; filename="pegel-audit.csv"`, r.header.Get("Content-Disposition"))
	rows, err := csv.NewReader(strings.NewReader(string(r.body))).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 1301)
	require.Equal(t, []string{"id", "time", "actor_kind", "actor_id", "actor_name"}, rows[0][:5])
	for _, row := range rows[1:] {
		require.True(t, strings.HasPrefix(row[4], "'=HYPERLINK("), row[4])
		require.Equal(t, "'@SUM(1)", row[9])
	}
	require.Equal(t, "id,time,actor_kind,actor_id,actor_name,actor_address,request_id,action,resource,resource_id,tenant,diff\n",
		string(w.administer(http.MethodGet, "/admin/audit/export?format=csv&action=none", "").ok(http.StatusOK).body))
	for _, query := range []string{"format=xlsx", "from=x", "format="} {
		w.administer(http.MethodGet, "/admin/audit/export?"+query, "").problem(problem.Validation)
	}
	head := w.do(w.admin, request{method: http.MethodHead, path: "/admin/audit/export", header: bearer(bootstrap)})
	require.Equal(t, http.StatusOK, head.status)
}

func TestAnExportThatPostgresLeavesIsCutAndAnotherIsRefused(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t)
	require.NoError(t, postgresMigrate(t, server.URL()))
	w := newWorldOn(t, server.URL())
	pool, err := postgres.NewPool(server.URL(), postgres.PoolOptions{MaxConns: 1})
	require.NoError(t, err)
	defer pool.Close()
	writer := postgres.NewRepository(pool, patient()) // how long preparing takes is not what is tested
	big := json.RawMessage(`"` + strings.Repeat("x", 8000) + `"`)
	for range 60 { // 6,000 entries of 8 kB: more than sockets hold
		entries := make([]audit.Entry, 100)
		for i := range entries {
			entries[i] = audit.Entry{Actor: testActor(), Action: "x.y", Resource: "x", Diff: []audit.Change{{Field: "f", To: big}}}
		}
		require.NoError(t, writer.RecordRefusals(t.Context(), entries))
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.admin.URL+"/admin/audit/export", http.NoBody)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+bootstrap)
	answer, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(t, err)
	defer answer.Body.Close()
	reader := bufio.NewReader(answer.Body)
	_, err = reader.ReadBytes('\n')
	require.NoError(t, err)
	require.NoError(t, server.Pause())
	_, err = io.Copy(io.Discard, reader)
	require.Error(t, err, "a part must not look like the whole")
	w.administer(http.MethodGet, "/admin/audit/export", "").problem(problem.StoreUnavailable)
	require.NoError(t, server.Resume())
	require.NotContains(t, w.logs.String(), `"level":"ERROR"`)
}

func TestAuditIsFilteredByTimeAndActor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	operator := w.administrator(tenants.Operator)
	credential, err := tenants.ParseCredential(operator)
	require.NoError(t, err)
	w.do(w.admin, request{method: http.MethodPost, path: "/admin/tenants", body: `{"slug":"a","name":"a","plan":"light"}`, header: bearer(operator)}).ok(http.StatusCreated)
	w.administer(http.MethodPost, "/admin/tenants", `{"slug":"b","name":"b","plan":"light"}`).ok(http.StatusCreated)
	require.Len(t, itemsOf(w, "/admin/audit?actor=operator"), 1, "by name")
	mine := itemsOf(w, "/admin/audit?actor="+credential.ID)
	require.Len(t, mine, 1, "by id")
	at := fmt.Sprint(mine[0]["time"])
	require.Empty(t, itemsOf(w, "/admin/audit?resource=tenant&to="+at), "to is exclusive")
	require.Len(t, itemsOf(w, "/admin/audit?resource=tenant&from="+at), 2, "from is inclusive")
	require.Len(t, itemsOf(w, "/admin/audit?resource=tenant&resource_id=b&action=tenant.create&actor=bootstrap"), 1)
}
