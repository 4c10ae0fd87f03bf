package ratelimit_test

import (
	"testing"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/storetest"
)

func TestMemoryKeepsTheContract(t *testing.T) {
	storetest.Run(t, storetest.Factory{
		New:    func(_ testing.TB, clock *storetest.Clock) ratelimit.Store { return ratelimit.NewMemory(clock.Now, 0) },
		Checks: 300,
	})
}
