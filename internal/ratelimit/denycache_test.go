package ratelimit_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// virtual is time that a test moves.
type virtual struct{ us int64 }

func (v *virtual) now() time.Time           { return time.UnixMicro(v.us) }
func (v *virtual) micros() int64            { return v.us }
func (v *virtual) advance(by time.Duration) { v.us += by.Microseconds() }

// far is a store whose answers take time on the way there and back, and say where they come from.
type far struct {
	ratelimit.Store

	clock       *virtual
	there, back time.Duration
	source      ratelimit.Source
	asked       int
	decidedAt   int64
}

func (f *far) Source() ratelimit.Source { return f.source }

func (f *far) Decide(ctx context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
	f.clock.advance(f.there)
	f.asked, f.decidedAt = f.asked+1, f.clock.us
	err := f.Store.Decide(ctx, charges, out)
	for i := range out {
		out[i].Source = f.source
	}
	f.clock.advance(f.back)
	return err
}

func newFar() *far {
	clock := &virtual{us: 1_000_000_000}
	return &far{Store: ratelimit.NewMemory(clock.micros, 0), clock: clock, source: ratelimit.SourceRedis}
}

func only(tb testing.TB, s ratelimit.Store, c ratelimit.Charge) ratelimit.Outcome {
	tb.Helper()
	out := make([]ratelimit.Outcome, 1)
	require.NoError(tb, s.Decide(context.Background(), []ratelimit.Charge{c}, out))
	require.NoError(tb, out[0].Err)
	return out[0]
}

func drawLimits(t *rapid.T) []*ratelimit.Limit {
	quota := func(name string) int64 { return rapid.Int64Range(0, 6).Draw(t, name) }
	window := rapid.SampledFrom([]time.Duration{time.Second, 3 * time.Second}).Draw(t, "window")
	refill := ratelimit.Rate{Units: rapid.Int64Range(1, 3).Draw(t, "units"), Every: rapid.SampledFrom([]time.Duration{100 * time.Millisecond, time.Second}).Draw(t, "every")}
	all := []*ratelimit.Limit{
		{Name: "log", Algorithm: ratelimit.SlidingWindowLog, Window: window},
		{Name: "pair", Algorithm: ratelimit.SlidingWindowCounter, Window: window},
		{Name: "fixed", Algorithm: ratelimit.FixedWindow, Window: window},
		{Name: "token", Algorithm: ratelimit.TokenBucket, Refill: refill},
		{Name: "leaky", Algorithm: ratelimit.LeakyBucket, Refill: refill},
	}
	var limits []*ratelimit.Limit
	for _, l := range all {
		if rapid.IntRange(0, 2).Draw(t, "has") > 0 {
			continue
		}
		l.Scope = rapid.SampledFrom([]ratelimit.Scope{ratelimit.ScopeTenant, ratelimit.ScopeUser}).Draw(t, "scope")
		l.Quota, l.Cost = quota(l.Name), rapid.Int64Range(1, 2).Draw(t, "factor")
		l.Mode = rapid.SampledFrom([]ratelimit.Mode{ratelimit.Enforce, ratelimit.Enforce, ratelimit.Shadow}).Draw(t, "mode")
		limits = append(limits, l)
	}
	return limits
}

func drawCharge(t *rapid.T, limits []*ratelimit.Limit, generation int64) ratelimit.Charge {
	c := ratelimit.Charge{
		Kind: rapid.SampledFrom([]ratelimit.Kind{ratelimit.Take, ratelimit.Take, ratelimit.Take, ratelimit.Take, ratelimit.Take, ratelimit.Peek, ratelimit.Refund}).Draw(t, "kind"),
		Hits: rapid.SampledFrom([]int64{1, 1, 1, 2}).Draw(t, "hits"), Cost: rapid.Int64Range(0, 3).Draw(t, "cost"),
	}
	user := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "user")
	for _, l := range limits {
		subject := ratelimit.Subject{Group: "7", Generation: generation, Scope: l.Scope}
		if l.Scope == ratelimit.ScopeUser {
			if user == "" {
				continue
			}
			subject.ID = user
		}
		c.Counters = append(c.Counters, ratelimit.Counter{Key: ratelimit.CounterKey(subject, l), Limit: l, Shadow: l.Mode == ratelimit.Shadow})
	}
	return c
}

