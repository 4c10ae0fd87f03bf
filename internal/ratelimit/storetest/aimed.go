package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// aim is how close to a round minute the bursts of Aimed come.
const aim = 50 * time.Millisecond

// Aimed holds replicas that share a server and the clock to the quota in every trailing minute, while all of them send
// bursts within 50 ms of round minutes: what a counter per minute lets through twice.
func Aimed(t *testing.T, clock *Clock, strictness Strictness, replicas ...ratelimit.Store) {
	t.Helper()
	for _, quota := range []int64{100, 2000} {
		t.Run(fmt.Sprint(quota, " a minute"), func(t *testing.T) {
			a := &aimed{T: t, clock: clock, replicas: replicas, seed: rand.Uint64()}
			t.Logf("seed %d", a.seed)
			a.rand = rand.New(rand.NewPCG(a.seed, 1))
			l := limit(ratelimit.SlidingWindowLog, quota, time.Minute)
			subject := ratelimit.Subject{Group: fmt.Sprintf("aimed-%x-%d", a.seed, quota), Scope: l.Scope}
			a.counters = []ratelimit.Counter{{Key: ratelimit.CounterKey(subject, l), Limit: l}}
			a.admitted = oracle{limit: l}
			a.run(strictness == Segmented)
		})
	}
}

type aimed struct {
	*testing.T
	clock    *Clock
	replicas []ratelimit.Store
	counters []ratelimit.Counter
	admitted oracle
	seed     uint64
	rand     *rand.Rand
}

func (a *aimed) run(segmented bool) {
	const minutes, instants = 20, 8
	minute := (a.clock.Now()/time.Minute.Microseconds() + 1) * time.Minute.Microseconds()
	quota := a.admitted.limit.Quota
	for range minutes {
		offsets := make([]int64, instants)
		for i := range offsets {
			offsets[i] = a.rand.Int64N(2*aim.Microseconds()+1) - aim.Microseconds()
		}
		slices.Sort(offsets)
		for _, offset := range offsets {
			now := minute + offset
			a.clock.Set(now)
			a.admitted.admit(now, a.together(1+a.rand.Int64N(quota/2)))
			require.Empty(a, a.admitted.tooLoose(now, segmented))
		}
		minute += time.Minute.Microseconds()
	}
	require.GreaterOrEqual(a, a.admitted.since(0), quota*minutes/2, "budgets were used, every other minute at least")
}

// together has all replicas ask for so many hits at the same instant, and says how many they got in all.
func (a *aimed) together(hits int64) int64 {
	got := make([]ratelimit.Outcome, len(a.replicas))
	failed := make([]error, len(a.replicas))
	var all sync.WaitGroup
	for i, replica := range a.replicas {
		all.Go(func() {
			charge := ratelimit.Charge{Kind: ratelimit.Take, Counters: a.counters, Hits: hits, Cost: 1}
			failed[i] = replica.Decide(context.Background(), []ratelimit.Charge{charge}, got[i:i+1])
		})
	}
	all.Wait()
	sum := int64(0)
	for i := range got {
		require.NoError(a, failed[i])
		require.NoError(a, got[i].Err)
		sum += got[i].Admitted
	}
	return sum
}
