package app_test

import (
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/pegel-dev/pegel/internal/devmode"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// composeRedis are the settings docker-compose.yml gives Redis.
func composeRedis(t *testing.T) []string {
	t.Helper()
	raw, err := os.ReadFile("../../docker-compose.yml")
	require.NoError(t, err)
	var compose struct {
		Services map[string]struct {
			Command []string `yaml:"command"`
		} `yaml:"services"`
	}
	require.NoError(t, yaml.Unmarshal(raw, &compose))
	command := compose.Services["redis"].Command
	require.NotEmpty(t, command)
	require.Equal(t, "redis-server", command[0])
	return command[1:]
}

// Guarantee: counters survive a restart of Pegel, and with compose's settings a restart and a crash of Redis: `used` goes
// on mid-window.
func TestUsageSurvivesRestarts(t *testing.T) {
	t.Parallel()
	redis := testenv.RedisServer(t, composeRedis(t)...)
	env := []string{"PEGEL_DATABASE_URL=" + testenv.Postgres(t), "PEGEL_REDIS_URL=" + redis.URL(), "PEGEL_REDIS_TIMEOUT=2s", "PEGEL_DATABASE_DECISION_TIMEOUT=2s"}
	first := startReplica(t, env...).ready()
	_, key := first.tenant(perMinute(100))
	begun := time.Now()
	used := func(r *replica, cost int) any {
		a := r.call(http.MethodPost, r.public+"/v1/check", key, map[string]any{"cost": cost})
		require.Equal(t, "redis", a.json(t)["source"], "%s", a.body)
		return a.json(t)["used"]
	}
	require.EqualValues(t, 30, used(first, 30))
	first.stop()
	err := <-first.ended
	first.ended <- err
	require.NoError(t, err)

	second := startReplica(t, env...).ready()
	require.EqualValues(t, 50, used(second, 20))
	sum := 50
	for _, end := range []func(*devmode.Redis) error{(*devmode.Redis).Stop, (*devmode.Redis).Kill} {
		require.NoError(t, end(redis))
		second.becomes(10*time.Second, http.StatusOK, map[string]any{"redis": "down"})
		require.NoError(t, redis.Start())
		second.becomes(10*time.Second, http.StatusOK, map[string]any{"source": "redis"})
		sum += 5
		require.EqualValues(t, sum, used(second, 5))
	}
	require.Less(t, time.Since(begun), time.Minute, "the machine is too slow for one window")
}
