package storetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

const (
	workers      = 64
	callsEach    = 8
	underLoadFor = 30 * time.Second // of real time: far beyond what it takes
)

// concurrency: B001: however many ask at once, exactly the quota gets through.
func (s *suite) concurrency() {
	s.each("one counter", 50, func(c *caller) {
		admitted := c.together(func(int, int) ratelimit.Charge {
			return ratelimit.Charge{Kind: ratelimit.Take, Counters: c.counters, Hits: 1, Cost: 1}
		})
		require.EqualValues(c, 50, admitted)
		_, state := c.peek(1)
		require.EqualValues(c, 50, state.Used)
	})
	s.each("merged hits", 1000, func(c *caller) {
		admitted := c.together(func(worker, call int) ratelimit.Charge {
			return ratelimit.Charge{Kind: ratelimit.Take, Counters: c.counters, Hits: int64(1 + (worker+call)%7), Cost: 1}
		})
		require.EqualValues(c, 1000, admitted)
	})
	s.Run("several counters, in every order", func(t *testing.T) {
		// B040: {A, B} and {B, A} neither deadlock nor charge one without the other.
		c := s.caller(t, limit(ratelimit.SlidingWindowLog, 40, 10*time.Second), limit(ratelimit.FixedWindow, 1000, 24*time.Hour),
			limit(ratelimit.TokenBucket, 1000, time.Hour))
		backwards := []ratelimit.Counter{c.counters[2], c.counters[1], c.counters[0]}
		admitted := c.together(func(worker, _ int) ratelimit.Charge {
			if worker%2 == 0 {
				return ratelimit.Charge{Kind: ratelimit.Take, Counters: c.counters, Hits: 1, Cost: 1}
			}
			return ratelimit.Charge{Kind: ratelimit.Take, Counters: backwards, Hits: 1, Cost: 1}
		})
		require.EqualValues(t, 40, admitted)
		out := c.charge(ratelimit.Peek, 1, 1)
		for i := range out.Counters {
			require.EqualValues(t, 40, out.Counters[i].Used, c.limits[i])
		}
	})
}

// together makes callsEach charges from each of many goroutines at once and returns the hits admitted in all. Every
// other call is a batch of the charge with a peek.
func (c *caller) together(charge func(worker, call int) ratelimit.Charge) int64 {
	c.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), underLoadFor)
	defer cancel()
	var admitted atomic.Int64
	var wg sync.WaitGroup
	start := make(chan struct{})
	failed := make(chan error, workers)
	for worker := range workers {
		wg.Go(func() {
			<-start
			for call := range callsEach {
				charges := []ratelimit.Charge{charge(worker, call), {Kind: ratelimit.Peek, Counters: c.counters, Hits: 1, Cost: 1}}
				charges = charges[:1+call%2]
				out := make([]ratelimit.Outcome, len(charges))
				err := c.suite.store.Decide(ctx, charges, out)
				for i := range out {
					err = errors.Join(err, out[i].Err)
				}
				if err != nil {
					failed <- err
					return
				}
				admitted.Add(out[0].Admitted)
			}
		})
	}
	close(start)
	wg.Wait()
	close(failed)
	require.NoError(c, <-failed)
	return admitted.Load()
}
