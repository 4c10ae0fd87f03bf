package ratelimit_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/storetest"
)

// chain is a failover over two fakes, as app puts it together.
type chain struct {
	t               testing.TB
	redis, postgres *fake
	lines           *logs
	*ratelimit.Failover
}

func newChain(tb testing.TB, localCounters int) *chain {
	tb.Helper()
	c := &chain{
		t: tb, redis: &fake{source: ratelimit.SourceRedis}, postgres: &fake{source: ratelimit.SourcePostgres}, lines: &logs{},
	}
	c.Failover = ratelimit.NewFailover(ratelimit.FailoverConfig{
		Stores: []*ratelimit.Guard{
			guard(c.redis, 50*time.Millisecond),
			guard(c.postgres, 150*time.Millisecond, func(g *ratelimit.GuardConfig) { g.MaxInFlight = 16 }),
		},
		Local: ratelimit.NewMemory(ratelimit.MonotonicMicros(time.Now), localCounters),
		Now:   time.Now,
		Log:   c.lines.logger(),
	})
	return c
}

func (c *chain) close() {
	require.NoError(c.t, c.Close(context.Background()))
}

func inBubble(t *testing.T, test func(c *chain)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newChain(t, 0)
		defer c.close()
		test(c)
	})
}

func TestFailoverAsksInOrder(t *testing.T) {
	inBubble(t, func(c *chain) {
		t := c.t
		charges := hit(perMinute("a", 1, ratelimit.FailClosed))
		out, err := decide(t, c, charges)
		require.NoError(t, err)
		require.Equal(t, ratelimit.SourceRedis, out.Source)
		require.Zero(t, c.postgres.calls.Load())
		require.Equal(t, ratelimit.SourceRedis, c.Source())

		c.redis.does(fails)
		for range 10 {
			out, err = decide(t, c, charges)
			require.NoError(t, err)
			require.Equal(t, ratelimit.SourcePostgres, out.Source)
			require.EqualValues(t, 1, out.Admitted)
		}
		health := c.Health()
		require.Equal(t, ratelimit.SourcePostgres, health.Deciding)
		require.Equal(t, ratelimit.BreakerOpen, health.Stores[0].Breaker)
		require.Equal(t, ratelimit.BreakerClosed, health.Stores[1].Breaker)
		require.Equal(t, time.Now(), health.Stores[0].Since)
		require.EqualValues(t, 6, c.redis.calls.Load(), "five failures are enough")

		c.redis.does(admits)
		time.Sleep(1100 * time.Millisecond)
		out, err = decide(t, c, charges)
		require.NoError(t, err)
		require.Equal(t, ratelimit.SourceRedis, out.Source, "it comes back by itself")
		require.Equal(t, ratelimit.SourceRedis, c.Health().Deciding)
		require.Zero(t, c.Health().Undecided)
	})
}

// The first call already is in time, whatever hangs.
func TestFailoverOfHungStoresIsInTime(t *testing.T) {
	inBubble(t, func(c *chain) {
		t := c.t
		c.redis.does(hangs)
		start := time.Now()
		out, err := decide(t, c, hit(perMinute("a", 1, ratelimit.FailOpen)))
		require.NoError(t, err)
		require.Equal(t, ratelimit.SourcePostgres, out.Source)
		require.Equal(t, 50*time.Millisecond, time.Since(start))

		c.postgres.does(hangs)
		start = time.Now()
		out, err = decide(t, c, hit(perMinute("a", 1, ratelimit.FailOpen)))
		require.NoError(t, err)
		require.Equal(t, ratelimit.SourceNone, out.Source)
		require.Equal(t, 200*time.Millisecond, time.Since(start))

		for range 5 {
			_, err = decide(t, c, hit())
			require.NoError(t, err)
		}
		start = time.Now()
		for range 100 {
			_, err = decide(t, c, hit())
			require.NoError(t, err)
		}
		require.Zero(t, time.Since(start), "open breakers cost no time")
	})
}

