package ratelimit_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

func TestGuardHandsTheAnswerOver(t *testing.T) {
	memory := ratelimit.NewMemory(func() int64 { return 1 }, 0)
	g := guard(memory, time.Second)
	defer func() { require.NoError(t, g.Close(context.Background())) }()
	require.Equal(t, ratelimit.SourceMemory, g.Source())
	charges := hit(perMinute("a", 3, ratelimit.FailOpen), perMinute("b", 5, ratelimit.FailOpen))
	out := make([]ratelimit.Outcome, 1)
	for i := range int64(5) {
		require.NoError(t, g.Decide(context.Background(), charges, out))
		require.Equal(t, i < 3, out[0].Admitted == 1)
		require.Equal(t, min(3, i+1), out[0].Counters[0].Used)
		require.Equal(t, min(3, i+1), out[0].Counters[1].Used)
	}
}

func TestGuardReturnsAtTheDeadline(t *testing.T) {
	for name, store := range map[string]func(chan struct{}) *fake{
		"of a store that obeys its context": func(chan struct{}) *fake { return &fake{decide: hangs} },
		"of a store that ignores it":        func(release chan struct{}) *fake { return &fake{decide: ignores(release)} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				g := guard(store(release), 50*time.Millisecond)
				start := time.Now()
				charges := hit(perMinute("a", 3, ratelimit.FailOpen))
				out := []ratelimit.Outcome{{Admitted: 42}}
				err := g.Decide(context.Background(), charges, out)
				require.ErrorIs(t, err, ratelimit.ErrUnavailable)
				require.Equal(t, 50*time.Millisecond, time.Since(start))
				close(release)
				charges[0].Counters[0].Key = "reused" // the caller's memory is the caller's again
				synctest.Wait()
				require.EqualValues(t, 42, out[0].Admitted, "an answer that comes too late is nobody's")
				require.NoError(t, g.Close(context.Background()))
			})
		})
	}
}

func TestGuardLeavesWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &fake{decide: takes(40 * time.Millisecond)}
		g := guard(store, 50*time.Millisecond)
		for range 20 {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			start := time.Now()
			err := g.Decide(ctx, hit(perMinute("a", 3, ratelimit.FailOpen)), make([]ratelimit.Outcome, 1))
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, ratelimit.ErrUnavailable, "the caller left; the store did nothing wrong")
			require.Equal(t, 20*time.Millisecond, time.Since(start))
		}
		time.Sleep(time.Second)
		state, _ := g.State()
		require.Equal(t, ratelimit.BreakerClosed, state, "a caller's cancellation is never a failure")

		// A caller that is gone already costs the store nothing.
		before := store.calls.Load()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		require.ErrorIs(t, g.Decide(ctx, hit(), make([]ratelimit.Outcome, 1)), context.Canceled)
		require.Equal(t, before, store.calls.Load())
		require.NoError(t, g.Close(context.Background()))
	})
}

// A store that hangs is noticed even when no caller ever waits long enough to see it.
func TestImpatientCallersDoNotHideAHungStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		g := guard(&fake{decide: ignores(release)}, 50*time.Millisecond)
		for range 5 {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			require.Error(t, g.Decide(ctx, hit(), make([]ratelimit.Outcome, 1)))
			cancel()
		}
		time.Sleep(50 * time.Millisecond)
		state, _ := g.State()
		require.Equal(t, ratelimit.BreakerOpen, state)
		close(release)
		require.NoError(t, g.Close(context.Background()))
	})
}

