package ratelimit

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Every merged hit is answered as if the hits had come one by one, in the order of the batch.
func TestMergedHitsAreAnsweredOneByOne(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limits := []*Limit{
			{Name: "log", Scope: ScopeTenant, Algorithm: SlidingWindowLog, Quota: rapid.Int64Range(0, 30).Draw(t, "log"), Window: time.Minute, Cost: 1},
			{Name: "fixed", Scope: ScopeTenant, Algorithm: FixedWindow, Quota: rapid.Int64Range(0, 30).Draw(t, "fixed"), Window: time.Minute, Cost: rapid.Int64Range(1, 3).Draw(t, "factor")},
			{Name: "leaky", Scope: ScopeTenant, Algorithm: LeakyBucket, Quota: rapid.Int64Range(1, 30).Draw(t, "leaky"), Refill: Rate{Units: 1, Every: time.Second}, Cost: 1},
		}
		shadow := rapid.SliceOfN(rapid.Bool(), len(limits), len(limits)).Draw(t, "shadow")
		charge := func(group string) Charge {
			c := Charge{Kind: rapid.SampledFrom([]Kind{Take, Take, Take, Take, Peek}).Draw(t, "kind"), Hits: rapid.Int64Range(1, 3).Draw(t, "hits"), Cost: rapid.Int64Range(0, 2).Draw(t, "cost")}
			for i, l := range limits {
				key := CounterKey(Subject{Group: group, Scope: l.Scope}, l)
				c.Counters = append(c.Counters, Counter{Key: key, Limit: l, Shadow: shadow[i]})
			}
			return c
		}
		clock := func() int64 { return 1_000_000_000 }
		merged, single := NewMemory(clock, 0), NewMemory(clock, 0)
		flight := newBatch()
		type call struct {
			charges []Charge
			seats   []seat
		}
		var calls []call
		for range rapid.IntRange(1, 12).Draw(t, "calls") {
			var c call
			for range rapid.IntRange(1, 4).Draw(t, "charges") {
				c.charges = append(c.charges, charge("g"+strconv.Itoa(rapid.IntRange(0, 1).Draw(t, "group"))))
			}
			var err error
			c.seats, err = flight.board(c.charges, &BatcherConfig{Queue: 1000, GroupShare: 1000})
			require.NoError(t, err)
			for i := 1; i < len(c.seats); i++ {
				require.GreaterOrEqual(t, c.seats[i].charge, c.seats[i-1].charge, "a call's charges keep their order")
			}
			calls = append(calls, c)
		}
		flight.out = make([]Outcome, len(flight.charges))
		require.NoError(t, merged.Decide(context.Background(), flight.charges, flight.out))
		for at := range flight.charges {
			for _, c := range calls { // calls boarded in this order, so seats of one charge are in order too
				for i := range c.charges {
					if c.seats[i].charge == at {
						compareSeat(t, single, flight, &c.charges[i], c.seats[i])
					}
				}
			}
		}
	})
}

func compareSeat(t *rapid.T, single Store, flight *batch, c *Charge, s seat) {
	want, got := make([]Outcome, 1), Outcome{}
	require.NoError(t, single.Decide(context.Background(), []Charge{*c}, want))
	flight.answer(s, c, &got)
	require.Equal(t, want[0].Admitted, got.Admitted)
	for i := range want[0].Counters {
		w, g := want[0].Counters[i], got.Counters[i]
		require.Equal(t, w.Used, g.Used, "used of counter %d", i)
		require.Equal(t, w.Remaining, g.Remaining)
		require.Equal(t, w.Charged, g.Charged)
		require.Equal(t, w.Delay, g.Delay, "delay of counter %d", i)
		require.Equal(t, w.RetryAfter == 0, g.RetryAfter == 0, "retry of counter %d: %s, %s", i, w.RetryAfter, g.RetryAfter)
	}
}

// gate is a store whose calls wait until they are let through.
type gate struct {
	Store
	entered chan struct{}
	open    chan error
}

func (g *gate) Decide(ctx context.Context, charges []Charge, out []Outcome) error {
	g.entered <- struct{}{}
	if err := <-g.open; err != nil {
		return err
	}
	return g.Store.Decide(ctx, charges, out)
}

func gated(t *testing.T, quota int64, cfg BatcherConfig) (*gate, *Batcher, func(group string) Charge) {
	t.Helper()
	g := &gate{Store: NewMemory(func() int64 { return 1 }, 0), entered: make(chan struct{}), open: make(chan error)}
	limit := &Limit{Name: "l", Scope: ScopeTenant, Algorithm: SlidingWindowLog, Quota: quota, Window: time.Minute, Cost: 1}
	return g, NewBatcher(g, cfg), func(group string) Charge {
		return Charge{Hits: 1, Cost: 1, Counters: []Counter{{Key: CounterKey(Subject{Group: group, Scope: ScopeTenant}, limit), Limit: limit}}}
	}
}

func (b *Batcher) waitingHits() (hits int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting != nil {
		for i := range b.waiting.charges {
			hits += b.waiting.charges[i].Hits
		}
	}
	return hits
}

// While one flight is under way the rest waits, and goes out as one charge.
func TestWaitingHitsFlyAsOneCharge(t *testing.T) {
	t.Parallel()
	g, b, charge := gated(t, 40, BatcherConfig{Flights: 1, Queue: 10})
	var callers sync.WaitGroup
	admitted := make(chan int64, 101)
	decide := func() {
		out := make([]Outcome, 1)
		if err := b.Decide(context.Background(), []Charge{charge("g")}, out); err == nil {
			admitted <- out[0].Admitted
		}
	}
	callers.Go(decide)
	<-g.entered
	for range 100 {
		callers.Go(decide)
	}
	require.Eventually(t, func() bool { return b.waitingHits() == 100 }, 5*time.Second, time.Millisecond)
	g.open <- nil
	<-g.entered
	g.open <- nil
	callers.Wait()
	b.Close()
	close(admitted)
	var sum int64
	for a := range admitted {
		sum += a
	}
	require.EqualValues(t, 40, sum)
}

// A caller that leaves gets its own error, the others their answer; a full queue and a failed flight have defined answers.
func TestBatcherUnderTrouble(t *testing.T) {
	t.Parallel()
	g, b, charge := gated(t, 10, BatcherConfig{Flights: 1, Queue: 2, GroupShare: 2})
	results := make(chan error, 8)
	decide := func(ctx context.Context, group string) {
		results <- b.Decide(ctx, []Charge{charge(group)}, make([]Outcome, 1))
	}
	var callers sync.WaitGroup
	callers.Go(func() { decide(context.Background(), "a") })
	<-g.entered
	leaving, leave := context.WithCancel(context.Background())
	callers.Go(func() { decide(leaving, "a") })
	callers.Go(func() { decide(context.Background(), "b") })
	require.Eventually(t, func() bool { return b.waitingHits() == 2 }, 5*time.Second, time.Millisecond)

	require.ErrorIs(t, b.Decide(context.Background(), []Charge{charge("c")}, make([]Outcome, 1)), ErrBusy)
	leave()
	require.ErrorIs(t, <-results, context.Canceled)
	g.open <- nil
	require.NoError(t, <-results)
	<-g.entered
	g.open <- errors.New("broken")
	require.ErrorIs(t, <-results, ErrUnavailable)
	callers.Wait()
	b.Close()
}
