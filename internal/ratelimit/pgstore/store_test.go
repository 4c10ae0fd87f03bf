package pgstore_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/pgstore"
	"github.com/pegel-dev/pegel/internal/testenv"
)

func TestFixedWindowIsOneRowAndExact(t *testing.T) {
	t.Parallel()
	c := newClock()
	s, pool := newStore(t, pgstore.WithClock(c.now))
	minute := counter(window(ratelimit.FixedWindow, 3, time.Minute))
	c.advance(20 * time.Second)

	for i := range int64(3) {
		out := one(t, s, take(1, 1, minute))
		require.Equal(t, int64(1), out.Admitted)
		require.Equal(t, ratelimit.SourcePostgres, out.Source)
		require.Equal(t, i+1, out.Counters[0].Used)
		require.Equal(t, 40*time.Second, out.Counters[0].ResetAfter)
		require.Equal(t, ratelimit.FixedWindow, out.Counters[0].Effective)
	}
	out := one(t, s, take(1, 1, minute))
	require.Zero(t, out.Admitted)
	require.Equal(t, 40*time.Second, out.Counters[0].RetryAfter)

	var rows, count int64
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*), sum(count) FROM rate_limit_windows`).Scan(&rows, &count))
	require.Equal(t, int64(1), rows)
	require.Equal(t, int64(3), count)

	c.advance(40*time.Second - time.Microsecond)
	require.Zero(t, one(t, s, take(1, 1, minute)).Admitted)
	c.advance(time.Microsecond)
	require.Equal(t, int64(1), one(t, s, take(1, 1, minute)).Admitted)
}

func TestSegmentsHoldEveryTrailingWindow(t *testing.T) {
	t.Parallel()
	c := newClock()
	s, _ := newStore(t, pgstore.WithClock(c.now))
	minute := counter(window(ratelimit.SlidingWindowLog, 80, time.Minute))

	c.advance(59 * time.Second) // just before the edge where a fixed window would burst
	out := one(t, s, take(100, 1, minute))
	require.Equal(t, int64(80), out.Admitted)
	require.Equal(t, ratelimit.SlidingWindowSegments, out.Counters[0].Effective)
	require.Equal(t, time.Minute+time.Second, out.Counters[0].RetryAfter, "the segment of 7.5 s ends in 1 s, and then its minute begins")

	c.advance(2 * time.Second)
	require.Zero(t, one(t, s, take(1, 1, minute)).Admitted, "no edge burst")
	c.advance(59*time.Second - time.Microsecond)
	require.Zero(t, one(t, s, take(1, 1, minute)).Admitted)
	c.advance(time.Microsecond)
	require.Equal(t, int64(80), one(t, s, take(100, 1, minute)).Admitted)
}

func TestAHitThatOneLimitRefusesIsChargedToNone(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	wide, narrow := counter(window(ratelimit.SlidingWindowLog, 100, time.Minute)), counter(window(ratelimit.FixedWindow, 7, time.Hour))
	watch := counter(window(ratelimit.SlidingWindowLog, 5, time.Minute))
	watch.Shadow = true

	out := one(t, s, take(10, 1, wide, narrow, watch))
	require.Equal(t, int64(7), out.Admitted)
	require.Equal(t, []int64{7, 7, 5}, used(out))
	require.Equal(t, []int64{7, 7, 5}, charged(out))

	out = one(t, s, take(1, 1, wide, narrow, watch))
	require.Zero(t, out.Admitted)
	require.Equal(t, []int64{7, 7, 5}, used(out))
	require.Zero(t, out.Counters[0].RetryAfter, "this limit has room")
	require.Positive(t, out.Counters[1].RetryAfter)
}

func TestPeekAndCostZeroWriteNothing(t *testing.T) {
	t.Parallel()
	s, pool := newStore(t)
	c := counter(window(ratelimit.SlidingWindowLog, 3, time.Minute))
	require.Equal(t, int64(1), one(t, s, peek(c)).Admitted)
	require.Equal(t, int64(5), one(t, s, take(5, 0, c)).Admitted)
	none := counter(window(ratelimit.SlidingWindowLog, 0, time.Minute))
	require.Zero(t, one(t, s, take(1, 0, none)).Admitted, "a quota of 0 always refuses")
	require.Equal(t, ratelimit.Never, one(t, s, take(1, 1, none)).Counters[0].RetryAfter)
	require.Zero(t, rowCount(t, pool))
}

func TestRefundTakesTheOldestFirst(t *testing.T) {
	t.Parallel()
	c := newClock()
	s, _ := newStore(t, pgstore.WithClock(c.now))
	k := counter(window(ratelimit.SlidingWindowLog, 10, 8*time.Second))
	one(t, s, take(6, 1, k))
	c.advance(3 * time.Second)
	one(t, s, take(4, 1, k))

	out := one(t, s, refund(7, k))
	require.Equal(t, int64(1), out.Admitted)
	require.Equal(t, int64(3), out.Counters[0].Used)
	require.Equal(t, 9*time.Second, out.Counters[0].ResetAfter, "what is left is the newest segment's")
	require.Zero(t, one(t, s, refund(1_000_000, k)).Counters[0].Used)
	require.Equal(t, int64(10), one(t, s, take(11, 1, k)).Admitted)
	require.Zero(t, one(t, s, refund(5, counter(k.Limit))).Counters[0].Used)
}

func TestBackwardClockFreesNothing(t *testing.T) {
	t.Parallel()
	c := newClock()
	s, pool := newStore(t, pgstore.WithClock(c.now))
	log, fixed := counter(window(ratelimit.SlidingWindowLog, 10, time.Minute)), counter(window(ratelimit.FixedWindow, 10, time.Minute))
	one(t, s, take(6, 1, log, fixed))
	c.advance(-50 * time.Second)
	out := one(t, s, take(10, 1, log, fixed))
	require.Equal(t, int64(4), out.Admitted)
	require.Equal(t, []int64{10, 10}, used(out))
	require.Equal(t, 110*time.Second, out.Counters[1].ResetAfter, "the window that was current stays it")
	require.Equal(t, int64(3), rowCount(t, pool))
	require.Equal(t, 117500*time.Millisecond, out.Counters[0].ResetAfter)
	require.Equal(t, 60*time.Second+5*time.Second, out.Counters[0].RetryAfter, "a hit lasts a window, whatever the clock did before it")
	require.Equal(t, []int64{5, 5}, used(one(t, s, refund(5, log, fixed))))

	c.advance(-time.Hour)
	require.Equal(t, int64(10), one(t, s, take(20, 1, log, fixed)).Admitted, "a clock that was wrong by more than a window")
}

func TestSubSecondBucketsAreCountedByTheSecond(t *testing.T) {
	t.Parallel()
	c := newClock()
	s, _ := newStore(t, pgstore.WithClock(c.now))
	k := counter(bucket(ratelimit.LeakyBucket, 5, 100, time.Second))
	out := one(t, s, take(1000, 1, k))
	require.Equal(t, int64(100), out.Admitted)
	require.Equal(t, int64(5), out.Counters[0].Used)
	require.Zero(t, out.Counters[0].Remaining)
	require.Equal(t, 10*time.Millisecond, out.Counters[0].DelayStep)
	require.Equal(t, ratelimit.Never, one(t, s, take(1, 6, k)).Counters[0].RetryAfter, "more than the queue ever holds")
}

func TestLeakyBucketDelay(t *testing.T) {
	t.Parallel()
	c := newClock()
	s, _ := newStore(t, pgstore.WithClock(c.now))
	k := counter(bucket(ratelimit.LeakyBucket, 60, 30, time.Second))
	require.Zero(t, one(t, s, take(15, 1, k)).Counters[0].Delay)
	out := one(t, s, take(1, 1, k))
	require.Equal(t, 500*time.Millisecond, out.Counters[0].Delay, "15 before it, 30 a second")
	require.Equal(t, 33334*time.Microsecond, out.Counters[0].DelayStep)
	require.Equal(t, 533334*time.Microsecond, one(t, s, peek(k)).Counters[0].Delay)
}

func TestLargeNumbers(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	l := window(ratelimit.FixedWindow, ratelimit.MaxQuota, ratelimit.MaxWindow)
	l.Cost = ratelimit.MaxCost
	k := counter(l)
	out := one(t, s, take(1<<62, ratelimit.MaxCost, k))
	require.Equal(t, int64(1), out.Admitted)
	require.Equal(t, ratelimit.MaxQuota, out.Counters[0].Used)
	out = one(t, s, ratelimit.Charge{Kind: ratelimit.Refund, Hits: 1 << 62, Cost: ratelimit.MaxCost, Counters: []ratelimit.Counter{k}})
	require.Zero(t, out.Counters[0].Used)
	require.Equal(t, int64(1<<62), out.Admitted)
	slow := counter(bucket(ratelimit.TokenBucket, 1000, 1, 24*time.Hour))
	require.Equal(t, int64(1000), one(t, s, take(1001, 1, slow)).Admitted)
}

func TestABadKeyHarmsItsOwnChargeOnly(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	l := window(ratelimit.SlidingWindowLog, 3, time.Minute)
	good := counter(l)
	keyed := func(key string) ratelimit.Charge {
		return take(1, 1, ratelimit.Counter{Key: ratelimit.Key(key), Limit: l})
	}
	long := make([]byte, 256)
	for i := range long {
		long[i] = byte('a' + i%26)
	}
	other := append([]byte(nil), long...)
	other[255] = '!'
	unknown := counter(window("abacus", 3, time.Minute))
	charges := []ratelimit.Charge{
		keyed(""), keyed("a\x00b"), keyed("\xff"), keyed(string(make([]byte, 1<<20))), take(1, 1, unknown), take(0, 1, good),
		take(1, 1, good), keyed(string(long)), keyed(string(other)), take(1, 1),
	}
	out := make([]ratelimit.Outcome, len(charges))
	require.NoError(t, s.Decide(t.Context(), charges, out))
	for i := range 6 {
		require.ErrorIs(t, out[i].Err, ratelimit.ErrCounter)
		require.Zero(t, out[i].Admitted)
	}
	for i := 6; i < len(charges); i++ {
		require.NoError(t, out[i].Err)
		require.Equal(t, int64(1), out[i].Admitted)
	}
	require.Equal(t, int64(1), out[8].Counters[0].Used, "two keys that differ in the last byte are two counters")
}

func TestABatchActsInTheOrderSent(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	l := window(ratelimit.SlidingWindowLog, 300, time.Hour)
	shared := counter(l)
	var charges []ratelimit.Charge
	for i := range 400 {
		charges = append(charges, take(1, 1, shared, counter(l)))
		if i%7 == 0 {
			charges = append(charges, peek(shared))
		}
	}
	out := make([]ratelimit.Outcome, len(charges))
	require.NoError(t, s.Decide(t.Context(), charges, out))
	taken := int64(0)
	for i := range charges {
		if charges[i].Kind == ratelimit.Take && taken < 300 {
			require.Equal(t, int64(1), out[i].Admitted)
			taken++
			require.Equal(t, int64(1), out[i].Counters[1].Used)
		} else if charges[i].Kind == ratelimit.Take {
			require.Zero(t, out[i].Admitted)
			require.Zero(t, out[i].Counters[1].Used, "refused by the shared limit, charged to neither")
		}
		require.Equal(t, taken, out[i].Counters[0].Used)
	}
}

func TestTwoStoresAdmitExactlyTheQuota(t *testing.T) {
	t.Parallel()
	for _, l := range []*ratelimit.Limit{
		window(ratelimit.SlidingWindowLog, 50, time.Hour),
		window(ratelimit.FixedWindow, 50, 366*24*time.Hour),
		bucket(ratelimit.TokenBucket, 50, 1, time.Hour),
	} {
		t.Run(string(l.Algorithm), func(t *testing.T) {
			t.Parallel()
			url := testenv.Postgres(t)
			var stores [2]*pgstore.Store
			for i := range stores {
				stores[i] = pgstore.New(newPool(t, url, 8), pgstore.WithTimeout(patient))
			}
			k := counter(l)
			var admitted atomic.Int64
			var all sync.WaitGroup
			for i := range 500 {
				all.Go(func() {
					out := make([]ratelimit.Outcome, 1)
					if err := stores[i%2].Decide(t.Context(), []ratelimit.Charge{take(1, 1, k)}, out); err != nil {
						t.Error(err)
					}
					admitted.Add(out[0].Admitted)
				})
			}
			all.Wait()
			require.Equal(t, int64(50), admitted.Load())
			require.Equal(t, int64(50), one(t, stores[0], peek(k)).Counters[0].Used)
		})
	}
}
