package httpapi_test

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// remembered writes what the journal has gathered so far.
func (w *world) remembered() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	cancel()
	w.journal.Run(ctx)
}

// logged is a page of the request log.
func (w *world) logged(query string) (items []map[string]any, body map[string]any) {
	w.t.Helper()
	body = w.administer(http.MethodGet, "/admin/requests"+query, "").ok(http.StatusOK).json()
	list, ok := body["items"].([]any)
	require.True(w.t, ok)
	for _, item := range list {
		object, ok := item.(map[string]any)
		require.True(w.t, ok)
		items = append(items, object)
	}
	return items, body
}

// Guarantee: the id of a 429 tells which limit it was, the exception in force and why, the numbers, and whose counter.
func TestARefusalIsExplained(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plan("small", 3, tenants.Rule{
		Limit: ratelimit.Limit{Name: "exports", Scope: ratelimit.ScopeUser, Quota: 9, Window: time.Hour},
		Match: tenants.Match{Methods: []string{"POST"}, Paths: []string{"/v1/exports/*"}},
	})
	w.tenant("school-17", "small")
	service := w.service("edge", true, tenants.MayCheck)
	expires := time.Now().Add(48 * time.Hour).UTC().Truncate(time.Second)
	_, _, err := w.repository.PutOverride(t.Context(), audit.Actor{Kind: "system", Name: "test"}, "school-17",
		tenants.Override{LimitName: "requests-per-minute", Quota: 2, Reason: "=a loop in their workflow", ExpiresAt: expires})
	require.NoError(t, err)
	w.refresh()

	call := `{"tenant":"school-17","user":"u42","key":"k1","method":"POST","path":"/v1/exports/7?secret=1"}`
	for range 2 {
		w.check(service, call).ok(http.StatusOK)
	}
	refused := w.check(service, call).ok(http.StatusTooManyRequests)
	id := refused.header.Get("X-Pegel-Decision")
	w.remembered()

	viewer := w.administrator(tenants.Viewer)
	got := w.do(w.admin, request{method: http.MethodGet, path: "/admin/decisions/" + id, header: bearer(viewer)}).ok(http.StatusOK).json()
	require.Regexp(t, `^Refused: tenant school-17 had used 2 of 2 units per 1m by requests-per-minute, said redis; a hit of cost 1 fits again .* later\. `+
		`The quota is an exception to the plan's 3, until .*: =a loop in their workflow\.$`, got["why"])
	for name, want := range map[string]any{
		"id": id, "decision": "deny", "reason": "rate-limit-exceeded", "shadow": false, "peek": false, "count": 1.0, "tenant": "school-17", "plan": "small",
		"user": "u42", "key": "k1", "service": "edge", "method": "POST", "door": "check", "source": "redis", "replica": "test-1", "cost": 1.0,
		"limit_name": "requests-per-minute",
	} {
		require.Equal(t, want, got[name], name)
	}
	require.NotContains(t, got, "path")
	require.Positive(t, got["retry_after_ms"])
	limits, ok := got["limits"].([]any)
	require.True(t, ok)
	require.Len(t, limits, 2)
	first, _ := limits[0].(map[string]any)
	require.Equal(t, map[string]any{"reason": "=a loop in their workflow", "expires_at": expires.Format(time.RFC3339)}, first["override"])
	require.EqualValues(t, 2, first["limit"])
	require.EqualValues(t, 3, first["plan_limit"])
	require.Equal(t, true, first["refused"])
	second, _ := limits[1].(map[string]any)
	require.Equal(t, "user u42 of school-17", second["subject"])
	require.Equal(t, "/v1/exports/*", second["pattern"])
	require.Equal(t, []any{"POST"}, second["methods"])
	require.NotContains(t, second, "override")

	p := w.administer(http.MethodGet, "/admin/decisions/01920000-0000-7000-8000-000000000000", "").problem(problem.NotFound)
	require.Contains(t, p.Detail, "24 hours")
	require.Contains(t, p.Detail, "sample")
	w.administer(http.MethodGet, "/admin/decisions/nonsense", "").problem(problem.Validation)
	w.do(w.admin, request{method: http.MethodGet, path: "/admin/decisions/" + id}).problem(problem.Unauthorized)
}

