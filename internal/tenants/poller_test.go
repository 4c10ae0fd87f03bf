package tenants_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// store is a Loader whose state a test sets.
type store struct {
	mu      sync.Mutex
	version int64
	err     error
	broken  []tenants.BrokenRow
	asked   int
	loads   []int64 // the since of each
}

func (s *store) set(version int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, s.err = version, err
}

func (s *store) Version(context.Context) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return s.version, s.err
}

func (s *store) Load(_ context.Context, since int64) (tenants.Changes, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loads = append(s.loads, since)
	return tenants.Changes{Version: s.version, Full: since == 0, Broken: s.broken}, s.err
}

func (s *store) seen() (asked int, loads []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked, append([]int64{}, s.loads...)
}

// clock is moved by hand.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestPollerLoadsWhatChangedAndNowAndThenEverything(t *testing.T) {
	t.Parallel()
	s, c, d := &store{version: 3}, &clock{now: noon}, tenants.NewDirectory(0)
	p := tenants.NewPoller(d, s, tenants.PollerOptions{Clock: c.Now})
	refresh := func() []int64 {
		require.NoError(t, p.Refresh(t.Context()))
		_, loads := s.seen()
		return loads
	}
	require.Equal(t, []int64{0}, refresh(), "the first load is full")
	require.EqualValues(t, 3, d.Snapshot().Version)
	c.move(time.Second)
	require.Equal(t, []int64{0}, refresh(), "nothing changed, nothing is loaded")
	require.Equal(t, noon.Add(time.Second), d.Snapshot().ConfirmedAt, "but confirmed")
	s.set(4, nil)
	require.Equal(t, []int64{0, 3}, refresh())
	require.EqualValues(t, 4, d.Snapshot().Version)
	s.set(2, nil)
	require.Equal(t, []int64{0, 3, 0}, refresh(), "a database that went back is loaded anew")
	require.EqualValues(t, 2, d.Snapshot().Version)
	c.move(6 * time.Minute)
	require.Equal(t, []int64{0, 3, 0, 0}, refresh(), "a full load is due")
	require.Equal(t, []int64{0, 3, 0, 0}, refresh())
}

func TestSnapshotServesWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s, c, d := &store{version: 3}, &clock{now: noon}, tenants.NewDirectory(0)
	p := tenants.NewPoller(d, s, tenants.PollerOptions{Clock: c.Now, Log: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, p.Refresh(t.Context()))
	s.set(4, tenants.ErrUnavailable)
	for range 5 {
		require.ErrorIs(t, p.Refresh(t.Context()), tenants.ErrUnavailable)
		c.move(time.Hour)
	}
	since, err := p.Failing()
	require.ErrorIs(t, err, tenants.ErrUnavailable)
	require.Equal(t, noon, since)
	require.EqualValues(t, 3, d.Snapshot().Version)
	require.Equal(t, noon, d.Snapshot().ConfirmedAt, "not confirmed since")
	require.True(t, d.Snapshot().TokensTrusted(c.Now()))
	c.move(20 * time.Hour)
	require.False(t, d.Snapshot().TokensTrusted(c.Now()))

	s.set(4, nil)
	require.NoError(t, p.Refresh(t.Context()))
	_, err = p.Failing()
	require.NoError(t, err)
	require.True(t, d.Snapshot().TokensTrusted(c.Now()))
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("cannot be read")), "one line for an outage")
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("up to date again")))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.set(4, context.Canceled)
	require.ErrorIs(t, p.Refresh(ctx), context.Canceled)
	_, err = p.Failing()
	require.NoError(t, err, "a caller that left says nothing about the store")
}

