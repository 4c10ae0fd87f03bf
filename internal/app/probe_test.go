package app

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Guarantee: one slow answer does not make a store "down", two in a row do, and one good answer brings it back.
func TestProbeForgivesOneMiss(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_767_225_600, 0)
	p := &probe{name: "redis", now: func() time.Time { return now }, log: slog.New(slog.DiscardHandler)}
	require.Equal(t, storeDown, p.state(), "nobody has seen it yet")
	require.True(t, p.changed().IsZero())
	bad := errors.New("no answer")
	for i, step := range []struct {
		err  error
		want string
	}{{bad, storeDown}, {nil, storeUp}, {bad, storeUp}, {nil, storeUp}, {bad, storeUp}, {bad, storeDown}, {bad, storeDown}, {nil, storeUp}} {
		now = now.Add(time.Second)
		p.note(step.err)
		require.Equal(t, step.want, p.state(), "step %d", i)
	}
	require.True(t, p.changed().Equal(now), "the last change")
	require.Equal(t, storeUnconfigured, (*probe)(nil).state())
}
