package ratelimit_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/redisstore"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// Guarantee: a hit whose answer from Redis came too late is charged once. Postgres decides it instead, and the use that both
// then know of is never added up.
func TestALateReplyIsChargedOnce(t *testing.T) {
	server := testenv.RedisServer(t)
	l := newLiar(t, server.Addr())
	through := onServers(t, "redis://"+l.Addr().String(), testenv.Postgres(t), redisBudget, patientBudget)
	direct, err := redisstore.New(redisstore.Config{URL: server.URL(), Timeout: 10 * time.Second, Now: time.Now}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer func() { require.NoError(t, direct.Close()) }()
	limit := perMinute("late", 1000, ratelimit.FailClosed)
	limit.Window = time.Hour
	peek := []ratelimit.Charge{{Kind: ratelimit.Peek, Counters: hit(limit)[0].Counters, Hits: 1, Cost: 1}}
	redisUsed := func() int64 {
		out := make([]ratelimit.Outcome, 1)
		require.NoError(t, direct.Decide(context.Background(), peek, out))
		require.NoError(t, out[0].Err)
		return out[0].Counters[0].Used
	}

	const late = 3
	for n := range int64(late) {
		settles(t, through, ratelimit.SourceRedis) // over a good connection: what is late is the command, not the dialling
		l.delay.Store(int64(3 * redisBudget))
		out, err := decide(t, through, hit(limit))
		require.NoError(t, err)
		require.NoError(t, out.Err)
		require.Equal(t, ratelimit.SourcePostgres, out.Source)
		require.EqualValues(t, 1, out.Admitted)
		l.delay.Store(0)
		require.Eventually(t, func() bool { return redisUsed() == n+1 }, 10*time.Second, 10*time.Millisecond, "Redis counts it when it comes")
	}
	settles(t, through, ratelimit.SourceRedis)
	for range 3 { // whatever the return tops up
		require.NoError(t, through.Mirror(context.Background()))
		_, err := decide(t, through, peek)
		require.NoError(t, err)
	}
	require.EqualValues(t, late, redisUsed())
}
