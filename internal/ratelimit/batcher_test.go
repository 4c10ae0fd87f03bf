package ratelimit

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
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
		flight := &batch{}
		flight.open()
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
			at, ok := flight.board(c.charges, &BatcherConfig{Size: 1000, Share: 1000})
			require.True(t, ok)
			c.seats = flight.seats[at:]
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
	for _, w := range b.waiting {
		for i := range w.charges {
			hits += w.charges[i].Hits
		}
	}
	return hits
}

// While one flight is under way the rest waits, and goes out as one charge.
func TestWaitingHitsFlyAsOneCharge(t *testing.T) {
	t.Parallel()
	g, b, charge := gated(t, 40, BatcherConfig{Flights: 1})
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
	g, b, charge := gated(t, 10, BatcherConfig{Flights: 1, Size: 2, Share: 2, Queue: 1})
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

// A tenant with many users leaves room for others on every flight, and what finds no place is decided by what its limits say
// about failures: open ones allow and say so, closed ones do not decide.
func TestOneGroupCannotTakeEveryPlace(t *testing.T) {
	t.Parallel()
	cfg := BatcherConfig{Flights: 1, Size: 8, Queue: 3}
	f := NewFailover(FailoverConfig{Local: NewMemory(func() int64 { return 1 }, 0), Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	cfg.Full = f.Nobody()
	g, b, charge := gated(t, 100, cfg)
	var callers sync.WaitGroup
	decide := func(c Charge) (out [1]Outcome) {
		require.NoError(t, b.Decide(context.Background(), []Charge{c}, out[:]))
		return out
	}
	user := func(group string, i int) Charge {
		c := charge(group)
		l := c.Counters[0].Limit
		c.Counters = []Counter{{Key: CounterKey(Subject{Group: group, Scope: ScopeUser, ID: strconv.Itoa(i)}, l), Limit: l}}
		return c
	}
	callers.Go(func() { decide(charge("first")) })
	<-g.entered
	for i := range 3 * 2 { // a quarter of 8 on each of 3 flights
		callers.Go(func() { require.EqualValues(t, 1, decide(user("flood", i))[0].Admitted) })
		require.Eventually(t, func() bool { return b.waitingHits() == int64(i+1) }, 5*time.Second, time.Millisecond)
	}
	require.Equal(t, 3, b.Stats().Waiting)

	beyond := decide(user("flood", 7))
	require.EqualValues(t, 1, beyond[0].Admitted)
	require.Equal(t, SourceNone, beyond[0].Source)
	closed := user("flood", 8)
	limit := *closed.Counters[0].Limit
	limit.OnStoreFailure = FailClosed
	closed.Counters[0].Limit = &limit
	require.ErrorIs(t, decide(closed)[0].Err, ErrClosed)
	limit.OnStoreFailure = FailLocal
	require.Equal(t, SourceMemory, decide(closed)[0].Source)
	require.EqualValues(t, 3, b.Stats().Busy)

	for i := range 6 { // others still fly, on the next flight
		callers.Go(func() { require.Equal(t, SourceMemory, decide(charge("other" + strconv.Itoa(i)))[0].Source) })
	}
	require.Eventually(t, func() bool { return b.waitingHits() == 12 }, 5*time.Second, time.Millisecond)
	b.mu.Lock()
	require.Len(t, b.waiting[0].charges, 8)
	b.mu.Unlock()
	for range 4 {
		g.open <- nil
		if b.Stats().Flying > 0 {
			select {
			case <-g.entered:
			case <-time.After(100 * time.Millisecond): // that was the last
			}
		}
	}
	callers.Wait()
	b.Close()
}

// A flight that has waited for too long is not sent any more: nothing of it is counted.
func TestAFlightThatWaitedTooLong(t *testing.T) {
	t.Parallel()
	var now atomic.Int64
	g, b, charge := gated(t, 100, BatcherConfig{Flights: 1, Patience: time.Second, Now: func() time.Time { return time.Unix(now.Load(), 0) }})
	results := make(chan error, 2)
	var callers sync.WaitGroup
	decide := func() { results <- b.Decide(context.Background(), []Charge{charge("g")}, make([]Outcome, 1)) }
	callers.Go(decide)
	<-g.entered
	callers.Go(decide)
	require.Eventually(t, func() bool { return b.waitingHits() == 1 }, 5*time.Second, time.Millisecond)
	now.Add(2)
	g.open <- nil
	callers.Wait()
	require.ElementsMatch(t, []error{nil, ErrBusy}, []error{<-results, <-results})
	b.Close()
}

// Whatever is merged, reused and cancelled meanwhile, everybody gets an answer that is theirs, and the sum is exact.
func TestACrowdIsCountedExactly(t *testing.T) {
	t.Parallel()
	const callers, each, quota = 64, 200, 1000
	memory := NewMemory(func() int64 { return 1 }, 0)
	b := NewBatcher(memory, BatcherConfig{Flights: 2, Size: 8, Queue: 64})
	limits := make([]*Limit, 3)
	for i := range limits {
		limits[i] = &Limit{Name: strconv.Itoa(i), Scope: ScopeTenant, Algorithm: SlidingWindowLog, Quota: quota, Window: time.Minute, Cost: int64(i + 1)}
	}
	var admitted [3]atomic.Int64
	var wg sync.WaitGroup
	for n := range callers {
		wg.Go(func() {
			out := make([]Outcome, 2)
			for i := range each {
				charges := make([]Charge, 1+(n+i)%2)
				for j := range charges {
					at := (n + i + j) % len(limits)
					charges[j] = Charge{Hits: 1, Cost: 1, Counters: []Counter{{Key: CounterKey(Subject{Group: strconv.Itoa(at), Scope: ScopeTenant}, limits[at]), Limit: limits[at]}}}
				}
				ctx, cancel := context.WithCancel(context.Background())
				if i%50 == 49 {
					cancel()
				}
				err := b.Decide(ctx, charges, out)
				cancel()
				if err != nil {
					continue // counted or not: it is not this caller's to say
				}
				for j := range charges {
					at := (n + i + j) % len(limits)
					admitted[at].Add(out[j].Admitted)
					if len(out[j].Counters) != 1 || out[j].Counters[0].Effective != SlidingWindowLog || out[j].Counters[0].Remaining > quota-out[j].Admitted*limits[at].Cost {
						t.Errorf("%+v", out[j])
					}
				}
			}
		})
	}
	wg.Wait()
	b.Close()
	for i := range limits {
		require.LessOrEqual(t, admitted[i].Load(), quota/limits[i].Cost)
		require.Greater(t, admitted[i].Load(), quota/limits[i].Cost-callers*each/50, "all but what those that left had taken")
	}
}
