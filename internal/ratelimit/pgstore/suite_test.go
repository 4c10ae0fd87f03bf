package pgstore_test

import (
	"testing"
	"time"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/pgstore"
	"github.com/pegel-dev/pegel/internal/ratelimit/storetest"
	"github.com/pegel-dev/pegel/internal/testenv"
)

func TestSuite(t *testing.T) {
	checks := 100
	if testing.Short() {
		checks = 10
	}
	storetest.Run(t, storetest.Factory{
		Strictness: storetest.Segmented,
		Checks:     checks,
		New: func(tb testing.TB, clock *storetest.Clock) ratelimit.Store {
			tb.Helper()
			s, _ := newStore(tb, pgstore.WithClock(func() time.Time { return time.UnixMicro(clock.Now()) }))
			return s
		},
	})
}

// Guarantee: bursts of two replicas aimed at round minutes never get more than the quota in any trailing minute.
func TestBurstsAimedAtRoundMinutes(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	replica := replicaOf(testenv.Postgres(t), clock)
	storetest.Aimed(t, clock, storetest.Segmented, replica(t), replica(t))
}

// Guarantee: one to four replicas, behind the decorators of production, never admit more than the bound of the algorithm.
func TestReplicasNeverLooser(t *testing.T) {
	clock := storetest.NewClock()
	storetest.Replicas(t, 30, storetest.Segmented, clock, replicaOf(testenv.Postgres(t), clock))
}

// replicaOf makes stores that share a database and a clock.
func replicaOf(url string, clock *storetest.Clock) func(testing.TB) ratelimit.Store {
	return func(tb testing.TB) ratelimit.Store {
		tb.Helper()
		return pgstore.New(newPool(tb, url, 4), pgstore.WithTimeout(patient), pgstore.WithClock(func() time.Time { return time.UnixMicro(clock.Now()) }))
	}
}