func TestFailoverWithoutAnyStore(t *testing.T) {
	open, closed, local := perMinute("open", 1, ratelimit.FailOpen), perMinute("closed", 1, ratelimit.FailClosed), perMinute("local", 2, ratelimit.FailLocal)
	watched := perMinute("watched", 1, ratelimit.FailClosed)
	watched.Mode = ratelimit.Shadow
	both := func(c *chain) {
		c.redis.does(fails)
		c.postgres.does(fails)
	}
	t.Run("open limits allow and say so", func(t *testing.T) {
		inBubble(t, func(c *chain) {
			t := c.t
			both(c)
			for range 100 {
				out, err := decide(t, c, hit(open))
				require.NoError(t, err)
				require.NoError(t, out.Err)
				require.EqualValues(t, 1, out.Admitted)
				require.Equal(t, ratelimit.SourceNone, out.Source)
				require.Equal(t, ratelimit.CounterState{}, out.Counters[0], "no number is invented")
			}
			health := c.Health()
			require.Equal(t, ratelimit.SourceNone, health.Deciding)
			require.EqualValues(t, 100, health.Undecided)
			require.Equal(t, 1, c.lines.lines("level=ERROR"), "loud, not endless")
			time.Sleep(11 * time.Second)
			_, err := decide(t, c, hit(open))
			require.NoError(t, err)
			require.Equal(t, 2, c.lines.lines("level=ERROR"))
		})
	})
	t.Run("closed limits refuse to decide", func(t *testing.T) {
		inBubble(t, func(c *chain) {
			t := c.t
			both(c)
			for _, charges := range [][]ratelimit.Charge{hit(closed), hit(open, closed), hit(local, closed)} {
				out, err := decide(t, c, charges)
				require.NoError(t, err)
				require.ErrorIs(t, out.Err, ratelimit.ErrClosed)
				require.Zero(t, out.Admitted)
			}
			out, err := decide(t, c, hit(local))
			require.NoError(t, err)
			require.EqualValues(t, 1, out.Counters[0].Used, "a charge that is not decided is charged nowhere")
			out, err = decide(t, c, hit(watched, open))
			require.NoError(t, err)
			require.NoError(t, out.Err, "a limit that only watches closes nothing")
		})
	})
	t.Run("local limits count here", func(t *testing.T) {
		inBubble(t, func(c *chain) {
			t := c.t
			both(c)
			for i := range int64(4) {
				out, err := decide(t, c, hit(open, local, watched))
				require.NoError(t, err)
				require.NoError(t, out.Err)
				require.Equal(t, i < 2, out.Admitted == 1)
				require.Equal(t, ratelimit.SourceMemory, out.Source)
				require.Equal(t, ratelimit.CounterState{}, out.Counters[0])
				require.Equal(t, ratelimit.CounterState{}, out.Counters[2])
				require.Equal(t, min(2, i+1), out.Counters[1].Used)
				require.Equal(t, ratelimit.SlidingWindowLog, out.Counters[1].Effective)
			}
			require.EqualValues(t, 4, c.Health().Local)
			require.Zero(t, c.Health().Undecided)
			time.Sleep(time.Minute)
			out, err := decide(t, c, hit(local))
			require.NoError(t, err)
			require.EqualValues(t, 1, out.Admitted)
		})
	})
	t.Run("local limits that memory has no room for are open", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newChain(t, 64) // one counter per shard
			defer c.close()
			both(c)
			var none int64
			for i := range 200 {
				charges := hit(local)
				charges[0].Counters[0].Key = ratelimit.CounterKey(ratelimit.Subject{Group: string(rune('a' + i))}, local)
				out, err := decide(t, c, charges)
				require.NoError(t, err)
				require.NoError(t, out.Err)
				require.EqualValues(t, 1, out.Admitted)
				if out.Source == ratelimit.SourceNone {
					none++
				}
			}
			require.GreaterOrEqual(t, none, int64(200-64))
			require.Equal(t, none, c.Health().LocalFull)
			require.Equal(t, none, c.Health().Undecided)
		})
	})
	t.Run("no stores at all", func(t *testing.T) {
		f := ratelimit.NewFailover(ratelimit.FailoverConfig{
			Local: ratelimit.NewMemory(ratelimit.MonotonicMicros(time.Now), 0), Now: time.Now, Log: (&logs{}).logger(),
		})
		out, err := decide(t, f, hit(closed))
		require.NoError(t, err)
		require.ErrorIs(t, out.Err, ratelimit.ErrClosed)
		require.Equal(t, ratelimit.SourceNone, f.Source())
	})
}

