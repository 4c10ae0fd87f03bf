package ratelimit

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// plainLog is the sliding log in the plainest form: every charge on its own, no totals, no merging.
type plainLog struct {
	window, quota int64
	scores, units []int64
}

func (p *plainLog) live(now int64) (from int) {
	n := len(p.scores)
	if n == 0 || p.scores[n-1] > now+p.window {
		return n
	}
	for from < n && p.scores[from] <= now-p.window {
		from++
	}
	return from
}

func (p *plainLog) used(now int64) (sum int64) {
	for _, u := range p.units[p.live(now):] {
		sum += u
	}
	return sum
}

func (p *plainLog) take(now, units int64) {
	n := len(p.scores)
	score := now
	if n > 0 && p.scores[n-1] <= now+p.window {
		score = max(now, p.scores[n-1]+1)
	}
	from := p.live(now)
	p.scores, p.units = append(p.scores[from:], score), append(p.units[from:], units)
}

func (p *plainLog) refund(now, units int64) {
	if n := len(p.scores); n == 0 || p.scores[n-1] > now+p.window {
		return
	}
	from := p.live(now)
	if from == len(p.units) {
		return
	}
	for ; from < len(p.units) && units > 0; from++ {
		off := min(units, p.units[from])
		p.units[from] -= off
		units -= off
		if p.units[from] > 0 {
			break
		}
	}
	p.scores, p.units = p.scores[from:], p.units[from:]
}

// wait is found by trying: nothing can change but at the moment an entry expires.
func (p *plainLog) wait(now, units int64) int64 {
	if p.used(now)+units <= p.quota {
		return 0
	}
	for _, score := range p.scores[p.live(now):] {
		if then := score + p.window; p.used(then)+units <= p.quota {
			return then - now
		}
	}
	return -1
}

// A refund of an expired log does nothing: after a step back of the clock its units count again.
func TestARefundOfAnExpiredLogLeavesItAlone(t *testing.T) {
	t.Parallel()
	l := &Limit{Algorithm: SlidingWindowLog, Quota: 5, Window: time.Second, Cost: 1}
	s := logState{}.take(l, 10_000_000, 2)
	s = s.refund(l, 11_001_000, 1)
	require.EqualValues(t, 0, usedOfLog(s.live(windowOf(l), 11_001_000)))
	require.EqualValues(t, 2, usedOfLog(s.live(windowOf(l), 10_999_000)))
	s = s.raise(l, 11_001_000, []Portion{{Units: 1}}) // nor does a raise trim
	require.EqualValues(t, 1, usedOfLog(s.live(windowOf(l), 11_001_000)))
	require.EqualValues(t, 3, usedOfLog(s.live(windowOf(l), 10_999_000)))
}

// The log's running totals, wrapped at 2^52, say the same as a plain list: forward, backward, after refunds.
func TestSlidingLogSaysWhatAPlainListSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := &Limit{Algorithm: SlidingWindowLog, Window: time.Second, Quota: rapid.Int64Range(1, 1024).Draw(t, "quota")}
		plain := &plainLog{window: l.Window.Microseconds(), quota: l.Quota}
		// Start where the total is about to wrap, with one entry that has long expired.
		state := logState{entries: []logEntry{{score: 1, cum: logCum - rapid.Int64Range(0, 2000).Draw(t, "cum"), weight: 1}}}
		now := int64(1_790_000_000_000_000)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now += rapid.SampledFrom([]int64{0, 0, 1, 1000, 200_000, 999_999, 1_000_000, 1_500_000, -1, -300_000, -1_000_001, -2_500_000}).Draw(t, "µs")
			units := rapid.Int64Range(1, l.Quota).Draw(t, "units")
			if rapid.IntRange(0, 4).Draw(t, "refund") == 0 {
				state = state.refund(l, now, units)
				plain.refund(now, units)
			} else if fits := plain.used(now)+units <= l.Quota; fits != (state.look(l, now, units).fit > 0) {
				t.Fatalf("at %d: %d units fit: %t", now, units, fits)
			} else if fits {
				state = state.take(l, now, units)
				plain.take(now, units)
			}
			var got CounterState
			state.report(l, now, units, &got)
			if want := plain.used(now); got.Used != want {
				t.Fatalf("at %d: used %d, want %d", now, got.Used, want)
			}
			if want := plain.wait(now, units); got.RetryAfter.Microseconds() != want {
				t.Fatalf("at %d: %d units wait %s, want %d µs", now, units, got.RetryAfter, want)
			}
		}
	})
}

