package ratelimit_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// pair is a failover over two memories that can fail, with usage carried between them.
type pair struct {
	*chain
	first, second *ratelimit.Memory
	lives         atomic.Uint64
	born          time.Time
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{chain: &chain{
		t: t, redis: &fake{source: ratelimit.SourceRedis}, postgres: &fake{source: ratelimit.SourcePostgres}, lines: &logs{},
	}}
	clock := ratelimit.MonotonicMicros(time.Now)
	p.second = ratelimit.NewMemory(clock, 0)
	p.postgres.does(p.second.Decide)
	p.empty()
	p.Failover = ratelimit.NewFailover(ratelimit.FailoverConfig{
		Stores: []*ratelimit.Guard{guard(p.redis, 50*time.Millisecond), guard(p.postgres, 150*time.Millisecond)},
		Mirror: p.postgres, Lives: func() (uint64, time.Time) { return p.lives.Load(), p.born },
		Local: ratelimit.NewMemory(clock, 0), Now: time.Now, Log: p.lines.logger(),
	})
	return p
}

// empty puts a first store without any data in the place of the one there was.
func (p *pair) empty() {
	p.first = ratelimit.NewMemory(ratelimit.MonotonicMicros(time.Now), 0)
	p.redis.does(p.first.Decide)
}

// take makes n hits and says how many got in.
func (p *pair) take(n int, l *ratelimit.Limit) (admitted int) {
	for range n {
		out, err := decide(p.t, p, hit(l))
		require.NoError(p.t, err)
		require.NoError(p.t, out.Err)
		admitted += int(out.Admitted)
	}
	return admitted
}

func (p *pair) mirror() { require.NoError(p.t, p.Mirror(context.Background())) }

// used is what a store says of a limit's counter.
func used(tb testing.TB, s ratelimit.Store, l *ratelimit.Limit) int64 {
	tb.Helper()
	charges := hit(l)
	charges[0].Kind = ratelimit.Peek
	out, err := decide(tb, s, charges)
	require.NoError(tb, err)
	return out.Counters[0].Used
}

func carries(t *testing.T, test func(p *pair)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		defer p.close()
		test(p)
	})
}

func TestTheMirrorTellsTotals(t *testing.T) {
	carries(t, func(p *pair) {
		t := p.t
		l, idle := perMinute("a", 100, ratelimit.FailOpen), perMinute("idle", 100, ratelimit.FailOpen)
		p.take(60, l)
		p.take(19, idle)
		require.EqualValues(t, 2, p.Health().Handover.Tracked)
		require.EqualValues(t, 1, p.Health().Handover.Pending)
		require.Zero(t, p.postgres.calls.Load(), "behind the decisions")
		p.mirror()
		require.EqualValues(t, 60, used(t, p.second, l))
		require.Zero(t, used(t, p.second, idle), "below a fifth of its quota")
		health := p.Health().Handover
		require.Zero(t, health.Pending)
		require.Zero(t, health.Lag)
		require.EqualValues(t, 1, health.Mirrored)

		calls := p.postgres.calls.Load()
		p.mirror()
		require.Equal(t, calls, p.postgres.calls.Load(), "nothing new, nothing told")
		p.take(5, l)
		time.Sleep(3 * time.Second)
		require.Equal(t, 3*time.Second, p.Health().Handover.Lag)
		p.mirror()
		p.mirror()
		require.EqualValues(t, 65, used(t, p.second, l))
		time.Sleep(2 * time.Minute)
		p.mirror()
		require.Zero(t, p.Health().Handover.Tracked, "what says nothing any more is forgotten")
	})
}

// A pass of unknown outcome is simply repeated.
func TestTheMirrorRepeatsWhatMayHaveFailed(t *testing.T) {
	carries(t, func(p *pair) {
		t := p.t
		l := perMinute("a", 100, ratelimit.FailOpen)
		p.take(60, l)
		p.postgres.does(func(ctx context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
			_ = p.second.Decide(ctx, charges, out)
			return errDown // after it has been done
		})
		for range 7 {
			require.Error(t, p.Mirror(context.Background()))
		}
		require.Equal(t, ratelimit.BreakerOpen, p.Health().Stores[1].Breaker, "it tells how that store is")
		require.EqualValues(t, 5, p.postgres.calls.Load(), "and leaves it alone then")
		require.Equal(t, 1, p.take(1, l), "decisions go on")

		p.postgres.does(p.second.Decide)
		time.Sleep(1100 * time.Millisecond)
		p.mirror()
		require.EqualValues(t, 61, used(t, p.second, l))
		require.Equal(t, ratelimit.BreakerClosed, p.Health().Stores[1].Breaker, "a pass is a probe, too")
	})
}

// The first call on the fallback takes along what was not mirrored yet, a small use as well as a large one.
func TestTheFirstFallbackTellsWhatIsPending(t *testing.T) {
	carries(t, func(p *pair) {
		t := p.t
		large, small := perMinute("large", 100, ratelimit.FailOpen), perMinute("small", 100, ratelimit.FailOpen)
		p.take(60, large)
		p.take(10, small)
		p.redis.does(fails)
		require.Equal(t, 40, p.take(100, large))
		require.Equal(t, 90, p.take(100, small))
	})
}