// A batch is decided charge by charge where it has to be.
func TestFailoverOfASingleCharge(t *testing.T) {
	inBubble(t, func(c *chain) {
		t := c.t
		bad := func(ctx context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
			require.NoError(t, admits(ctx, charges, out))
			for i := range charges {
				if charges[i].Cost == 13 {
					out[i].Err = ratelimit.ErrCounter
				}
			}
			return nil
		}
		c.redis.does(bad)
		charges := append(hit(perMinute("a", 1, ratelimit.FailOpen)), hit(perMinute("b", 1, ratelimit.FailClosed))...)
		charges[1].Cost = 13
		out := make([]ratelimit.Outcome, 2)
		require.NoError(t, c.Decide(context.Background(), charges, out))
		require.Equal(t, ratelimit.SourceRedis, out[0].Source)
		require.Equal(t, ratelimit.SourcePostgres, out[1].Source, "a counter Redis cannot read is Postgres's to count")
		require.NoError(t, out[1].Err)

		c.postgres.does(bad)
		require.NoError(t, c.Decide(context.Background(), charges, out))
		require.NoError(t, out[0].Err)
		require.ErrorIs(t, out[1].Err, ratelimit.ErrClosed)
		require.Equal(t, ratelimit.SourceRedis, c.Health().Deciding, "the stores are well")
	})
}

func TestFailoverGivesUpWithItsCaller(t *testing.T) {
	inBubble(t, func(c *chain) {
		t := c.t
		c.redis.does(hangs)
		c.postgres.does(hangs)
		for _, patience := range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			start := time.Now()
			err := c.Decide(ctx, hit(perMinute("a", 1, ratelimit.FailClosed)), make([]ratelimit.Outcome, 1))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, ratelimit.ErrUnavailable)
			require.Equal(t, patience, time.Since(start))
			cancel()
		}
		time.Sleep(time.Second)
	})
}

// Redis's whole traffic does not drown Postgres: beyond its own bound calls wait, at most to their deadline.
func TestFallbackHasItsOwnBound(t *testing.T) {
	inBubble(t, func(c *chain) {
		t := c.t
		c.redis.does(fails)
		c.postgres.does(takes(70 * time.Millisecond))
		type answer struct {
			source ratelimit.Source
			after  time.Duration
		}
		answers := make(chan answer, 100)
		start := time.Now()
		for range cap(answers) {
			go func() {
				out, err := decide(t, c, hit(perMinute("a", 1, ratelimit.FailOpen)))
				if err != nil {
					t.Error(err)
				}
				answers <- answer{out.Source, time.Since(start)}
			}()
		}
		sources := map[ratelimit.Source]int{}
		for range cap(answers) {
			a := <-answers
			sources[a.source]++
			require.LessOrEqual(t, a.after, 150*time.Millisecond)
		}
		require.Equal(t, map[ratelimit.Source]int{ratelimit.SourcePostgres: 32, ratelimit.SourceNone: 68}, sources)
	})
}

// While its first store is well, the failover is that store.
func TestFailoverKeepsTheContract(t *testing.T) {
	storetest.Run(t, storetest.Factory{Fresh: true, New: func(tb testing.TB, clock *storetest.Clock) ratelimit.Store {
		tb.Helper()
		first := guard(ratelimit.NewMemory(clock.Now, 0), 10*time.Second)
		f := ratelimit.NewFailover(ratelimit.FailoverConfig{
			Stores: []*ratelimit.Guard{first}, Local: ratelimit.NewMemory(clock.Now, 0), Now: time.Now, Log: (&logs{}).logger(),
		})
		tb.Cleanup(func() { require.NoError(tb, f.Close(context.Background())) })
		return f
	}})
}