// With the cache exactly the same hits are let through as without it: all algorithms, costs, several counters, other users,
// raised and lowered quotas, resets, and refunds by this replica; and its waits are honest.
func TestDenyCacheIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		store := newFar()
		cache := ratelimit.NewDenyCache(store, store.clock.now, rapid.SampledFrom([]int{0, 1}).Draw(t, "keys"))
		reference := &virtual{}
		plain := ratelimit.NewMemory(reference.micros, 0)
		limits, generation := drawLimits(t), int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			store.clock.advance(time.Duration(rapid.Int64Range(0, 400_000).Draw(t, "pause")) * time.Microsecond)
			store.there = time.Duration(rapid.SampledFrom([]int64{0, 1, 700, 50_000}).Draw(t, "there")) * time.Microsecond
			store.back = time.Duration(rapid.SampledFrom([]int64{0, 1, 700, 50_000}).Draw(t, "back")) * time.Microsecond
			switch rapid.IntRange(0, 30).Draw(t, "change") {
			case 0:
				generation++
			case 1, 2:
				for i, l := range limits {
					changed := *l
					changed.Quota = rapid.Int64Range(0, 6).Draw(t, "quota")
					limits[i] = &changed
				}
			}
			c := drawCharge(t, limits, generation)
			asked := store.asked
			reference.us, store.decidedAt = store.clock.us, store.clock.us
			got := make([]ratelimit.Outcome, 1)
			require.NoError(t, cache.Decide(context.Background(), []ratelimit.Charge{c}, got))
			reference.us = store.decidedAt
			want := make([]ratelimit.Outcome, 1)
			require.NoError(t, plain.Decide(context.Background(), []ratelimit.Charge{c}, want))
			require.Equal(t, want[0].Admitted, got[0].Admitted, "asked: %v", store.asked > asked)
			if store.asked > asked {
				require.Equal(t, want[0].Counters, got[0].Counters)
				continue
			}
			require.Zero(t, got[0].Admitted)
			require.NotNil(t, got[0].Refusal)
			requireHonest(t, plain, reference, &c, &got[0])
		}
	})
}

// requireHonest holds every wait of a remembered refusal to its word: at the end of it a hit fits that counter. At least one
// counter refuses.
func requireHonest(t *rapid.T, plain *ratelimit.Memory, clock *virtual, c *ratelimit.Charge, got *ratelimit.Outcome) {
	refusing := 0
	now := clock.us
	for i := range c.Counters {
		state := &got.Counters[i]
		if state.Effective == "" {
			require.Zero(t, *state, "what is not known is empty")
			continue
		}
		if state.RetryAfter <= 0 || c.Counters[i].Shadow {
			continue
		}
		refusing++
		if state.RetryAfter == ratelimit.Never {
			continue
		}
		one := ratelimit.Charge{Kind: ratelimit.Peek, Hits: 1, Cost: c.Cost, Counters: []ratelimit.Counter{{Key: c.Counters[i].Key, Limit: c.Counters[i].Limit}}}
		clock.us = now + (state.RetryAfter + time.Microsecond - 1).Microseconds()
		out := make([]ratelimit.Outcome, 1)
		require.NoError(t, plain.Decide(context.Background(), []ratelimit.Charge{one}, out))
		require.EqualValues(t, 1, out[0].Admitted, "%s says %s", c.Counters[i].Limit.Name, state.RetryAfter)
		clock.us = now
	}
	require.Positive(t, refusing)
}

func takeBy(user string, limits ...*ratelimit.Limit) ratelimit.Charge {
	c := ratelimit.Charge{Kind: ratelimit.Take, Hits: 1, Cost: 1}
	for _, l := range limits {
		s := ratelimit.Subject{Group: "7", Scope: l.Scope}
		if l.Scope == ratelimit.ScopeUser {
			s.ID = user
		}
		c.Counters = append(c.Counters, ratelimit.Counter{Key: ratelimit.CounterKey(s, l), Limit: l, Shadow: l.Mode == ratelimit.Shadow})
	}
	return c
}

