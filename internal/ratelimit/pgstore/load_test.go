package pgstore_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/pgstore"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// Charges that touch {A,B} and {B,A}, in batches that do the same, from two processes' pools, while rows are pruned and
// given back: no deadlock, and every admitted hit is counted.
func TestOppositeOrdersNeverDeadlock(t *testing.T) {
	t.Parallel()
	oppositeOrders(t, func(round int) bool { return round < 12 })
}

// The same for a minute: of a fault that needs luck, more is seen.
func TestSoakOppositeOrders(t *testing.T) {
	end := time.Now().Add(min(testenv.Soak(t), time.Minute))
	oppositeOrders(t, func(int) bool { return time.Now().Before(end) })
}

// oppositeOrders has 64 workers charge pairs of 12 counters, each for as many rounds as it is told to.
func oppositeOrders(t *testing.T, more func(round int) bool) {
	t.Helper()
	url := testenv.Postgres(t)
	var stores [2]*pgstore.Store
	for i := range stores {
		stores[i] = pgstore.New(newPool(t, url, 8), pgstore.WithTimeout(patient))
	}
	hour := window(ratelimit.SlidingWindowLog, 100_000_000, time.Hour)
	day := window(ratelimit.FixedWindow, 100_000_000, 24*time.Hour)
	keys := make([]ratelimit.Counter, 12)
	for i := range keys {
		keys[i] = counter([]*ratelimit.Limit{hour, day}[i%2])
	}
	before := deadlocks(t, url)

	var taken [12]atomic.Int64
	var calls atomic.Int64
	var all sync.WaitGroup
	for w := range 64 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			for round := 0; more(round); round++ {
				charges, pairs := drawPairs(r, keys)
				out := make([]ratelimit.Outcome, len(charges))
				if err := stores[w%2].Decide(t.Context(), charges, out); err != nil {
					t.Error(err)
					return
				}
				calls.Add(1)
				for i, p := range pairs {
					taken[p[0]].Add(out[i].Admitted)
					taken[p[1]].Add(out[i].Admitted)
				}
				if r.IntN(8) == 0 {
					if _, err := stores[w%2].Prune(t.Context(), 10); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d calls", calls.Load())
	for i := range keys {
		require.Equal(t, taken[i].Load(), one(t, stores[0], peek(keys[i])).Counters[0].Used)
	}
	require.Equal(t, before, deadlocks(t, url))
}

// drawPairs is a batch of one to four charges, each of two counters in any order.
func drawPairs(r *rand.Rand, keys []ratelimit.Counter) (charges []ratelimit.Charge, pairs [][2]int) {
	for range 1 + r.IntN(4) {
		a, b := r.IntN(len(keys)), r.IntN(len(keys))
		if a == b {
			b = (a + 1) % len(keys)
		}
		pairs = append(pairs, [2]int{a, b})
		charges = append(charges, take(1, 1, keys[a], keys[b]))
	}
	return charges, pairs
}

func deadlocks(t *testing.T, url string) (n int64) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`).Scan(&n))
	return n
}

// Guarantee: one hot counter on Postgres is worth 20,000 decisions a second, because hits are merged before they are
// written, each answered within the budget of a decision, and counted exactly.
func TestSoakOneHotCounter(t *testing.T) {
	lasts := min(testenv.Soak(t), time.Minute)
	h := newHot(t)
	end := time.Now().Add(lasts)
	var mu sync.Mutex
	var took []time.Duration
	begun := time.Now()
	var all sync.WaitGroup
	for range 256 {
		all.Go(func() {
			var own []time.Duration
			for time.Now().Before(end) {
				asked := time.Now()
				if !h.hit() {
					t.Error("a hit was refused, or failed")
					return
				}
				own = append(own, time.Since(asked))
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, own...)
		})
	}
	all.Wait()
	perSecond := float64(len(took)) / time.Since(begun).Seconds()
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	t.Logf("%.0f decisions/s, p50 %s, p99 %s", perSecond, took[len(took)/2], p99)
	require.EqualValues(t, len(took), one(t, h.store, peek(h.counter)).Counters[0].Used)
	require.GreaterOrEqual(t, perSecond, 20_000.0)
	require.LessOrEqual(t, p99, pgstore.DefaultTimeout)
}

// BenchmarkOneHotCounter is what 256 callers of one counter get, merged as in production.
func BenchmarkOneHotCounter(b *testing.B) {
	h := newHot(b)
	b.SetParallelism(128)
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			if !h.hit() {
				b.Error("a hit was refused, or failed")
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
}

// hot is one counter behind the batcher of production.
type hot struct {
	store   *pgstore.Store
	batcher *ratelimit.Batcher
	counter ratelimit.Counter
}

func newHot(tb testing.TB) *hot {
	tb.Helper()
	store := pgstore.New(newPool(tb, testenv.Postgres(tb), 16), pgstore.WithTimeout(patient))
	h := &hot{
		store: store, batcher: ratelimit.NewBatcher(store, ratelimit.BatcherConfig{Patience: patient, Now: time.Now}),
		counter: counter(window(ratelimit.SlidingWindowLog, 1_000_000_000, time.Hour)),
	}
	tb.Cleanup(h.batcher.Close)
	return h
}

func (h *hot) hit() bool {
	out := make([]ratelimit.Outcome, 1)
	err := h.batcher.Decide(context.Background(), []ratelimit.Charge{take(1, 1, h.counter)}, out)
	return err == nil && out[0].Err == nil && out[0].Admitted == 1
}
