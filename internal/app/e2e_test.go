package app_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// counters are the stores a guarantee must hold on.
func counters(t *testing.T) map[string][]string {
	t.Helper()
	// Tenants of two databases may have the same ids, so each database has a Redis to itself.
	return map[string][]string{"redis": {"PEGEL_REDIS_URL=" + testenv.RedisServer(t).URL()}, "postgres": nil}
}

// Guarantee: one budget, however many replicas answer (incident 5). 500 parallel checks at quota 50 on two replicas let
// exactly 50 through, with Redis and without.
func TestTwoReplicasOneBudget(t *testing.T) {
	t.Parallel()
	for source, settings := range counters(t) {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			env := append([]string{"PEGEL_DATABASE_URL=" + testenv.Postgres(t), "PEGEL_DATABASE_DECISION_TIMEOUT=5s", "PEGEL_REDIS_TIMEOUT=5s"}, settings...)
			one, two := startReplica(t, env...).ready(), startReplica(t, env...).ready()
			_, key := one.tenant(perMinute(50))
			two.knows(key)

			counts := parallel(t, 500, func(i int) string {
				url := one.public
				if i%2 == 1 {
					url = two.public
				}
				a, err := call(t.Context(), http.MethodPost, url+"/v1/check", key, map[string]any{})
				if err != nil {
					return err.Error()
				}
				return strconv.Itoa(a.status)
			})
			require.Equal(t, map[string]int{"200": 50, "429": 450}, counts)
			require.Eventually(t, func() bool { // a status may be up to 1 s old
				status := two.call(http.MethodGet, two.public+"/v1/status", key, nil).json(t)
				return status["used"] == 50.0 && status["source"] == source
			}, 3*time.Second, 50*time.Millisecond)
		})
	}
}

// parallel runs f n times at once and counts what comes back.
func parallel(t *testing.T, n int, f func(i int) string) map[string]int {
	t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	counts := map[string]int{}
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			got := f(i)
			mu.Lock()
			counts[got]++
			mu.Unlock()
		})
	}
	close(start)
	wg.Wait()
	return counts
}

