package ratelimit_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// TestMain ends the servers first: what still runs then was leaked by a test.
func TestMain(m *testing.M) {
	code := testenv.Main(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
