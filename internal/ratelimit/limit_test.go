package ratelimit_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

func TestSlowdownDelay(t *testing.T) {
	s := &ratelimit.Slowdown{From: 0.8, MaxDelay: 2 * time.Second}
	for _, test := range []struct {
		utilisation float64
		want        time.Duration
	}{
		{0, 0},
		{0.8, 0},
		{0.81, 100 * time.Millisecond},
		{0.9, time.Second},
		{1, 2 * time.Second},
		{1.5, 2 * time.Second},
	} {
		require.InDelta(t, test.want, s.Delay(test.utilisation), float64(time.Microsecond), "%g", test.utilisation)
	}
	var none *ratelimit.Slowdown
	require.Zero(t, none.Delay(1))
	require.Equal(t, time.Second, (&ratelimit.Slowdown{From: 0, MaxDelay: 2 * time.Second}).Delay(0.5))
}

func TestSpan(t *testing.T) {
	bucket := func(quota, units int64, every time.Duration) *ratelimit.Limit {
		return &ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Quota: quota, Refill: ratelimit.Rate{Units: units, Every: every}}
	}
	require.Equal(t, time.Minute, (&ratelimit.Limit{Algorithm: ratelimit.FixedWindow, Window: time.Minute}).Span())
	require.Equal(t, 10*time.Second, bucket(10, 1, time.Second).Span())
	require.Equal(t, 333334*time.Microsecond, bucket(10, 30, time.Second).Span(), "rounded up to a microsecond")
	require.Equal(t, ratelimit.MaxSpan, bucket(ratelimit.MaxQuota, 1, time.Hour).Span())
	require.Zero(t, bucket(10, 0, time.Second).Span())
}

func TestUnitsPerHit(t *testing.T) {
	for _, test := range []struct{ multiplier, cost, want int64 }{
		{0, 5, 5},
		{1, 0, 0},
		{3, 5, 15},
		{-1, 5, 5},
		{3, -5, 0},
		{math.MaxInt64, 1, ratelimit.MaxQuota + 1},
		{1_000_000, ratelimit.MaxCost, ratelimit.MaxQuota},
		{1_000_001, ratelimit.MaxCost, ratelimit.MaxQuota + 1},
		{1 << 62, ratelimit.MaxCost, ratelimit.MaxQuota + 1},
	} {
		l := &ratelimit.Limit{Cost: test.multiplier}
		require.Equal(t, test.want, l.UnitsPerHit(test.cost), "%+v", test)
	}
}