// Guarantee: any number of replicas may start at once on an empty database. The schema is made once, the defaults are
// installed once, and nobody fails.
func TestReplicasRaceOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	redis := testenv.RedisServer(t).URL()
	for round := range 10 {
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			database := testenv.EmptyPostgres(t)
			var replicas []*replica
			for range 5 {
				replicas = append(replicas, startReplica(t, "PEGEL_DATABASE_URL="+database, "PEGEL_REDIS_URL="+redis, "PEGEL_DATABASE_POOL_SIZE=4"))
			}
			for _, r := range replicas {
				r.ready()
			}
			conn, err := pgx.Connect(t.Context(), database)
			require.NoError(t, err)
			defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
			var versions, plans, policies int
			require.NoError(t, conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM schema_migrations WHERE NOT dirty),
				(SELECT count(*) FROM plans), (SELECT count(*) FROM address_limits)`).Scan(&versions, &plans, &policies))
			require.Equal(t, []int{1, 3, 3}, []int{versions, plans, policies})
		})
	}
}

// Guarantee: start-up never needs Redis. Down, hung or still loading, the replica serves from Postgres within 10 s, and
// goes over to Redis by itself when that comes.
func TestColdStartWithoutRedis(t *testing.T) {
	t.Parallel()
	for name, fault := range faults() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := testenv.RedisServer(t)
			require.NoError(t, fault.redis(redis))
			begun := time.Now()
			r := startReplica(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_REDIS_URL="+redis.URL(), "PEGEL_DATABASE_DECISION_TIMEOUT=2s").ready()
			r.becomes(10*time.Second, http.StatusOK, map[string]any{"status": "degraded", "source": "postgres", "redis": "down", "postgres": "up"})
			require.Less(t, time.Since(begun), 10*time.Second)

			_, key := r.tenant(perMinute(10))
			a := r.call(http.MethodPost, r.public+"/v1/check", key, map[string]any{})
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
			require.Equal(t, "postgres", a.json(t)["source"])
			require.Equal(t, "postgres", a.header.Get("X-Pegel-Source"))

			require.NoError(t, fault.redisBack(redis))
			r.becomes(10*time.Second, http.StatusOK, map[string]any{"status": "ok", "source": "redis", "redis": "up"})
			require.Eventually(t, func() bool {
				a, err := call(t.Context(), http.MethodPost, r.public+"/v1/check", key, map[string]any{"cost": 0})
				return err == nil && a.status == http.StatusOK && a.header.Get("X-Pegel-Source") == ""
			}, 10*time.Second, 50*time.Millisecond)
		})
	}
}

// Guarantee: while Postgres is away at a cold start the process waits: alive, not ready, and no request is answered as if
// its credential were wrong. It goes on by itself.
func TestColdStartWithoutPostgres(t *testing.T) {
	t.Parallel()
	pg := testenv.PostgresServer(t)
	require.NoError(t, pg.Stop())
	r := startReplica(t, "PEGEL_DATABASE_URL="+pg.URL(), "PEGEL_PROXY_LISTEN=127.0.0.1:0", "PEGEL_PROXY_UPSTREAM=http://127.0.0.1:9")

	require.Equal(t, http.StatusOK, r.call(http.MethodGet, r.public+"/healthz", "", nil).status)
	require.Equal(t, http.StatusOK, r.call(http.MethodGet, r.admin+"/healthz", "", nil).status)
	require.Equal(t, http.StatusOK, r.call(http.MethodGet, r.admin+"/metrics", "", nil).status)
	r.becomes(5*time.Second, http.StatusServiceUnavailable, map[string]any{"status": "starting", "source": "none", "redis": "unconfigured", "postgres": "down"})
	for _, url := range []string{r.public + "/v1/ping", r.public + "/v1/status", r.proxy + "/"} {
		a := r.call(http.MethodGet, url, "pgk_someid_somesecret", nil)
		require.Equal(t, http.StatusServiceUnavailable, a.status, "%s: %s", url, a.body)
		require.Equal(t, "store_unavailable", a.json(t)["error"])
	}

	require.NoError(t, pg.Start())
	r.ready()
	r.becomes(10*time.Second, http.StatusOK, map[string]any{"status": "ok", "source": "postgres", "postgres": "up"})
}

// Guarantee: a replica that is told to end while it waits for Postgres ends at once.
func TestEndWhileStarting(t *testing.T) {
	t.Parallel()
	r := startReplica(t, "PEGEL_DATABASE_URL=postgres://pegel@127.0.0.1:1/pegel", "PEGEL_DRAIN_PAUSE=1m")
	r.stop()
	select {
	case err := <-r.ended:
		require.NoError(t, err)
		r.ended <- nil
	case <-time.After(10 * time.Second):
		require.Fail(t, "it does not end")
	}
}

// Guarantee: SIGTERM loses no request (B070). First /readyz says 503 while everything is still answered; then what is in
// flight finishes, held requests with it; then the replica ends without an error.
func TestDrain(t *testing.T) {
	t.Parallel()
	released := make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-released
		_, _ = fmt.Fprint(w, "from the upstream")
	}))
	defer upstream.Close()
	defer release() // a test that fails must not wait for the upstream
	r := startReplica(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_REDIS_URL="+testenv.RedisServer(t).URL(), "PEGEL_DRAIN_PAUSE=1s",
		"PEGEL_PROXY_LISTEN=127.0.0.1:0", "PEGEL_PROXY_UPSTREAM="+upstream.URL).ready()
	slug, key := r.tenant(perMinute(1000, map[string]any{"slowdown": map[string]any{"from": 0, "max_delay": "4s"}}))
	_, fast := r.tenant(perMinute(1000))
	service := r.service()

	type result struct {
		answer
		err   error
		after time.Duration
	}
	begin := func(method, url, token string, body any) <-chan result {
		done := make(chan result, 1)
		begun := time.Now()
		go func() {
			a, err := call(t.Context(), method, url, token, body)
			done <- result{a, err, time.Since(begun)}
		}()
		return done
	}
	held := begin(http.MethodPost, r.public+"/v1/check", service, map[string]any{"tenant": slug, "cost": 500, "wait": true}) // 2 s
	proxied := begin(http.MethodGet, r.proxy+"/slow", fast, nil)
	require.Eventually(t, func() bool {
		status := r.call(http.MethodGet, r.public+"/v1/status", key, nil).json(t)
		other := r.call(http.MethodGet, r.public+"/v1/status", fast, nil).json(t)
		return status["used"] == 500.0 && other["used"] == 1.0
	}, 5*time.Second, 20*time.Millisecond, "both requests must be in flight")

	r.stop()
	r.becomes(time.Second, http.StatusServiceUnavailable, map[string]any{"status": "draining"})
	during := r.call(http.MethodPost, r.public+"/v1/check", fast, map[string]any{})
	require.Equal(t, http.StatusOK, during.status, "during the pause everything is answered")
	require.True(t, during.closes, "and clients are told to move on")

	got := <-held
	require.NoError(t, got.err)
	require.Equal(t, http.StatusOK, got.status, "%s", got.body)
	require.GreaterOrEqual(t, got.after, 2*time.Second, "a held request keeps its delay")
	_, err := call(t.Context(), http.MethodGet, r.public+"/healthz", "", nil)
	require.Error(t, err, "the listener is closed while requests are in flight")

	release()
	through := <-proxied
	require.NoError(t, through.err)
	require.Equal(t, "from the upstream", string(through.body))
	select {
	case err := <-r.ended:
		require.NoError(t, err)
		r.ended <- nil
	case <-time.After(10 * time.Second):
		require.Fail(t, "it does not end")
	}
}

// Guarantee: a rolling restart behind a balancer that watches /readyz fails no request.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	env := []string{
		"PEGEL_DATABASE_URL=" + testenv.Postgres(t), "PEGEL_REDIS_URL=" + testenv.RedisServer(t).URL(), "PEGEL_DRAIN_PAUSE=400ms",
		"PEGEL_REDIS_TIMEOUT=2s", "PEGEL_DATABASE_DECISION_TIMEOUT=2s",
	}
	one, two := startReplica(t, env...).ready(), startReplica(t, env...).ready()
	_, key := one.tenant(perMinute(1_000_000))
	two.knows(key)

	var targets [2]atomic.Pointer[replica]
	targets[0].Store(one)
	targets[1].Store(two)
	// pick is the balancer: it asks for readiness as often as it sends a request.
	pick := func(i int) *replica {
		for j := range 2 {
			r := targets[(i+j)%2].Load()
			if a, err := call(t.Context(), http.MethodGet, r.public+"/readyz", "", nil); err == nil && a.status == http.StatusOK {
				return r
			}
		}
		return nil
	}
	stop := make(chan struct{})
	var sent, failed atomic.Int64
	var first atomic.Pointer[string]
	var load sync.WaitGroup
	for worker := range 4 {
		load.Go(func() {
			for i := worker; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				r := pick(i)
				if r == nil {
					continue
				}
				a, err := call(t.Context(), http.MethodPost, r.public+"/v1/check", key, map[string]any{})
				sent.Add(1)
				if err != nil || a.status != http.StatusOK {
					failed.Add(1)
					text := fmt.Sprint(a.status, err, string(a.body))
					first.CompareAndSwap(nil, &text)
				}
			}
		})
	}
	for i := range 4 {
		old := targets[i%2].Load()
		before := sent.Load()
		require.Eventually(t, func() bool { return sent.Load() > before+50 }, 20*time.Second, 5*time.Millisecond)
		old.stop()
		err := <-old.ended
		old.ended <- err
		require.NoError(t, err)
		targets[i%2].Store(startReplica(t, env...).ready())
	}
	close(stop)
	load.Wait()
	if text := first.Load(); text != nil {
		require.Failf(t, "requests failed", "%d of %d; the first: %s", failed.Load(), sent.Load(), *text)
	}
	require.Greater(t, sent.Load(), int64(200))
}
