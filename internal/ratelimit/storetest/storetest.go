// Package storetest holds what every ratelimit.Store has to pass: one suite of examples and properties, run by memory, Redis,
// Postgres and the failover alike. A store calls Run from a test of its own.
//
// The suite compares a store with a reference (ratelimit.Memory, or the model of Postgres's segments in this package),
// and both with an oracle that knows no algorithm: a plain list of what was admitted when.
package storetest

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// Clock is the time a store under test is told to use. It moves only when a test moves it, forward or backward.
type Clock struct{ us atomic.Int64 }

// NewClock starts at a plausible Unix time, so that scores have as many digits as in production.
func NewClock() *Clock {
	c := &Clock{}
	c.us.Store(1_790_000_000_123_456)
	return c
}

// Now is the time in microseconds since the epoch. It is what a store is given in place of its own clock.
func (c *Clock) Now() int64 { return c.us.Load() }

// Set moves to an absolute time in microseconds.
func (c *Clock) Set(us int64) { c.us.Store(us) }

// Advance moves by d, which may be negative.
func (c *Clock) Advance(d time.Duration) { c.us.Add(d.Microseconds()) }

// Strictness is how a store may differ from the exact reference.
type Strictness uint8

const (
	// Exact stores answer every charge exactly as ratelimit.Memory does, to the microsecond.
	Exact Strictness = iota
	// Segmented stores count in rows of one eighth of the span: never looser than the exact log, stricter by at most
	// one eighth of the span. Fixed windows are exact as long as time does not go back.
	Segmented
)

// Factory says how to make the store under test.
type Factory struct {
	// New returns a store that uses clock.Now for its time. It is called once per top-level test of the suite; the
	// stores may share one server, because no two tests share a counter. Whatever else expires a counter (the TTL of
	// a Redis key, a sweep of old rows) must not do so within seconds of real time, whatever the clock says.
	New        func(tb testing.TB, clock *Clock) ratelimit.Store
	Strictness Strictness
	// Fresh makes a new store for every random run: for stores in memory, which forget a counter that has expired by the
	// test's clock and would not know it again when that clock steps back.
	Fresh bool
	// Checks is how many random runs each property makes: 100 when 0. A -rapid.checks on the command line wins.
	Checks int
	// Steps is how many random steps a run of the differential property makes: 30 when 0.
	Steps int
}

// Run runs the whole suite. Do not call it from a parallel test: it sets rapid's number of checks for its duration.
func Run(t *testing.T, f Factory) {
	t.Helper()
	if f.Steps == 0 {
		f.Steps = 30
	}
	setChecks(t, f.Checks)
	run, groups := rand.Uint64(), new(atomic.Int64)
	for _, test := range []struct {
		name string
		run  func(*suite)
	}{
		{"Contract", (*suite).contract},
		{"Counting", (*suite).counting},
		{"Costs", (*suite).costs},
		{"AllOrNothing", (*suite).allOrNothing},
		{"Refunds", (*suite).refunds},
		{"Raises", (*suite).raises},
		{"Quotas", (*suite).quotas},
		{"Time", (*suite).times},
		{"Buckets", (*suite).buckets},
		{"Concurrency", (*suite).concurrency},
		{"SameAsReference", (*suite).sameAsReference},
		{"NeverLooser", (*suite).neverLooser},
		{"HonestWaits", (*suite).honestWaits},
	} {
		t.Run(test.name, func(t *testing.T) {
			clock := NewClock()
			test.run(&suite{T: t, factory: f, clock: clock, store: f.New(t, clock), run: run, groups: groups})
		})
	}
}

// setChecks sets how many checks rapid makes, which it only takes from its flag.
func setChecks(t *testing.T, n int) {
	t.Helper()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if given {
		return
	}
	if n == 0 {
		n = 100
	}
	before := flag.Lookup("rapid.checks").Value.String()
	require.NoError(t, flag.Set("rapid.checks", strconv.Itoa(n)))
	t.Cleanup(func() { require.NoError(t, flag.Set("rapid.checks", before)) })
}

// suite is one top-level test with its store.
type suite struct {
	*testing.T
	factory Factory
	clock   *Clock
	store   ratelimit.Store
	run     uint64 // tells this run's counters from those of earlier runs on the same server
	groups  *atomic.Int64
}

func (s *suite) group() string {
	return fmt.Sprintf("storetest-%x-%d", s.run, s.groups.Add(1))
}

