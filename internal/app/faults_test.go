package app_test

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// Guarantee (B025, incident 4): a Redis that hangs costs nobody more than its deadline: answers keep coming, from
// Postgres, never a 5xx, never a false 429, from the first one on; and Redis takes over again by itself.
func TestHungRedis(t *testing.T) {
	t.Parallel()
	redis := testenv.RedisServer(t)
	r := startReplica(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_REDIS_URL="+redis.URL()).ready()
	_, key := r.tenant(perMinute(100_000))
	require.Eventually(t, func() bool { // warm: the first dial is not what this is about
		a, err := call(t.Context(), http.MethodPost, r.public+"/v1/check", key, map[string]any{})
		return err == nil && a.header.Get("X-Pegel-Source") == ""
	}, 10*time.Second, 10*time.Millisecond)

	require.NoError(t, redis.Pause())
	var mu sync.Mutex
	var took []time.Duration
	counts := parallel(t, 200, func(int) string {
		begun := time.Now()
		a, err := call(t.Context(), http.MethodPost, r.public+"/v1/check", key, map[string]any{})
		mu.Lock()
		took = append(took, time.Since(begun))
		mu.Unlock()
		if err != nil {
			return err.Error()
		}
		return strconv.Itoa(a.status)
	})
	require.Equal(t, map[string]int{"200": 200}, counts)
	slices.Sort(took)
	t.Logf("p50 %s, p99 %s, max %s", took[100], took[197], took[199])
	// The contract's 250 ms are measured on a quiet machine (make bench); tests share theirs with others.
	require.Less(t, took[197], time.Second)
	r.becomes(5*time.Second, http.StatusOK, map[string]any{"status": "degraded", "source": "postgres", "redis": "down"})
	a := r.call(http.MethodPost, r.public+"/v1/check", key, map[string]any{})
	require.Equal(t, "postgres", a.header.Get("X-Pegel-Source"))

	require.NoError(t, redis.Resume())
	require.Eventually(t, func() bool {
		a, err := call(t.Context(), http.MethodPost, r.public+"/v1/check", key, map[string]any{})
		return err == nil && a.status == http.StatusOK && a.header.Get("X-Pegel-Source") == ""
	}, 10*time.Second, 50*time.Millisecond)
}

// Guarantee: with both stores gone each limit does what its plan says: open allows and says none, closed answers 503,
// local counts. Never a 500, never a false 429. Administration answers 503 within 2 s, and everything comes back.
func TestBothStoresGone(t *testing.T) {
	t.Parallel()
	redis, pg := testenv.RedisServer(t), testenv.PostgresServer(t)
	r := startReplica(t, "PEGEL_DATABASE_URL="+pg.URL(), "PEGEL_REDIS_URL="+redis.URL()).ready()
	_, open := r.tenant(perMinute(5))
	_, closed := r.tenant(perMinute(5, map[string]any{"on_store_failure": "closed"}))
	_, local := r.tenant(perMinute(5, map[string]any{"on_store_failure": "local"}))

	require.NoError(t, redis.Pause())
	require.NoError(t, pg.Pause())
	for i := range 10 {
		a := r.call(http.MethodPost, r.public+"/v1/check", open, map[string]any{})
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		require.Equal(t, "none", a.json(t)["source"])
		require.Empty(t, a.header.Get("X-RateLimit-Limit"))

		a = r.call(http.MethodPost, r.public+"/v1/check", closed, map[string]any{})
		require.Equal(t, http.StatusServiceUnavailable, a.status, "%s", a.body)
		require.NotEmpty(t, a.header.Get("Retry-After"))

		a = r.call(http.MethodPost, r.public+"/v1/check", local, map[string]any{})
		require.Equal(t, "memory", a.json(t)["source"])
		require.Equal(t, map[bool]int{true: http.StatusOK, false: http.StatusTooManyRequests}[i < 5], a.status)
	}
	begun := time.Now()
	a := r.call(http.MethodPost, r.admin+"/admin/tenants", adminToken, map[string]any{"slug": "late", "name": "L", "plan": "light"})
	require.Equal(t, http.StatusServiceUnavailable, a.status, "%s", a.body)
	require.Less(t, time.Since(begun), 3*time.Second, "2 s, and what a shared machine adds")
	require.Equal(t, http.StatusOK, r.call(http.MethodGet, r.public+"/healthz", "", nil).status)
	r.becomes(5*time.Second, http.StatusServiceUnavailable, map[string]any{"source": "none", "redis": "down", "postgres": "down"})

	require.NoError(t, pg.Resume())
	require.NoError(t, redis.Resume())
	r.becomes(15*time.Second, http.StatusOK, map[string]any{"status": "ok", "source": "redis", "redis": "up", "postgres": "up"})
}

// Guarantee: a Redis that would forget counters is named in the log.
func TestEvictingRedisIsNamed(t *testing.T) {
	t.Parallel()
	redis := testenv.RedisServer(t, "--maxmemory-policy", "allkeys-lru")
	r := startReplica(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_REDIS_URL="+redis.URL()).ready()
	require.Eventually(t, func() bool {
		return strings.Contains(r.logs.String(), "maxmemory-policy noeviction") && strings.Contains(r.logs.String(), "allkeys-lru")
	}, 15*time.Second, 50*time.Millisecond)
}
