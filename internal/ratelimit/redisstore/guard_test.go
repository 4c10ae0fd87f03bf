package redisstore

import (
	"context"
	"crypto/rand"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/testenv"
)

func TestGuardFollowsAJumpSlowly(t *testing.T) {
	here, there := time.Unix(1_000, 0), int64(1_790_000_000_000_000)
	g := &guard{now: func() time.Time { return here }}
	pass := func(d time.Duration) {
		here = here.Add(d)
		there += d.Microseconds()
	}
	ahead := func() time.Duration { return time.Duration(g.latest()-there) * time.Microsecond }

	require.Zero(t, g.latest(), "nothing is known before the first reply")
	g.observe(there)
	require.Equal(t, time.Minute, ahead())
	pass(time.Hour)
	g.observe(there)
	require.Equal(t, time.Minute, ahead(), "time that passes here passes there")
	there += 30_000_000
	g.observe(there)
	require.Equal(t, time.Minute, ahead(), "what is plausible is followed at once")
	there -= time.Hour.Microseconds()
	g.observe(there)
	require.Equal(t, time.Minute, ahead(), "backward, too")

	there += 10 * time.Minute.Microseconds()
	for range 59 {
		g.observe(there)
		require.Equal(t, -9*time.Minute, ahead())
		pass(time.Second)
	}
	pass(time.Second)
	g.observe(there)
	require.Equal(t, -8*time.Minute, ahead(), "another minute after a minute")
	minutes := 1
	for ; ahead() < time.Minute; minutes++ {
		require.Less(t, minutes, 15)
		pass(time.Minute)
		g.observe(there)
	}
	require.InDelta(t, 9, minutes, 1, "then it has been caught up with")
	g.observe(there)
	require.Equal(t, time.Minute, ahead())
}

// A forward jump of Redis's clock credits a bucket one minute, not the length of the jump.
func TestAForwardJumpCreditsAMinute(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []ratelimit.Algorithm{ratelimit.TokenBucket, ratelimit.LeakyBucket} {
		t.Run(string(algorithm), func(t *testing.T) { jump(t, algorithm) })
	}
}

func jump(t *testing.T, algorithm ratelimit.Algorithm) {
	t.Helper()
	here, there := time.Unix(1_000, 0), int64(1_790_000_000_000_000)
	s, err := New(Config{
		URL: testenv.Redis(t), Timeout: 10 * time.Second,
		Now: func() time.Time { return here }, TestClock: func() int64 { return there },
	}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	limit := &ratelimit.Limit{
		Name: "l", Scope: ratelimit.ScopeTenant, Algorithm: algorithm, Quota: 1000, Cost: 1,
		Refill: ratelimit.Rate{Units: 1, Every: time.Second},
	}
	key := ratelimit.CounterKey(ratelimit.Subject{Group: rand.Text(), Scope: limit.Scope}, limit)
	ask := func(kind ratelimit.Kind) (int64, ratelimit.CounterState) {
		out := make([]ratelimit.Outcome, 1)
		charge := ratelimit.Charge{Kind: kind, Counters: []ratelimit.Counter{{Key: key, Limit: limit}}, Hits: 1000, Cost: 1}
		require.NoError(t, s.Decide(context.Background(), []ratelimit.Charge{charge}, out))
		require.NoError(t, out[0].Err)
		return out[0].Admitted, out[0].Counters[0]
	}
	n, _ := ask(ratelimit.Take)
	require.EqualValues(t, 1000, n)
	there += time.Hour.Microseconds()
	n, _ = ask(ratelimit.Take)
	require.EqualValues(t, 60, n)
	n, state := ask(ratelimit.Take)
	require.Zero(t, n)
	require.Equal(t, time.Second, state.RetryAfter)
	here, there = here.Add(10*time.Second), there+10_000_000
	n, _ = ask(ratelimit.Take)
	require.EqualValues(t, 10, n, "it goes on refilling at its rate")
	here, there = here.Add(2*time.Hour), there+2*time.Hour.Microseconds()
	n, _ = ask(ratelimit.Peek)
	require.EqualValues(t, 1000, n)
}
