package app_test

import (
	"net/http"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// twoReplicas share a database and a Redis, whose calls may take their time: what these tests are about is counting.
func twoReplicas(t *testing.T) (one, two *replica) {
	t.Helper()
	env := []string{"PEGEL_DATABASE_URL=" + testenv.Postgres(t), "PEGEL_REDIS_URL=" + testenv.RedisServer(t).URL(), "PEGEL_REDIS_TIMEOUT=5s", "PEGEL_DATABASE_DECISION_TIMEOUT=5s"}
	return startReplica(t, env...).ready(), startReplica(t, env...).ready()
}

// Guarantee (incident 5): twenty curls at once at a limit of ten, on two replicas, are ten 200s and ten 429s.
func TestTwentyCurlsAtALimitOfTen(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	require.NoError(t, err, "install the Debian package curl, as make setup does")
	one, two := twoReplicas(t)
	_, key := one.tenant(perMinute(10))
	two.knows(key)
	counts := parallel(t, 20, func(i int) string {
		url := []string{one.public, two.public}[i%2] + "/v1/ping"
		out, err := exec.CommandContext(t.Context(), curl, "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Authorization: Bearer "+key, url).CombinedOutput()
		if err != nil {
			return err.Error() + string(out)
		}
		return string(out)
	})
	require.Equal(t, map[string]int{"200": 10, "429": 10}, counts)
}

// Guarantee: a token bucket of 10, refilled by 1 a second, lets ten through on two replicas together; the 11th is a 429 with
// Retry-After 1; one passes after a second, and no second one with it.
func TestTokenBucketOnTwoReplicas(t *testing.T) {
	t.Parallel()
	one, two := twoReplicas(t)
	urls := []string{one.public + "/v1/check", two.public + "/v1/check"}
	bucket := map[string]any{"name": "bucket", "algorithm": "token_bucket", "limit": 10, "refill": map[string]any{"units": 1, "every": "1s"}}
	try := func(key string, i int) answer { return one.call(http.MethodPost, urls[i%2], key, map[string]any{}) }

	// On a busy machine a unit may come back between the first hit and the 11th, which then passes rightly. Each round is a
	// bucket of its own; one that is quick enough must come.
	for round := range 20 {
		_, key := one.tenant(bucket)
		two.knows(key)
		begun := time.Now()
		counts := parallel(t, 10, func(i int) string { return strconv.Itoa(try(key, i).status) })
		require.Equal(t, map[string]int{"200": 10}, counts)
		a := try(key, round)
		if time.Since(begun) >= time.Second {
			continue
		}
		require.Equal(t, http.StatusTooManyRequests, a.status, "%s", a.body)
		require.Equal(t, "1", a.header.Get("Retry-After"))

		require.Eventually(t, func() bool { return try(key, round).status == http.StatusOK }, 10*time.Second, 20*time.Millisecond)
		passed := time.Now()
		require.GreaterOrEqual(t, passed.Sub(begun), time.Second, "not before its unit is back")
		second := try(key, round+1)
		if time.Since(begun) < 2*time.Second { // the next unit is not back
			require.Equal(t, http.StatusTooManyRequests, second.status, "%s", second.body)
		}
		return
	}
	require.Fail(t, "eleven hits took more than a second in 20 rounds")
}