// However many hits a large quota lets in, the log stays as short as its slots are many.
func TestSlidingLogIsBounded(t *testing.T) {
	l := &Limit{Algorithm: SlidingWindowLog, Window: time.Minute, Quota: MaxQuota}
	state, now := logState{}, int64(1_790_000_000_000_000)
	longest := 0
	for range 200_000 {
		state = state.take(l, now, 3)
		now += 601 // a little more than two windows in all
		longest = max(longest, len(state.entries))
	}
	require.LessOrEqual(t, longest, logSlots+2)
	require.LessOrEqual(t, cap(state.entries), 4*logSlots, "what was trimmed is not kept")
	var got CounterState
	state.report(l, now, 1, &got)
	require.InDelta(t, 3*60_000_000/601, got.Used, 3*60_000_000/601/400, "one window of hits is counted")
}

// The search for the moment a counter fades agrees with trying every microsecond.
func TestFadesToIsTheFirstMicrosecond(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.SampledFrom([]int64{1_000_000, 1_234_567, 60_000_000, MaxWindow.Microseconds()}).Draw(t, "window")
		prev := rapid.OneOf(rapid.Int64Range(0, 5000), rapid.Int64Range(0, MaxQuota)).Draw(t, "prev")
		rest := rapid.Int64Range(0, max(1, prev)).Draw(t, "rest")
		e := fadesTo(prev, window, rest)
		if e < 0 || e > window || weighted(prev, window, e) > rest {
			t.Fatalf("%d is too early", e)
		}
		if e > 0 && weighted(prev, window, e-1) <= rest {
			t.Fatalf("%d is too late", e)
		}
	})
}

// A bucket credits time once: whatever the clock does within a minute, it lets through no more than its capacity and what
// the furthest time it has seen refills.
func TestBucketCreditsTimeOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := &Limit{Algorithm: TokenBucket, Quota: rapid.Int64Range(1, 100).Draw(t, "quota"), Refill: Rate{
			Units: rapid.Int64Range(1, 20).Draw(t, "units"), Every: time.Second,
		}}
		start := int64(1_790_000_000_000_000)
		state, now, furthest := bucketState{}, start, start
		full := state.look(l, now, 1).fit
		admitted := full
		state = state.take(l, now, full)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = max(furthest-50_000_000, now+rapid.Int64Range(-20_000_000, 20_000_000).Draw(t, "µs"))
			furthest = max(furthest, now)
			fit := state.look(l, now, 1).fit
			state = state.take(l, now, fit)
			admitted += fit
			most := float64(l.Quota) + float64(furthest-start)*float64(l.Refill.Units)/1e6
			if float64(admitted) > most+1e-3 {
				t.Fatalf("%d admitted, at most %g", admitted, most)
			}
		}
	})
}

// A limit that validation would never have let through neither panics nor divides by zero.
func TestMalformedLimits(t *testing.T) {
	for _, a := range []Algorithm{SlidingWindowLog, SlidingWindowCounter, FixedWindow, TokenBucket, LeakyBucket} {
		for _, l := range []*Limit{
			{Algorithm: a},
			{Algorithm: a, Quota: -5, Window: -time.Second, Refill: Rate{Units: -1, Every: -1}},
			{Algorithm: a, Quota: math.MaxInt64, Window: 1, Refill: Rate{Units: math.MaxInt64, Every: 1}},
			{Algorithm: a, Quota: math.MaxInt64, Window: math.MaxInt64, Refill: Rate{Units: 1, Every: math.MaxInt64}},
		} {
			c := newCell(a)
			for _, units := range []int64{0, 1, MaxQuota + 1} {
				var got CounterState
				if c.look(l, 1, units).fit > 0 {
					c.take(l, 1, units)
				}
				c.refund(l, 1, units)
				c.report(l, 1, units, &got)
				require.GreaterOrEqual(t, got.Used, int64(0))
				require.GreaterOrEqual(t, got.Remaining, int64(0))
				require.GreaterOrEqual(t, got.RetryAfter, time.Duration(0))
				require.GreaterOrEqual(t, got.ResetAfter, time.Duration(0))
			}
		}
	}
}