func TestBrokenRowsAreLoggedOncePerRoundAndAlwaysCounted(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	counted := 0
	s, c, d := &store{version: 3, broken: []tenants.BrokenRow{{Table: "limits", ID: "plan 1", Err: errors.New("a column is NULL")}}}, &clock{now: noon}, tenants.NewDirectory(0)
	applied := 0
	p := tenants.NewPoller(d, s, tenants.PollerOptions{
		Clock: c.Now, Log: slog.New(slog.NewTextHandler(&log, nil)), OnBroken: func(tenants.BrokenRow) { counted++ }, OnApplied: func(*tenants.Snapshot) { applied++ },
	})
	for v := range int64(4) {
		s.set(3+v, nil)
		require.NoError(t, p.Refresh(t.Context()))
	}
	require.Equal(t, 4, counted)
	require.Equal(t, 4, applied)
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("plan 1")))
	c.move(10 * time.Minute)
	require.NoError(t, p.Refresh(t.Context()))
	require.Equal(t, 2, bytes.Count(log.Bytes(), []byte("plan 1")))
}

// A mended row is told of once, is not broken any more, and is told of anew when it breaks again.
func TestMendedRowsAreForgotten(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	bad := tenants.BrokenRow{Table: "limits", ID: "plan 1", Err: errors.New("a column is NULL")}
	s, c, d := &store{version: 3, broken: []tenants.BrokenRow{bad}}, &clock{now: noon}, tenants.NewDirectory(0)
	p := tenants.NewPoller(d, s, tenants.PollerOptions{Clock: c.Now, Log: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, p.Refresh(t.Context()))
	require.Equal(t, []tenants.BrokenRow{bad}, p.Broken())

	s.broken = nil
	s.set(4, nil)
	require.NoError(t, p.Refresh(t.Context()))
	require.Equal(t, []tenants.BrokenRow{bad}, p.Broken(), "what changed says nothing of what did not")
	c.move(time.Second)
	require.NoError(t, p.Refresh(t.Context()))
	require.Empty(t, p.Broken())
	require.Contains(t, log.String(), "can be used again")
	_, loads := s.seen()
	require.Equal(t, []int64{0, 3, 0}, loads)

	s.broken = []tenants.BrokenRow{bad}
	s.set(5, nil)
	require.NoError(t, p.Refresh(t.Context()))
	require.Equal(t, 2, bytes.Count(log.Bytes(), []byte("cannot be used")))
}

func TestRunPollsUntilItsOwnerEndsIt(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s, d := &store{version: 1}, tenants.NewDirectory(0)
	p := tenants.NewPoller(d, s, tenants.PollerOptions{Clock: time.Now, Interval: 5 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { p.Run(ctx); close(done) }()
	for v := int64(2); v < 6; v++ {
		s.set(v, nil)
		require.Eventually(t, func() bool { return d.Snapshot().Version == v }, 5*time.Second, time.Millisecond)
	}
	s.set(9, errors.New("away"))
	require.Eventually(t, func() bool { _, err := p.Failing(); return err != nil }, 5*time.Second, time.Millisecond)
	s.set(9, nil)
	require.Eventually(t, func() bool { return d.Snapshot().Version == 9 }, 5*time.Second, time.Millisecond, "it finds back by itself")
	cancel()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatal("Run did not end")
	}
}

func TestRefreshesDoNotLoadTwiceAtOnce(t *testing.T) {
	t.Parallel()
	s, c, d := &store{version: 3}, &clock{now: noon}, tenants.NewDirectory(0)
	p := tenants.NewPoller(d, s, tenants.PollerOptions{Clock: c.Now})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := p.Refresh(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	asked, loads := s.seen()
	require.Equal(t, 20, asked)
	require.Equal(t, []int64{0}, loads)
}

// slowStore answers when its caller has given up.
type slowStore struct{ *store }

func (s slowStore) Version(ctx context.Context) (int64, error) {
	<-ctx.Done()
	return 0, tenants.ErrUnavailable
}

// Guarantee: an administrator's change, whose answer waits for this replica only so long, does not make an outage of a database
// that is merely far away.
func TestAHurriedCallerMakesNoOutage(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	p := tenants.NewPoller(tenants.NewDirectory(0), slowStore{&store{version: 3}}, tenants.PollerOptions{Clock: (&clock{now: noon}).Now, Log: slog.New(slog.NewTextHandler(&log, nil))})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.Error(t, p.Refresh(ctx))
	_, err := p.Failing()
	require.NoError(t, err)
	require.Empty(t, log.String())
}