func TestBreakerOpens(t *testing.T) {
	open := func(t *testing.T, verdicts ...func(context.Context, []ratelimit.Charge, []ratelimit.Outcome) error) int {
		t.Helper()
		store := &fake{}
		g := guard(store, 50*time.Millisecond, func(c *ratelimit.GuardConfig) { c.Slow = 30 * time.Millisecond })
		defer func() { require.NoError(t, g.Close(context.Background())) }()
		for i, verdict := range verdicts {
			if verdict == nil { // a pause
				time.Sleep(11 * time.Second)
				continue
			}
			store.does(verdict)
			_, _ = decide(t, g, hit())
			if state, _ := g.State(); state == ratelimit.BreakerOpen {
				return i + 1
			}
		}
		return 0
	}
	type verdict = func(context.Context, []ratelimit.Charge, []ratelimit.Outcome) error
	times := func(n int, vs ...verdict) (all []verdict) {
		for range n {
			all = append(all, vs...)
		}
		return all
	}
	busy := func(context.Context, []ratelimit.Charge, []ratelimit.Outcome) error { return ratelimit.ErrBusy }
	counterError := func(_ context.Context, _ []ratelimit.Charge, out []ratelimit.Outcome) error {
		out[0] = ratelimit.Outcome{Err: ratelimit.ErrCounter}
		return nil
	}
	for _, test := range []struct {
		name     string
		verdicts []verdict
		after    int
	}{
		{"after five failures in a row", times(9, fails), 5},
		{"after five timeouts in a row", times(9, hangs), 5},
		{"after five slow answers in a row", times(9, takes(30*time.Millisecond)), 5},
		{"not before twenty calls when half of them fail", times(20, admits, fails), 20},
		{"not when fewer than half fail", times(20, admits, admits, fails), 0},
		{"not when four in a row fail", append(times(20, admits), times(3, fails, fails, fails, fails, admits, admits, admits, admits, admits)...), 0},
		{"not for a store that is only busy", times(50, busy), 0},
		{"not for charges that fail on their own", times(50, counterError), 0},
		{"not when answers are slow but not too slow", times(50, takes(29*time.Millisecond)), 0},
		{"not when failures are old", append(append(times(9, admits, fails), nil), times(9, admits, fails)...), 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { require.Equal(t, test.after, open(t, test.verdicts...)) })
		})
	}
}

func TestBreakerProbesWithOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines := &logs{}
		store := &fake{source: ratelimit.SourceRedis, decide: fails}
		g := guard(store, 50*time.Millisecond, func(c *ratelimit.GuardConfig) { c.Log = lines.logger() })
		for range 5 {
			_, err := decide(t, g, hit())
			require.ErrorIs(t, err, ratelimit.ErrUnavailable)
			require.ErrorIs(t, err, errDown)
		}
		opened := time.Now()
		state, since := g.State()
		require.Equal(t, ratelimit.BreakerOpen, state)
		require.Equal(t, opened, since)
		for range 100 {
			_, err := decide(t, g, hit())
			require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		}
		require.EqualValues(t, 5, store.calls.Load(), "an open breaker asks nobody")

		// The probe hangs; everybody else fails over at once meanwhile.
		store.does(hangs)
		time.Sleep(time.Second + time.Millisecond)
		probe := make(chan error, 1)
		go func() { _, err := decide(t, g, hit()); probe <- err }()
		synctest.Wait()
		for range 100 {
			start := time.Now()
			_, err := decide(t, g, hit())
			require.ErrorIs(t, err, ratelimit.ErrUnavailable)
			require.Zero(t, time.Since(start))
		}
		require.ErrorIs(t, <-probe, ratelimit.ErrUnavailable)
		require.EqualValues(t, 6, store.calls.Load())
		state, since = g.State()
		require.Equal(t, ratelimit.BreakerOpen, state)
		require.Equal(t, opened, since, "it never came back")

		store.does(admits)
		time.Sleep(time.Second + time.Millisecond)
		for range 10 {
			_, err := decide(t, g, hit())
			require.NoError(t, err)
		}
		state, since = g.State()
		require.Equal(t, ratelimit.BreakerClosed, state)
		require.Equal(t, time.Now(), since)
		require.Equal(t, 1, lines.lines("store is no longer asked"), "one line per change")
		require.Equal(t, 1, lines.lines("connection refused"), "which says why")
		require.Equal(t, 1, lines.lines("store decides again"))
		require.NoError(t, g.Close(context.Background()))
	})
}

func TestGuardBoundsCallsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &fake{decide: takes(100 * time.Millisecond)}
		g := guard(store, 150*time.Millisecond, func(c *ratelimit.GuardConfig) { c.MaxInFlight = 2 })
		start := time.Now()
		type answer struct {
			err   error
			after time.Duration
		}
		answers := make(chan answer, 6)
		for range 6 {
			go func() {
				_, err := decide(t, g, hit())
				answers <- answer{err, time.Since(start)}
			}()
		}
		got := map[string]int{}
		for range 6 {
			a := <-answers
			got[fmt.Sprint(a.err == nil, " ", a.after)]++
		}
		// Two at once; two wait for them and run out of time while being answered; two never get a place.
		require.Equal(t, map[string]int{"true 100ms": 2, "false 150ms": 4}, got)
		require.EqualValues(t, 4, store.calls.Load())
		require.NoError(t, g.Close(context.Background()))
	})
}

// Calls that found no place say nothing about the store.
func TestABusyStoreIsNotABrokenOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &fake{decide: takes(140 * time.Millisecond)}
		g := guard(store, 150*time.Millisecond, func(c *ratelimit.GuardConfig) { c.MaxInFlight = 1 })
		errs := make(chan error, 50)
		go func() { _, err := decide(t, g, hit()); errs <- err }()
		synctest.Wait()
		store.does(hangs)
		for range 49 {
			ctx, cancel := context.WithTimeout(context.Background(), 139*time.Millisecond)
			go func() {
				defer cancel()
				errs <- g.Decide(ctx, hit(), make([]ratelimit.Outcome, 1))
			}()
		}
		failed := 0
		for range 50 {
			if err := <-errs; err != nil {
				require.NotErrorIs(t, err, ratelimit.ErrUnavailable)
				failed++
			}
		}
		require.Equal(t, 49, failed)
		state, _ := g.State()
		require.Equal(t, ratelimit.BreakerClosed, state)
		require.NoError(t, g.Close(context.Background()))
	})
}

func TestGuardSurvivesAPanic(t *testing.T) {
	lines := &logs{}
	store := &fake{decide: func(context.Context, []ratelimit.Charge, []ratelimit.Outcome) error { panic("out of range") }}
	g := guard(store, time.Second, func(c *ratelimit.GuardConfig) { c.Log = lines.logger() })
	_, err := decide(t, g, hit())
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	require.Equal(t, 1, lines.lines("store panicked"))
	require.NoError(t, g.Close(context.Background()))
}

func TestGuardClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		store := &fake{decide: ignores(release)}
		g := guard(store, 50*time.Millisecond)
		_, err := decide(t, g, hit())
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		require.ErrorIs(t, g.Close(ctx), context.DeadlineExceeded, "it says so when a call does not end")
		_, err = decide(t, g, hit())
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		require.EqualValues(t, 1, store.calls.Load(), "no call after Close")
		require.NoError(t, g.Close(context.Background()), "twice is once")
		close(release)
	})
}

func TestGuardUnderLoad(t *testing.T) {
	memory := ratelimit.NewMemory(ratelimit.MonotonicMicros(time.Now), 0)
	g := guard(memory, 10*time.Second, func(c *ratelimit.GuardConfig) { c.MaxInFlight = 8; c.Log = slog.New(slog.DiscardHandler) })
	admitted := make(chan int, 32)
	for range cap(admitted) {
		go func() {
			n := 0
			out := make([]ratelimit.Outcome, 1)
			for range 100 {
				if err := g.Decide(context.Background(), hit(perMinute("a", 1000, ratelimit.FailOpen)), out); err != nil {
					t.Error(err)
				}
				n += int(out[0].Admitted)
			}
			admitted <- n
		}()
	}
	sum := 0
	for range cap(admitted) {
		sum += <-admitted
	}
	require.Equal(t, 1000, sum)
	require.NoError(t, g.Close(context.Background()))
}