// begin starts a random run at a random time.
func (s *suite) begin(t *rapid.T) {
	s.clock.Set(1_790_000_000_000_000 + rapid.Int64Range(0, 100_000_000_000).Draw(t, "start"))
	if s.factory.Fresh {
		s.store = s.factory.New(s.T, s.clock)
	}
}

// segmented reports whether counters of this algorithm are counted in segments.
func (s *suite) segmented(a ratelimit.Algorithm) bool {
	return s.factory.Strictness == Segmented && a != ratelimit.FixedWindow
}

// each runs a test for every algorithm, with a limit of that algorithm on a counter of its own.
func (s *suite) each(name string, quota int64, test func(c *caller)) {
	for _, a := range algorithms() {
		s.Run(name+"/"+string(a), func(t *testing.T) {
			test(s.caller(t, limit(a, quota, 10*time.Second)))
		})
	}
}

// caller returns somebody who is counted by the given limits on counters of their own.
func (s *suite) caller(t *testing.T, limits ...*ratelimit.Limit) *caller {
	t.Helper()
	c := &caller{T: t, suite: s, limits: limits, cost: 1}
	group := s.group()
	for i, l := range limits {
		if l.Name == "" {
			l.Name = fmt.Sprintf("limit-%d", i)
		}
		subject := ratelimit.Subject{Group: group, Scope: l.Scope}
		c.counters = append(c.counters, ratelimit.Counter{
			Key: ratelimit.CounterKey(subject, l), Limit: l, Shadow: l.Mode == ratelimit.Shadow,
		})
	}
	return c
}

// caller makes charges of one subject on the store under test.
type caller struct {
	*testing.T
	suite    *suite
	limits   []*ratelimit.Limit
	counters []ratelimit.Counter
	cost     int64
}

func (c *caller) charge(kind ratelimit.Kind, hits, cost int64) ratelimit.Outcome {
	c.Helper()
	return c.decide(ratelimit.Charge{Kind: kind, Counters: c.counters, Hits: hits, Cost: cost})
}

func (c *caller) decide(charge ratelimit.Charge) ratelimit.Outcome {
	c.Helper()
	out := make([]ratelimit.Outcome, 1)
	require.NoError(c, c.suite.store.Decide(context.Background(), []ratelimit.Charge{charge}, out))
	require.NoError(c, out[0].Err)
	require.Len(c, out[0].Counters, len(charge.Counters))
	return out[0]
}

// take makes one hit of the given cost and reports whether it was admitted, with the first counter's state.
func (c *caller) take(cost int64) (bool, ratelimit.CounterState) {
	c.Helper()
	out := c.charge(ratelimit.Take, 1, cost)
	return out.Admitted == 1, out.Counters[0]
}

func (c *caller) peek(cost int64) (bool, ratelimit.CounterState) {
	c.Helper()
	out := c.charge(ratelimit.Peek, 1, cost)
	return out.Admitted == 1, out.Counters[0]
}

// admitted is how many of n single hits get through, one after the other.
func (c *caller) admitted(n int) int {
	c.Helper()
	admitted := 0
	for range n {
		if ok, _ := c.take(1); ok {
			admitted++
		}
	}
	return admitted
}

// advance moves the clock.
func (c *caller) advance(d time.Duration) { c.suite.clock.Advance(d) }

func algorithms() []ratelimit.Algorithm {
	return []ratelimit.Algorithm{
		ratelimit.SlidingWindowLog, ratelimit.SlidingWindowCounter, ratelimit.FixedWindow,
		ratelimit.TokenBucket, ratelimit.LeakyBucket,
	}
}

// limit is a tenant's limit of quota per window; a bucket refills its quota in one window.
func limit(a ratelimit.Algorithm, quota int64, window time.Duration) *ratelimit.Limit {
	l := &ratelimit.Limit{
		Scope: ratelimit.ScopeTenant, Algorithm: a, Quota: quota, Cost: 1,
		OnStoreFailure: ratelimit.FailOpen, Mode: ratelimit.Enforce,
	}
	if a.Bucket() {
		l.Refill = ratelimit.Rate{Units: max(1, quota), Every: window}
	} else {
		l.Window = window
	}
	return l
}

// alignedTo moves the clock to the start of the next window of that length, plus an offset: tests of edges need to know
// where they are.
func (s *suite) alignedTo(window, offset time.Duration) {
	w := window.Microseconds()
	s.clock.Set((s.clock.Now()/w+1)*w + offset.Microseconds())
}
