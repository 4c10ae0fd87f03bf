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
	url, clock := testenv.Postgres(t), storetest.NewClock()
	replica := func() ratelimit.Store {
		return pgstore.New(newPool(t, url, 4), pgstore.WithTimeout(patient), pgstore.WithClock(func() time.Time { return time.UnixMicro(clock.Now()) }))
	}
	storetest.Aimed(t, clock, storetest.Segmented, replica(), replica())
}
