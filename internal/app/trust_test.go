package app_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// movedClock is the machine's clock, moved.
type movedClock struct{ by atomic.Int64 }

func (c *movedClock) now() time.Time { return time.Now().Add(time.Duration(c.by.Load())) }

// to moves it to a moment, or a little later.
func (c *movedClock) to(at time.Time) { c.by.Store(int64(time.Until(at))) }

// standing is whether each thing still has its effect on a replica.
type standing map[string]bool

// Guarantee: while Postgres is away, what expires does so at its moment, and service and admin tokens that nobody can confirm end after a
// day, while API keys and the bootstrap token go on; when Postgres is back, all that lives counts again.
func TestTrustWhilePostgresIsAway(t *testing.T) {
	t.Parallel()
	database, clock := testenv.PostgresServer(t), &movedClock{}
	r := startReplicaAt(t, clock.now, "PEGEL_DATABASE_URL="+database.URL(), "PEGEL_REDIS_URL="+testenv.RedisServer(t).URL(), "PEGEL_TRUSTED_PROXIES=127.0.0.1",
		"PEGEL_REDIS_TIMEOUT=5s").ready()
	slug, key := r.tenant(perMinute(10))
	ends := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	until := func(body map[string]any) map[string]any {
		body["expires_at"] = ends.Format(time.RFC3339Nano)
		return body
	}
	keys := "/admin/tenants/" + slug + "/keys"
	endingKey := r.secret(keys, until(map[string]any{"name": "k"}))
	service, endingService := r.secret("/admin/service-tokens", map[string]any{"name": "s", "exempt": []string{"address"}, "may": []string{"check"}}),
		r.secret("/admin/service-tokens", until(map[string]any{"name": "s", "may": []string{"check"}}))
	admin, endingAdmin := r.secret("/admin/admin-tokens", map[string]any{"name": "a", "role": "viewer"}), r.secret("/admin/admin-tokens", until(map[string]any{"name": "a", "role": "viewer"}))
	r.administer(http.StatusCreated, http.MethodPut, "/admin/tenants/"+slug+"/overrides/requests-per-minute", until(map[string]any{"limit": 50, "reason": "r"}))
	r.administer(http.StatusCreated, http.MethodPost, "/admin/networks", until(map[string]any{"cidr": "203.0.113.0/24", "action": "deny"}))
	check := func(token string, body map[string]any) answer {
		return r.call(http.MethodPost, r.public+"/v1/check", token, body)
	}
	ping := func(token, address string) answer {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.public+"/v1/ping", http.NoBody)
		require.NoError(t, err)
		req.Header.Set("X-Forwarded-For", address)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		return r.send(req)
	}
	signedIn := func(token string) bool { // what is asked is answered from memory
		a := r.call(http.MethodGet, r.admin+"/admin/networks?format=text", token, nil)
		require.Contains(t, []int{http.StatusOK, http.StatusUnauthorized}, a.status, "%s", a.body)
		return a.status == http.StatusOK
	}
	stands := func() standing {
		named := map[string]any{"tenant": slug, "cost": 0}
		return standing{
			"key": check(key, map[string]any{"cost": 0}).status == http.StatusOK, "ending key": check(endingKey, map[string]any{"cost": 0}).status == http.StatusOK,
			"service": check(service, named).status == http.StatusOK, "ending service": check(endingService, named).status == http.StatusOK,
			"exemption": ping(service, "192.0.2.1").header.Get("X-RateLimit-Limit") == "",
			"admin":     signedIn(admin), "ending admin": signedIn(endingAdmin), "bootstrap": signedIn(adminToken),
			"override": check(key, map[string]any{"cost": 0}).json(t)["limit"] == 50.0, "network": ping("", "203.0.113.9").status == http.StatusForbidden,
		}
	}
	all := standing{
		"key": true, "ending key": true, "service": true, "ending service": true, "exemption": true, "admin": true, "ending admin": true, "bootstrap": true,
		"override": true, "network": true,
	}
	lasting := standing{
		"key": true, "ending key": false, "service": true, "ending service": false, "exemption": true, "admin": true, "ending admin": false, "bootstrap": true,
		"override": false, "network": false,
	}
	require.Equal(t, all, stands())

	require.NoError(t, database.Stop())
	r.becomes(10*time.Second, http.StatusOK, map[string]any{"postgres": "down"})
	away := clock.now()
	clock.to(ends.Add(-20 * time.Second))
	require.Equal(t, all, stands(), "before its moment nothing ends")
	require.True(t, clock.now().Before(ends), "the machine is too slow for this")
	clock.to(ends)
	require.Equal(t, lasting, stands(), "at its moment everything does")

	clock.to(away.Add(24*time.Hour - 2*time.Minute))
	require.Equal(t, lasting, stands())
	clock.to(away.Add(24 * time.Hour))
	require.Equal(t, standing{
		"key": true, "ending key": false, "service": false, "ending service": false, "exemption": false, "admin": false, "ending admin": false, "bootstrap": true,
		"override": false, "network": false,
	}, stands(), "what nobody has confirmed for a day ends")

	require.NoError(t, database.Start())
	require.Eventually(t, func() bool { return check(service, map[string]any{"tenant": slug, "cost": 0}).status == http.StatusOK }, 30*time.Second, 50*time.Millisecond)
	require.Equal(t, lasting, stands())
}

// Guarantee: when credentials were last used is written once a minute, however often they are used, in one statement for each kind.
func TestLastUsedIsWrittenLazily(t *testing.T) {
	t.Parallel()
	database := testenv.PostgresServer(t, "shared_preload_libraries=pg_stat_statements")
	conn, err := pgx.Connect(t.Context(), database.URL())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	_, err = conn.Exec(t.Context(), `CREATE EXTENSION pg_stat_statements`)
	require.NoError(t, err)
	r := startReplica(t, "PEGEL_DATABASE_URL="+database.URL(), "PEGEL_REDIS_URL="+testenv.RedisServer(t).URL(), "PEGEL_REDIS_TIMEOUT=5s").ready()
	service := r.service()
	slug, key := r.tenant(perMinute(1_000_000))
	begun := time.Now()
	for range 500 {
		require.Equal(t, http.StatusOK, r.call(http.MethodPost, r.public+"/v1/check", key, map[string]any{}).status)
		require.Equal(t, http.StatusOK, r.call(http.MethodPost, r.public+"/v1/check", service, map[string]any{"tenant": slug}).status)
	}
	r.stop() // what was not written yet is now
	err = <-r.ended
	r.ended <- err
	require.NoError(t, err)
	var writes int64
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements WHERE query ~ 'SET last_used_at'`).Scan(&writes))
	require.Positive(t, writes)
	require.LessOrEqual(t, writes, 2*(1+int64(time.Since(begun)/time.Minute)), "two kinds, once a minute and at the end")
}
