package app_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// Guarantee: a budget is one budget over the loss of Redis and its return without any data: what Redis admitted counts in
// Postgres, and what Postgres admitted counts on Redis. Callers see the source and never an error.
func TestOneBudgetOverALossOfRedis(t *testing.T) {
	t.Parallel()
	redis := testenv.RedisServer(t)
	env := []string{
		"PEGEL_DATABASE_URL=" + testenv.Postgres(t), "PEGEL_REDIS_URL=" + redis.URL(),
		"PEGEL_REDIS_TIMEOUT=2s", "PEGEL_DATABASE_DECISION_TIMEOUT=3s",
	}
	replicas := []*replica{startReplica(t, env...).ready(), startReplica(t, env...).ready(), startReplica(t, env...).ready()}
	one := replicas[0]
	limit := perMinute(100)
	limit["window"] = "5m"
	_, key := one.tenant(limit)
	for _, r := range replicas[1:] {
		r.knows(key)
	}
	for _, r := range replicas {
		r.becomes(10*time.Second, http.StatusOK, map[string]any{"source": "redis"})
	}
	take := func(n int) (admitted int, sources map[string]int) {
		sources = map[string]int{}
		for i := range n {
			a := replicas[i%3].call(http.MethodPost, replicas[i%3].public+"/v1/check", key, map[string]any{})
			require.Contains(t, []int{http.StatusOK, http.StatusTooManyRequests}, a.status, "%s", a.body)
			if a.status == http.StatusOK {
				admitted++
				sources[fmt.Sprint(a.json(t)["source"])]++
			}
		}
		return admitted, sources
	}
	admitted, sources := take(60)
	require.Equal(t, 60, admitted)
	require.Equal(t, map[string]int{"redis": 60}, sources)
	for _, r := range replicas {
		require.Eventually(t, func() bool { return r.metric("pegel_mirror_pending") == "0" }, 15*time.Second, 50*time.Millisecond)
	}

	require.NoError(t, redis.Kill())
	admitted, sources = take(150)
	require.InDelta(t, 40, admitted, 5, "%v", sources)
	require.Zero(t, sources["redis"])

	require.NoError(t, redis.Start())
	for _, r := range replicas {
		r.becomes(15*time.Second, http.StatusOK, map[string]any{"source": "redis", "redis": "up"})
	}
	admitted, sources = take(60)
	require.LessOrEqual(t, admitted, 5, "%v", sources)
}

// metric is the value of a metric without labels, as scraped.
func (r *replica) metric(name string) string {
	r.t.Helper()
	for line := range strings.Lines(string(r.call(http.MethodGet, r.admin+"/metrics", "", nil).body)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			return value
		}
	}
	return ""
}