// A tenant at its limit is refused for all of its users; what is not known of another user's own counter is not invented.
func TestRefusalOfATenantAnswersForEveryUser(t *testing.T) {
	t.Parallel()
	store := newFar()
	cache := ratelimit.NewDenyCache(store, store.clock.now, 0)
	tenant, user := perMinute("tenant", 2, ratelimit.FailOpen), perMinute("user", 5, ratelimit.FailOpen)
	user.Scope = ratelimit.ScopeUser
	require.EqualValues(t, 1, only(t, cache, takeBy("a", tenant, user)).Admitted)
	require.EqualValues(t, 1, only(t, cache, takeBy("a", tenant, user)).Admitted)
	first := only(t, cache, takeBy("a", tenant, user))
	require.Zero(t, first.Admitted)
	require.Equal(t, "d-1", first.Refusal.Call("d-1"))
	asked := store.asked

	store.clock.advance(400 * time.Millisecond)
	same := only(t, cache, takeBy("a", tenant, user))
	require.EqualValues(t, 2, same.Counters[1].Used, "the same counters are known")
	other := only(t, cache, takeBy("b", tenant, user))
	require.Equal(t, asked, store.asked, "the store is not asked")
	require.Zero(t, other.Admitted)
	require.Equal(t, ratelimit.SourceRedis, other.Source)
	require.Equal(t, "d-1", other.Refusal.Call("d-2"), "it is the same refusal")
	require.Equal(t, ratelimit.CounterState{}, other.Counters[1])
	require.EqualValues(t, 2, other.Counters[0].Used)
	require.Equal(t, first.Counters[0].RetryAfter-400*time.Millisecond, other.Counters[0].RetryAfter)
	require.Equal(t, first.Counters[0].ResetAfter-400*time.Millisecond, other.Counters[0].ResetAfter)

	two := takeBy("b", tenant, user)
	two.Cost = 2
	require.Zero(t, only(t, cache, two).Admitted)
	require.Equal(t, asked+1, store.asked, "another cost is another question")
	peek := takeBy("b", tenant, user)
	peek.Kind = ratelimit.Peek
	only(t, cache, peek)
	require.Equal(t, asked+2, store.asked, "a peek looks")
	store.clock.advance(600 * time.Millisecond)
	only(t, cache, takeBy("a", tenant, user))
	require.Equal(t, asked+3, store.asked, "after a second the store is asked again")
	require.EqualValues(t, 2, cache.Stats().Answered)
}

// When two counters refused and one of them was charged since, its old wait is not told any more.
func TestChargedCounterIsNotToldFromAnotherRefusal(t *testing.T) {
	t.Parallel()
	store := newFar()
	cache := ratelimit.NewDenyCache(store, store.clock.now, 0)
	tenant, user := perMinute("tenant", 2, ratelimit.FailOpen), perMinute("user", 1, ratelimit.FailOpen)
	user.Scope = ratelimit.ScopeUser
	require.EqualValues(t, 1, only(t, cache, takeBy("a", tenant, user)).Admitted)
	two := takeBy("a", tenant, user)
	two.Cost = 2
	require.Positive(t, only(t, cache, two).Counters[0].RetryAfter, "both refuse")
	require.Positive(t, only(t, cache, takeBy("a", tenant, user)).Counters[1].RetryAfter)
	store.clock.advance(400 * time.Millisecond)
	require.EqualValues(t, 1, only(t, cache, takeBy("b", tenant, user)).Admitted, "the tenant's last unit")
	asked := store.asked
	again := only(t, cache, two)
	require.Equal(t, asked, store.asked)
	require.Equal(t, ratelimit.CounterState{}, again.Counters[0], "charged since: not known")
	require.NotZero(t, again.Counters[1].RetryAfter)
}

// Only what a shared store refused in full is remembered.
func TestWhatIsNotRemembered(t *testing.T) {
	t.Parallel()
	full := perMinute("full", 0, ratelimit.FailOpen)
	watched := perMinute("watched", 0, ratelimit.FailOpen)
	watched.Mode = ratelimit.Shadow
	for name, c := range map[string]struct {
		source ratelimit.Source
		charge ratelimit.Charge
	}{
		"memory":       {ratelimit.SourceMemory, takeBy("", full)},
		"nobody":       {ratelimit.SourceNone, takeBy("", full)},
		"a shadow":     {ratelimit.SourceRedis, takeBy("", watched)},
		"a free look":  {ratelimit.SourceRedis, ratelimit.Charge{Kind: ratelimit.Take, Hits: 1, Counters: takeBy("", full).Counters}},
		"without rule": {ratelimit.SourceRedis, ratelimit.Charge{Kind: ratelimit.Take, Hits: 1, Cost: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newFar()
			store.source = c.source
			cache := ratelimit.NewDenyCache(store, store.clock.now, 0)
			require.Nil(t, only(t, cache, c.charge).Refusal)
			only(t, cache, c.charge)
			require.Equal(t, 2, store.asked)
			require.Zero(t, cache.Stats().Keys)
		})
	}
	store := newFar()
	cache := ratelimit.NewDenyCache(store, store.clock.now, 0)
	store.there, store.back = 3*time.Second, 3*time.Second
	quick := &ratelimit.Limit{Name: "quick", Scope: ratelimit.ScopeTenant, Algorithm: ratelimit.TokenBucket, Quota: 1, Refill: ratelimit.Rate{Units: 1, Every: 7 * time.Second}, Cost: 1}
	only(t, cache, takeBy("", quick))
	require.Zero(t, only(t, cache, takeBy("", quick)).Admitted)
	require.Zero(t, cache.Stats().Keys, "a wait that is over when it arrives")
}

