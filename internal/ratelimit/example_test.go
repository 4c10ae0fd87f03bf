package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// The worked example of README.md, line by line.
func TestWorkedExample(t *testing.T) {
	var now time.Time
	at := func(clock string) {
		t.Helper()
		var err error
		now, err = time.Parse(time.DateTime, "2026-11-30 "+clock)
		require.NoError(t, err)
	}
	m := ratelimit.NewMemory(func() int64 { return now.UnixMicro() }, 0)
	perMinute := &ratelimit.Limit{Name: "requests-per-minute", Algorithm: ratelimit.SlidingWindowLog, Quota: 10, Window: time.Minute}
	exports := &ratelimit.Limit{Name: "exports", Algorithm: ratelimit.FixedWindow, Quota: 3, Window: time.Hour}
	take := func(hits, cost int64, limits ...*ratelimit.Limit) ratelimit.Outcome {
		t.Helper()
		charges, out := chargeOf("school-17", limits...), make([]ratelimit.Outcome, 1)
		charges[0].Hits, charges[0].Cost = hits, cost
		require.NoError(t, m.Decide(context.Background(), charges, out))
		require.NoError(t, out[0].Err)
		return out[0]
	}

	at("12:00:50")
	out := take(6, 1, perMinute)
	require.EqualValues(t, 6, out.Admitted)
	require.EqualValues(t, 4, out.Counters[0].Remaining)
	require.Equal(t, time.Minute, out.Counters[0].ResetAfter)

	at("12:01:10")
	out = take(4, 1, perMinute, exports)
	require.EqualValues(t, 3, out.Admitted)
	require.EqualValues(t, 9, out.Counters[0].Used)
	require.EqualValues(t, 3, out.Counters[1].Used)
	require.Equal(t, 58*time.Minute+50*time.Second, out.Counters[1].RetryAfter)
	out = take(1, 1, perMinute, exports)
	require.Zero(t, out.Admitted)
	require.EqualValues(t, 9, out.Counters[0].Used)

	at("12:01:20")
	out = take(1, 2, perMinute)
	require.Zero(t, out.Admitted)
	require.Equal(t, 30*time.Second, out.Counters[0].RetryAfter)
	out = take(1, 11, perMinute)
	require.Zero(t, out.Admitted)
	require.Equal(t, ratelimit.Never, out.Counters[0].RetryAfter)

	at("12:01:50")
	out = take(1, 2, perMinute)
	require.EqualValues(t, 1, out.Admitted)
	require.EqualValues(t, 5, out.Counters[0].Used)
}