func TestTheReturnIsToppedUpOnce(t *testing.T) {
	for _, keeps := range []bool{true, false} {
		t.Run(fmt.Sprintf("data kept: %t", keeps), func(t *testing.T) {
			carries(t, func(p *pair) {
				t := p.t
				l := perMinute("a", 100, ratelimit.FailOpen)
				p.take(60, l)
				p.redis.does(fails)
				require.Equal(t, 30, p.take(30, l))
				if keeps {
					p.redis.does(p.first.Decide)
				} else {
					p.empty()
				}
				time.Sleep(1100 * time.Millisecond)
				require.Equal(t, 10, p.take(100, l))
				require.Equal(t, ratelimit.SourceRedis, p.Source())
				require.EqualValues(t, 100, used(t, p.first, l))
				health := p.Health().Handover
				require.Positive(t, health.ToppedUp)
				calls := p.postgres.calls.Load()
				p.take(100, l)
				require.Equal(t, calls, p.postgres.calls.Load(), "once per counter and return")
				require.Equal(t, health.ToppedUp, p.Health().Handover.ToppedUp)

				fresh := perMinute("fresh", 10, ratelimit.FailOpen)
				time.Sleep(2 * time.Minute)
				require.Equal(t, 10, p.take(20, fresh))
				require.Equal(t, calls, p.postgres.calls.Load(), "a window after the return nothing is left to ask for")
			})
		})
	}
}

// A single call that Postgres answered is made up for, although no breaker opened.
func TestASingleFallbackIsToppedUp(t *testing.T) {
	carries(t, func(p *pair) {
		t := p.t
		l := perMinute("a", 100, ratelimit.FailOpen)
		p.take(10, l)
		p.redis.does(fails)
		p.take(3, l)
		p.redis.does(p.first.Decide)
		require.Equal(t, 1, p.take(1, l))
		require.EqualValues(t, 14, used(t, p.first, l))
	})
}

// With usage to be put back, too, both stores' silence is waited for once: Postgres is not asked to decide when it has just
// not said what it knows.
func TestHungStoresAreInTimeWithUsageToPutBack(t *testing.T) {
	carries(t, func(p *pair) {
		t := p.t
		l := perMinute("a", 100, ratelimit.FailOpen)
		p.redis.does(hangs)
		require.Equal(t, 1, p.take(1, l)) // Postgres decides: Redis is owed a top-up
		p.postgres.does(hangs)
		start := time.Now()
		out, err := decide(t, p, hit(l))
		require.NoError(t, err)
		require.Equal(t, ratelimit.SourceNone, out.Source)
		require.Equal(t, 200*time.Millisecond, time.Since(start))
	})
}

// Another server in Redis's place, never seen down: what is known is put back, from this replica's memory when Postgres is away.
func TestAnotherServerIsToppedUp(t *testing.T) {
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprintf("Postgres away: %t", away), func(t *testing.T) {
			carries(t, func(p *pair) {
				t := p.t
				l := perMinute("a", 100, ratelimit.FailOpen)
				p.take(60, l)
				if away {
					p.postgres.does(fails)
				} else {
					p.mirror()
				}
				p.empty()
				p.lives.Add(1)
				p.born = time.Now()
				require.Equal(t, 40, p.take(100, l))
				if away {
					require.Less(t, p.postgres.calls.Load(), int64(10), "it is not asked with every charge")
				}
			})
		})
	}
}

// A server that has been up for longer than a window needs nothing, so a start asks Postgres for nothing.
func TestAnOldServerNeedsNothing(t *testing.T) {
	carries(t, func(p *pair) {
		t := p.t
		p.born = time.Now().Add(-2 * time.Minute)
		p.lives.Add(1)
		p.take(10, perMinute("a", 100, ratelimit.FailOpen))
		require.Zero(t, p.postgres.calls.Load())
		long := perMinute("long", 100, ratelimit.FailOpen)
		long.Window = time.Hour
		p.take(10, long)
		require.EqualValues(t, 1, p.postgres.calls.Load(), "but a longer window does")
	})
}

// More subjects than a replica remembers cost memory up to a bound, and are counted.
func TestTheMirrorIsBounded(t *testing.T) {
	carries(t, func(p *pair) {
		t := p.t
		l := perMinute("a", 1, ratelimit.FailOpen)
		out := make([]ratelimit.Outcome, 1)
		for i := range 300_000 {
			key := ratelimit.CounterKey(ratelimit.Subject{Group: fmt.Sprint(i)}, l)
			charges := []ratelimit.Charge{{Counters: []ratelimit.Counter{{Key: key, Limit: l}}, Hits: 1, Cost: 1}}
			require.NoError(t, p.Decide(context.Background(), charges, out))
		}
		health := p.Health().Handover
		require.LessOrEqual(t, health.Tracked, int64(1<<18))
		require.EqualValues(t, 300_000, health.Tracked+health.Dropped)
		time.Sleep(2 * time.Minute)
		p.mirror()
		require.Zero(t, p.Health().Handover.Tracked)
		require.Zero(t, p.Health().Handover.Pending)
	})
}

// The price of remembering: to be compared with what a decision costs.
func BenchmarkHandover(b *testing.B) {
	for name, mirror := range map[string]bool{"with": true, "without": false} {
		b.Run(name, func(b *testing.B) {
			clock := ratelimit.MonotonicMicros(time.Now)
			second := ratelimit.NewMemory(clock, 0)
			cfg := ratelimit.FailoverConfig{
				Stores: []*ratelimit.Guard{guard(ratelimit.NewMemory(clock, 0), time.Second), guard(second, time.Second)},
				Local:  ratelimit.NewMemory(clock, 0), Now: time.Now, Log: (&logs{}).logger(),
			}
			if mirror {
				cfg.Mirror = second
			}
			f := ratelimit.NewFailover(cfg)
			defer func() { _ = f.Close(context.Background()) }()
			charges, out := hit(perMinute("a", 1_000_000_000, ratelimit.FailOpen)), make([]ratelimit.Outcome, 1)
			b.ReportAllocs()
			for b.Loop() {
				_ = f.Decide(context.Background(), charges, out)
			}
		})
	}
}
