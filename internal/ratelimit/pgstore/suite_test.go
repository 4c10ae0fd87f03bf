package pgstore_test

import (
	"testing"
	"time"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/pgstore"
	"github.com/pegel-dev/pegel/internal/ratelimit/storetest"
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
