package redisstore_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/redisstore"
	"github.com/pegel-dev/pegel/internal/ratelimit/storetest"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// TestConformsOnRedis runs the whole suite, the comparison with the reference model included, on a real server.
func TestConformsOnRedis(t *testing.T) {
	storetest.Run(t, storetest.Factory{New: onTestClock(testenv.Redis)})
}

// TestConformsOnMiniredis: `pegel dev` without a Redis uses it. It is no proof of the script; the test above is.
func TestConformsOnMiniredis(t *testing.T) {
	storetest.Run(t, storetest.Factory{
		Checks: 30,
		New: onTestClock(func(tb testing.TB) string {
			tb.Helper()
			server := miniredis.RunT(tb)
			server.ClockTTL(true)
			return "redis://" + server.Addr()
		}),
	})
}

// Guarantee: bursts of two replicas aimed at round minutes never get more than the quota in any trailing minute.
func TestBurstsAimedAtRoundMinutes(t *testing.T) {
	t.Parallel()
	clock, replica := storetest.NewClock(), onTestClock(testenv.Redis)
	storetest.Aimed(t, clock, storetest.Exact, replica(t, clock), replica(t, clock))
}

// Guarantee: one to four replicas, behind the decorators of production, never admit more than the bound of the algorithm.
func TestReplicasNeverLooser(t *testing.T) {
	clock := storetest.NewClock()
	storetest.Replicas(t, 0, storetest.Exact, clock, func(tb testing.TB) ratelimit.Store {
		tb.Helper()
		return onTestClock(testenv.Redis)(tb, clock)
	})
}

func onTestClock(url func(testing.TB) string) func(testing.TB, *storetest.Clock) ratelimit.Store {
	return func(tb testing.TB, clock *storetest.Clock) ratelimit.Store {
		tb.Helper()
		return newStore(tb, redisstore.Config{URL: url(tb), Timeout: 10 * time.Second, TestClock: clock.Now})
	}
}
