package app_test

import (
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// Guarantee: at midnight UTC, also of a month, and with clocks up to a day apart and away from the database's, no call is missing
// from the request log, no minute from the usage history, and no replica fails to write: whichever replica first needs a partition
// makes it, also when two need it at once.
func TestMidnight(t *testing.T) {
	t.Parallel()
	database := "PEGEL_DATABASE_URL=" + testenv.Postgres(t)
	midnight := time.Now().UTC().Truncate(24 * time.Hour)
	month := time.Date(midnight.Year(), midnight.Month()+1, 1, 0, 0, 0, 0, time.UTC)
	moments := map[string]time.Time{
		"a day behind": midnight.Add(-24 * time.Hour), "last midnight": midnight, "next midnight": midnight.Add(24 * time.Hour), "also next midnight": midnight.Add(24 * time.Hour), "next month": month,
	}
	// Each of the replicas starts a minute before its moment, and lives two seconds before it once all of them are there.
	const before = 2 * time.Second
	replicas, ahead := map[string]*replica{}, map[string]*atomic.Int64{}
	for name, at := range moments {
		offset := &atomic.Int64{}
		offset.Store(int64(time.Until(at.Add(-time.Minute))))
		ahead[name] = offset
		replicas[name] = startReplicaAt(t, func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }, database, "PEGEL_SAMPLE_ALLOWED=1", "PEGEL_DATABASE_DECISION_TIMEOUT=5s")
	}
	one := replicas["last midnight"].ready()
	plan := "plan-" + random(t)
	one.administer(http.StatusCreated, http.MethodPost, "/admin/plans", map[string]any{"name": plan, "request_log": "all", "limits": []any{perMinute(100_000)}})
	sent := map[string]int{}
	slugs, keys := map[string]string{}, map[string]string{}
	for name, r := range replicas {
		r.ready()
		slugs[name], keys[name] = one.tenantOn(plan)
		r.knows(keys[name])
	}
	begun := time.Now()
	for name, at := range moments {
		ahead[name].Store(int64(time.Until(at.Add(-before))))
	}
	for passed := false; !passed; { // until all have passed their moment by as much
		passed = time.Since(begun) > 2*before
		for name, r := range replicas {
			a := r.call(http.MethodPost, r.public+"/v1/check", keys[name], map[string]any{})
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
			sent[name]++
		}
	}
	for name, r := range replicas {
		var got, total int
		require.Eventually(t, func() bool {
			got = r.loggedInAll(slugs[name])
			return got == sent[name]
		}, 30*time.Second, 100*time.Millisecond, "%s: the request log", name)
		require.Eventually(t, func() bool {
			at := moments[name]
			query := url.Values{"from": {at.Add(-time.Hour).Format(time.RFC3339)}, "to": {at.Add(time.Hour).Format(time.RFC3339)}, "step": {"1m"}}
			series, _ := r.administer(http.StatusOK, http.MethodGet, "/admin/tenants/"+slugs[name]+"/usage?"+query.Encode(), nil)["series"].([]any)
			total = 0
			for _, s := range series {
				one, _ := s.(map[string]any)
				counts, _ := one["total"].(map[string]any)
				n, _ := counts["allowed"].(float64)
				total += int(n)
			}
			return total == sent[name]
		}, 90*time.Second, 250*time.Millisecond, "%s: the usage history", name)
		metrics := string(r.call(http.MethodGet, r.admin+"/metrics", "", nil).body)
		require.Contains(t, metrics, `pegel_journal_dropped_total{log="requests"} 0`, name)
		require.NotContains(t, r.logs.String(), "level=ERROR", name)
	}
	t.Log(sent)
}

// loggedInAll is how many calls of a tenant the request log knows, over all its pages.
func (r *replica) loggedInAll(slug string) int {
	r.t.Helper()
	sum := 0
	for cursor := ""; ; {
		page := r.administer(http.StatusOK, http.MethodGet, "/admin/requests?limit=500&tenant="+slug+cursor, nil)
		items, _ := page["items"].([]any)
		for _, item := range items {
			row, _ := item.(map[string]any)
			n, _ := row["count"].(float64)
			sum += int(n)
		}
		next, _ := page["next_cursor"].(string)
		if next == "" {
			return sum
		}
		cursor = "&cursor=" + url.QueryEscape(next)
	}
}