// Guarantee: the log is filtered, paged without loss, and says what is not in it; refused credentials show as refusals of their address.
func TestTheRequestLogIsListed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plan("small", 3)
	w.tenant("school-17", "small")
	w.tenant("school-18", "small")
	service := w.service("edge", true, tenants.MayCheck)
	for i := range 10 {
		w.check(service, fmt.Sprintf(`{"tenant":"school-17","user":"u%d","path":"/v1/x"}`, i))
		w.check(service, fmt.Sprintf(`{"tenant":"school-18","user":"u%d","cost":4}`, i))
	}
	w.check(service, `{"tenant":"school-17","peek":true}`).ok(http.StatusTooManyRequests)
	w.do(w.public, request{method: http.MethodGet, path: "/v1/ping", from: "2001:db8::7", header: map[string]string{"X-API-Key": "pgk_wrong"}}).ok(http.StatusUnauthorized)
	w.do(w.admin, request{method: http.MethodGet, path: "/admin/plans", from: "203.0.113.9", header: bearer("pga_wrong")}).ok(http.StatusUnauthorized)
	w.remembered()

	all, body := w.logged("")
	require.Len(t, all, 19, "seven and ten refusals, two failed sign-ins")
	require.Empty(t, body["gaps"])
	require.NotContains(t, body, "next_cursor")
	require.Equal(t, "unauthorized", all[0]["reason"])
	require.Equal(t, "admin", all[0]["door"])
	require.Equal(t, "203.0.113.9/32", all[0]["address"])
	require.NotContains(t, all[0], "decision_id")
	require.NotContains(t, all[0], "tenant")
	require.Equal(t, "ping", all[1]["door"])
	require.NotContains(t, fmt.Sprint(all), "wrong")

	some, _ := w.logged("?tenant=school-18")
	require.Len(t, some, 10)
	require.Equal(t, "cost-exceeds-limit", some[0]["reason"])
	require.Equal(t, "u9", some[0]["user"])
	for query, want := range map[string]int{
		"?tenant=school-17": 7, "?tenant=school-17&decision=deny": 7, "?decision=allow": 0, "?address=2001:db8::1": 1, "?address=2001:db8::/64": 1, "?address=203.0.113.9": 1,
		"?door=ping": 1, "?limit_name=requests-per-minute": 17, "?limit_name=requests-per-minute&door=admin": 0,
		"?to=" + url.QueryEscape(time.Now().Add(-time.Hour).Format(time.RFC3339)): 0, "?from=" + url.QueryEscape(time.Now().Add(-time.Hour).Format(time.RFC3339)): 19,
		"?decision_id=" + fmt.Sprint(some[3]["decision_id"]): 1,
	} {
		found, _ := w.logged(query)
		require.Len(t, found, want, query)
	}
	w.administer(http.MethodGet, "/admin/requests?decision_id=00000000-0000-0000-0000-000000000000", "").problem(problem.Validation)
	seen := map[any]bool{}
	for cursor := ""; ; {
		page, body := w.logged("?limit=4" + cursor)
		for _, item := range page {
			require.False(t, seen[item["id"]])
			seen[item["id"]] = true
		}
		next, ok := body["next_cursor"].(string)
		if !ok {
			break
		}
		cursor = "&cursor=" + url.QueryEscape(next)
	}
	require.Len(t, seen, 19)
	for _, query := range []string{"?address=x", "?address=", "?decision=maybe", "?door=window", "?from=today", "?cursor=bm9uc2Vuc2U", "?limit=0", "?tenant=School"} {
		w.administer(http.MethodGet, "/admin/requests"+query, "").problem(problem.Validation)
	}
}

// Guarantee: an export is the whole list, in both forms, and no text in it is a formula to a spreadsheet.
func TestTheRequestLogIsExported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plan("none", 0)
	key := w.tenant("school-17", "none")
	for i := range 5 {
		w.check(key, fmt.Sprintf(`{"user":"=cmd|' /C calc'!A%d","path":"/v1/x,\"y\""}`, i))
	}
	w.remembered()

	nd := w.administer(http.MethodGet, "/admin/requests/export?tenant=school-17", "").ok(http.StatusOK)
	require.Equal(t, "application/x-ndjson", nd.header.Get("Content-Type"))
	lines := strings.Split(strings.TrimSpace(string(nd.body)), "\n")
	require.Len(t, lines, 5)
	listed, _ := w.logged("")
	for i, line := range lines {
		var item map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &item))
		require.Equal(t, listed[i], item)
	}

	table := w.administer(http.MethodGet, "/admin/requests/export?format=csv", "").ok(http.StatusOK)
	require.Equal(t, `attachment; filename="pegel-requests.csv"`, table.header.Get("Content-Disposition"))
	rows, err := csv.NewReader(strings.NewReader(string(table.body))).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 6)
	cell := func(row []string, name string) string {
		for i, column := range rows[0] {
			if column == name {
				return row[i]
			}
		}
		require.Fail(t, "no column", name)
		return ""
	}
	require.Equal(t, "'=cmd|' /C calc'!A4", cell(rows[1], "user"))
	require.Equal(t, `/v1/x,"y"`, cell(rows[1], "path"))
	require.Equal(t, listed[0]["id"], cell(rows[1], "id"))
	require.Equal(t, "0", cell(rows[1], "limit"))
	require.Equal(t, "1", cell(rows[1], "count"))
	w.administer(http.MethodGet, "/admin/requests/export?format=xlsx", "").problem(problem.Validation)
}