// held is a store whose answers wait on their way back.
type held struct {
	ratelimit.Store

	decided, release chan struct{}
}

func (h *held) Decide(ctx context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
	err := h.Store.Decide(ctx, charges, out)
	if charges[0].Kind == ratelimit.Take {
		h.decided <- struct{}{}
		<-h.release
	}
	return err
}

// A refund is seen at once where it was made, also by a refusal that was decided before it and arrives after it.
func TestRefundForgetsARefusal(t *testing.T) {
	t.Parallel()
	store := newFar()
	slow := &held{Store: store, decided: make(chan struct{}), release: make(chan struct{}, 16)}
	cache := ratelimit.NewDenyCache(slow, store.clock.now, 0)
	limit := perMinute("l", 1, ratelimit.FailOpen)
	pass := func() ratelimit.Outcome {
		slow.release <- struct{}{}
		go func() { <-slow.decided }()
		return only(t, cache, takeBy("", limit))
	}
	refund := takeBy("", limit)
	refund.Kind = ratelimit.Refund

	require.EqualValues(t, 1, pass().Admitted)
	require.Zero(t, pass().Admitted)
	only(t, cache, refund)
	store.clock.advance(time.Microsecond)
	require.EqualValues(t, 1, pass().Admitted, "the refund is seen at once")

	var asking sync.WaitGroup
	asking.Go(func() { require.Zero(t, only(t, cache, takeBy("", limit)).Admitted) })
	<-slow.decided
	only(t, cache, refund)
	slow.release <- struct{}{}
	asking.Wait()
	require.Zero(t, cache.Stats().Keys, "an answer from before the refund teaches nothing")
	store.clock.advance(time.Microsecond)
	require.EqualValues(t, 1, pass().Admitted)
}

// A call of many charges is answered partly by memory, in its order; its memory is bounded and falls in silence.
func TestDenyCacheOfManyAndItsBound(t *testing.T) {
	t.Parallel()
	store := newFar()
	const keys = 640
	cache := ratelimit.NewDenyCache(store, store.clock.now, keys)
	full, wide := perMinute("full", 0, ratelimit.FailOpen), perMinute("wide", 1_000_000, ratelimit.FailOpen)
	charge := func(i int, l *ratelimit.Limit) ratelimit.Charge {
		key := ratelimit.CounterKey(ratelimit.Subject{Group: strconv.Itoa(i), Scope: l.Scope}, l)
		return ratelimit.Charge{Kind: ratelimit.Take, Hits: 1, Cost: 1, Counters: []ratelimit.Counter{{Key: key, Limit: l}}}
	}
	require.Zero(t, only(t, cache, charge(1, full)).Admitted)
	charges := []ratelimit.Charge{charge(1, wide), charge(1, full), charge(2, wide), charge(3, full)}
	out := make([]ratelimit.Outcome, len(charges))
	require.NoError(t, cache.Decide(context.Background(), charges, out))
	require.Equal(t, []int64{1, 0, 1, 0}, []int64{out[0].Admitted, out[1].Admitted, out[2].Admitted, out[3].Admitted})
	require.EqualValues(t, 1, cache.Stats().Answered)
	require.EqualValues(t, 1, out[2].Counters[0].Used)

	for i := range 20 * keys {
		only(t, cache, charge(i, full))
		require.LessOrEqual(t, cache.Stats().Keys, int64(keys))
	}
	for cost := range int64(100) {
		c := charge(0, full)
		c.Cost = cost + 1
		only(t, cache, c)
	}
	require.Positive(t, cache.Stats().Keys)
	store.clock.advance(time.Second)
	cache.Sweep()
	require.Zero(t, cache.Stats().Keys)
}
