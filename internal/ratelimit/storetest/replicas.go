package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// Replicas holds one to four replicas that share a server to the bound of each algorithm, whatever they are asked at the same
// instant and however the server's clock steps. A replica is a store on that server behind the decorators of production;
// the server's time is clock's, and open may be called often.
func Replicas(t *testing.T, checks int, strictness Strictness, clock *Clock, open func(tb testing.TB) ratelimit.Store) {
	t.Helper()
	setChecks(t, checks)
	run, runs := rand.Uint64(), 0
	here := NewClock()
	var all []ratelimit.Store
	for range 4 {
		all = append(all, decorated(t, open(t), here))
	}
	rapid.Check(t, func(t *rapid.T) {
		l := drawLimit(t, "limit")
		l.Quota = rapid.SampledFrom([]int64{1, 2, 3, 10, 60, 1024, 1025, 20_000}).Draw(t, "quota")
		l.Mode = ratelimit.Enforce
		if l.Algorithm.Bucket() {
			l.Refill = drawRefill(t, l.Quota)
		}
		runs++
		subject := ratelimit.Subject{Group: fmt.Sprintf("replicas-%x-%d", run, runs)}
		r := &replicas{
			clock: clock, here: here, limit: l, counters: []ratelimit.Counter{{Key: ratelimit.CounterKey(subject, l), Limit: l}},
			of: all[:rapid.IntRange(1, len(all)).Draw(t, "replicas")],
		}
		clock.Set(1_790_000_000_000_000 + rapid.Int64Range(0, 100_000_000_000).Draw(t, "start"))
		here.Set(clock.Now())
		r.run(t, strictness == Segmented)
	})
}

// decorated is a store as production asks it: what was refused is refused from memory, and hits are merged.
func decorated(tb testing.TB, store ratelimit.Store, here *Clock) ratelimit.Store {
	tb.Helper()
	batcher := ratelimit.NewBatcher(store, ratelimit.BatcherConfig{})
	tb.Cleanup(batcher.Close)
	return ratelimit.NewDenyCache(batcher, func() time.Time { return time.UnixMicro(here.Now()) }, 0)
}

type replicas struct {
	clock    *Clock // of the server
	here     *Clock // of the replicas: it never steps
	limit    *ratelimit.Limit
	counters []ratelimit.Counter
	of       []ratelimit.Store
}

func (r *replicas) run(t *rapid.T, segmented bool) {
	span := max(time.Second, r.limit.Span())
	o := &oracle{limit: r.limit}
	back := time.Duration(0)
	for range rapid.IntRange(1, 30).Draw(t, "steps") {
		pause := drawPause(t, span)
		r.clock.Advance(pause)
		r.here.Advance(pause)
		// The oracle goes by the time that passes. It can say what is right of a log only after a step back: the windows of the
		// others begin by the server's clock.
		if r.limit.Algorithm == ratelimit.SlidingWindowLog && rapid.IntRange(0, 7).Draw(t, "back") == 0 && back < span/2 {
			step := (span / 5).Truncate(time.Microsecond)
			back += step
			r.clock.Advance(-step)
		}
		cost := rapid.SampledFrom([]int64{1, 1, 2, max(1, r.limit.Quota/4)}).Draw(t, "cost")
		callers := rapid.SliceOfN(rapid.SampledFrom([]int64{1, 1, 2, max(1, r.limit.Quota/3), r.limit.Quota}), 1, 8).Draw(t, "hits")
		now := r.here.Now()
		o.admit(now, r.together(t, callers, cost)*r.limit.UnitsPerHit(cost))
		if wrong := o.tooLoose(now, segmented); wrong != "" {
			t.Fatal(wrong)
		}
	}
}

// together has callers, spread over the replicas, ask at the same instant, and says how many hits they got in all.
func (r *replicas) together(t *rapid.T, callers []int64, cost int64) int64 {
	got, failed := make([]ratelimit.Outcome, len(callers)), make([]error, len(callers))
	var all sync.WaitGroup
	for i, hits := range callers {
		all.Go(func() {
			charge := ratelimit.Charge{Kind: ratelimit.Take, Counters: r.counters, Hits: hits, Cost: cost}
			err := r.of[i%len(r.of)].Decide(context.Background(), []ratelimit.Charge{charge}, got[i:i+1])
			failed[i] = errors.Join(err, got[i].Err)
		})
	}
	all.Wait()
	if err := errors.Join(failed...); err != nil {
		t.Fatal(err)
	}
	sum := int64(0)
	for i := range got {
		sum += got[i].Admitted
	}
	return sum
}
