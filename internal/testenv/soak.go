package testenv

import (
	"os"
	"testing"
	"time"
)

// soakEnv says how long soak tests last; `make soak` sets it.
const soakEnv = "PEGEL_SOAK"

// Soak is how long a soak test lasts. Where nobody asked for one, the test ends here: it would take minutes.
func Soak(tb testing.TB) time.Duration {
	tb.Helper()
	given := os.Getenv(soakEnv)
	if given == "" {
		tb.Skip("a soak: make soak runs it")
	}
	d, err := time.ParseDuration(given)
	if err != nil || d <= 0 {
		tb.Fatalf("%s must be a duration such as 10m", soakEnv)
	}
	return d
}
