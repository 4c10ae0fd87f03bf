package app_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// explained waits until a replica can tell of a decision.
func (r *replica) explained(id string) map[string]any {
	r.t.Helper()
	var got answer
	require.Eventually(r.t, func() bool {
		var err error
		got, err = call(r.t.Context(), http.MethodGet, r.admin+"/admin/decisions/"+id, adminToken, nil)
		return err == nil && got.status == http.StatusOK
	}, 20*time.Second, 20*time.Millisecond, "%s is not explained", id)
	return got.json(r.t)
}

// logged is the newest page of the request log of a tenant.
func (r *replica) logged(slug string) []any {
	r.t.Helper()
	items, ok := r.administer(http.StatusOK, http.MethodGet, "/admin/requests?tenant="+slug, nil)["items"].([]any)
	require.True(r.t, ok)
	return items
}

// Guarantee: a 429 of one replica is explained by another, soon, and repeats of it from memory are counted in its record; what was
// decided just before a replica ends is written before it has ended.
func TestDecisionsAreExplainedByEveryReplica(t *testing.T) {
	t.Parallel()
	env := []string{"PEGEL_DATABASE_URL=" + testenv.Postgres(t), "PEGEL_REDIS_URL=" + testenv.RedisServer(t).URL(), "PEGEL_REDIS_TIMEOUT=5s", "PEGEL_SAMPLE_ALLOWED=1"}
	one, two := startReplica(t, env...).ready(), startReplica(t, env...).ready()
	slug, key := one.tenant(perMinute(2))
	two.knows(key)
	allowed := one.call(http.MethodPost, one.public+"/v1/check", key, map[string]any{})
	require.Equal(t, http.StatusOK, allowed.status)
	require.Equal(t, "allow", two.explained(allowed.header.Get("X-Pegel-Decision"))["decision"], "a sampled one")
	require.Equal(t, http.StatusOK, two.call(http.MethodPost, two.public+"/v1/check", key, map[string]any{}).status)

	hits := map[string]int{}
	for range 20 {
		hits[refusedID(t, one.call(http.MethodPost, one.public+"/v1/check", key, map[string]any{}))]++
	}
	for id, n := range hits {
		got := two.explained(id)
		require.Equal(t, slug, got["tenant"])
		require.Equal(t, "rate-limit-exceeded", got["reason"])
		require.Equal(t, "redis", got["source"])
		require.Contains(t, got["why"], "Refused: tenant "+slug+" had used 2 of 2 units per 1m by requests-per-minute, said redis;")
		require.Eventually(t, func() bool { return two.explained(id)["count"] == float64(n) }, 20*time.Second, 20*time.Millisecond)
	}

	last := refusedID(t, two.call(http.MethodPost, two.public+"/v1/check", key, map[string]any{}))
	two.stop()
	err := <-two.ended
	two.ended <- err
	require.NoError(t, err)
	a := one.call(http.MethodGet, one.admin+"/admin/decisions/"+last, adminToken, nil)
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	logged := 0.0
	for _, item := range one.logged(slug) {
		row, _ := item.(map[string]any)
		n, _ := row["count"].(float64)
		logged += n
	}
	require.InDelta(t, 21, logged, 0, "every refusal, and no other call: the plan's request_log is denied")
	metrics := string(one.call(http.MethodGet, one.admin+"/metrics", "", nil).body)
	require.Contains(t, metrics, `pegel_journal_dropped_total{log="requests"} 0`)
	require.NotContains(t, metrics, `pegel_journal_written_total{log="decisions"} 0`)
}

// Guarantee: Postgres gone or hung costs decisions nothing; /readyz says that the log waits, and what waited is written when
// Postgres is back.
func TestTheJournalWaitsForPostgres(t *testing.T) {
	t.Parallel()
	for name, fault := range faults() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := testenv.PostgresServer(t)
			r := startReplica(t, "PEGEL_DATABASE_URL="+database.URL(), "PEGEL_REDIS_URL="+testenv.RedisServer(t).URL(), "PEGEL_REDIS_TIMEOUT=5s").ready()
			slug, key := r.tenant(perMinute(1))
			r.decidesOn(key, "redis")
			require.NoError(t, fault.postgres(database))
			require.Equal(t, http.StatusOK, r.call(http.MethodPost, r.public+"/v1/check", key, map[string]any{}).status)
			id := refusedID(t, r.call(http.MethodPost, r.public+"/v1/check", key, map[string]any{}))
			require.Eventually(t, func() bool {
				a, err := call(context.WithoutCancel(t.Context()), http.MethodGet, r.public+"/readyz", "", nil)
				return err == nil && strings.Contains(string(a.body), "request log and explanations cannot be written now")
			}, 30*time.Second, 50*time.Millisecond)
			require.NoError(t, fault.postgresBack(database))
			require.Equal(t, "deny", r.explained(id)["decision"])
			require.Eventually(t, func() bool {
				a, err := call(context.WithoutCancel(t.Context()), http.MethodGet, r.public+"/readyz", "", nil)
				return err == nil && !strings.Contains(string(a.body), "cannot be written now")
			}, 30*time.Second, 50*time.Millisecond)
			require.Len(t, r.logged(slug), 1)
		})
	}
}
