package client

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Guarantee: Pegel is left alone for a second after five failures in a row, then one request tries; a clock that is set back does
// not make the second longer.
func TestBreaker(t *testing.T) {
	t.Parallel()
	var b breaker
	now := time.Date(2026, time.December, 1, 12, 0, 0, 0, time.UTC)
	for range failuresInARow {
		require.True(t, b.allow(now))
		b.failed(now)
	}
	require.False(t, b.allow(now))
	require.False(t, b.allow(now.Add(leaveAlone-1)))
	require.True(t, b.allow(now.Add(leaveAlone)), "one tries")
	require.False(t, b.allow(now.Add(leaveAlone)), "and no other")
	require.True(t, b.allow(now.Add(-time.Hour)), "the clock was set back")
	b.succeeded()
	require.True(t, b.allow(now))
}
