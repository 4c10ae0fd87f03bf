package redisstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/redisstore"
)

// newStore makes a store that is closed at the end of the test.
func newStore(tb testing.TB, cfg redisstore.Config) *redisstore.Store {
	tb.Helper()
	if cfg.Now == nil && cfg.TestClock == nil {
		cfg.Now = time.Now
	}
	store, err := redisstore.New(cfg, slog.New(slog.DiscardHandler))
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, store.Close()) })
	return store
}

// patient is a store whose calls may take their time: what is tested is not how long they take.
func patient(tb testing.TB, url string) *redisstore.Store {
	tb.Helper()
	return newStore(tb, redisstore.Config{URL: url, Timeout: 10 * time.Second})
}

// raw is a plain client of the same server.
func raw(tb testing.TB, url string) *redis.Client {
	tb.Helper()
	options, err := redis.ParseURL(url)
	require.NoError(tb, err)
	client := redis.NewClient(options)
	tb.Cleanup(func() { require.NoError(tb, client.Close()) })
	return client
}

func slidingLog(quota int64, window time.Duration) *ratelimit.Limit {
	return &ratelimit.Limit{
		Name: "log", Scope: ratelimit.ScopeTenant, Algorithm: ratelimit.SlidingWindowLog, Quota: quota, Window: window, Cost: 1,
	}
}

// oneOfEach are limits by all five algorithms.
func oneOfEach(quota int64, window time.Duration) []*ratelimit.Limit {
	var limits []*ratelimit.Limit
	for _, a := range []ratelimit.Algorithm{
		ratelimit.SlidingWindowLog, ratelimit.SlidingWindowCounter, ratelimit.FixedWindow, ratelimit.TokenBucket, ratelimit.LeakyBucket,
	} {
		l := &ratelimit.Limit{Name: string(a), Scope: ratelimit.ScopeTenant, Algorithm: a, Quota: quota, Cost: 1}
		if a.Bucket() {
			l.Refill = ratelimit.Rate{Units: quota, Every: window}
		} else {
			l.Window = window
		}
		limits = append(limits, l)
	}
	return limits
}

// tenant is a group that no other test has.
func tenant() string { return rand.Text() }

func countersOf(group string, limits ...*ratelimit.Limit) []ratelimit.Counter {
	var counters []ratelimit.Counter
	for _, l := range limits {
		key := ratelimit.CounterKey(ratelimit.Subject{Group: group, Scope: l.Scope}, l)
		counters = append(counters, ratelimit.Counter{Key: key, Limit: l, Shadow: l.Mode == ratelimit.Shadow})
	}
	return counters
}

func take(group string, hits int64, limits ...*ratelimit.Limit) ratelimit.Charge {
	return ratelimit.Charge{Kind: ratelimit.Take, Counters: countersOf(group, limits...), Hits: hits, Cost: 1}
}

// decide settles charges that must all succeed.
func decide(tb testing.TB, store ratelimit.Store, charges ...ratelimit.Charge) []ratelimit.Outcome {
	tb.Helper()
	out := make([]ratelimit.Outcome, len(charges))
	require.NoError(tb, store.Decide(tb.Context(), charges, out))
	for i := range out {
		require.NoError(tb, out[i].Err)
	}
	return out
}

// try settles one charge and returns what Decide said of it.
func try(ctx context.Context, store ratelimit.Store, charge ratelimit.Charge) (ratelimit.Outcome, error) {
	out := make([]ratelimit.Outcome, 1)
	err := store.Decide(ctx, []ratelimit.Charge{charge}, out)
	return out[0], err
}

// isCancellation reports whether an error is the caller's own doing and not the store's failure.
func isCancellation(err error) bool {
	return errors.Is(err, context.Canceled) && !errors.Is(err, ratelimit.ErrUnavailable)
}
