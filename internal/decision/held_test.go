package decision_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
)

// handTimer fires when the test says so.
type handTimer struct {
	mu      sync.Mutex
	started []time.Duration
	fire    []chan time.Time
}

func (h *handTimer) start(d time.Duration) (<-chan time.Time, func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := make(chan time.Time, 1)
	h.started, h.fire = append(h.started, d), append(h.fire, c)
	return c, func() {}
}

func (h *handTimer) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.started)
}

func TestHolderCapsPerKeyAndInAll(t *testing.T) {
	t.Parallel()
	h := decision.NewHolder(2, 3, nil)
	free, ok := h.Acquire("a")
	require.True(t, ok)
	_, ok = h.Acquire("a")
	require.True(t, ok)
	_, ok = h.Acquire("a")
	require.False(t, ok, "per tenant")
	_, ok = h.Acquire("b")
	require.True(t, ok)
	_, ok = h.Acquire("c")
	require.False(t, ok, "in all")
	free()
	free()
	require.Equal(t, 2, h.Held(), "a slot is given back once")
	_, ok = h.Acquire("c")
	require.True(t, ok)
}

func TestALeavingClientFreesItsSlotAtOnce(t *testing.T) {
	t.Parallel()
	timer := &handTimer{}
	h := decision.NewHolder(1, 1, timer.start)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- h.Wait(ctx, "a", time.Hour) }()
	require.Eventually(t, func() bool { return timer.count() == 1 }, 5*time.Second, time.Millisecond)
	require.ErrorIs(t, h.Wait(t.Context(), "a", time.Second), decision.ErrTooManyHeld)
	leave()
	require.ErrorIs(t, <-left, context.Canceled)
	require.Zero(t, h.Held())
	require.ErrorIs(t, h.Wait(ctx, "a", time.Second), context.Canceled)
}

func TestHoldWaitsForItsTimer(t *testing.T) {
	t.Parallel()
	timer := &handTimer{}
	h := decision.NewHolder(1, 1, timer.start)
	done := make(chan error, 1)
	go func() { done <- h.Wait(t.Context(), "a", 150*time.Millisecond) }()
	require.Eventually(t, func() bool { return timer.count() == 1 }, 5*time.Second, time.Millisecond)
	require.Equal(t, 1, h.Held())
	timer.fire[0] <- time.Time{}
	require.NoError(t, <-done)
	require.Zero(t, h.Held())
	require.Equal(t, []time.Duration{150 * time.Millisecond}, timer.started)
	require.NoError(t, h.Wait(t.Context(), "a", 0), "nothing to wait for takes no slot")
	require.NoError(t, decision.NewHolder(1, 1, nil).Wait(t.Context(), "a", time.Millisecond))
}

// Invented keys leave nothing behind.
func TestHolderForgetsItsKeys(t *testing.T) {
	t.Parallel()
	h := decision.NewHolder(1, 10, nil)
	for i := range 10_000 {
		free, ok := h.Acquire(strconv.Itoa(i))
		require.True(t, ok)
		free()
	}
	require.Zero(t, h.Held())
}

func TestHoldKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	hit := f.hit(t)
	hit.Address = prefix("2001:db8::7")
	require.Equal(t, "tenant school-17", hit.HoldKey())
	hit.Tenant = nil
	require.Equal(t, "address 2001:db8::/64", hit.HoldKey())
	require.Empty(t, (&decision.Hit{}).HoldKey())
}
