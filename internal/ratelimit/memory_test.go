package ratelimit_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/storetest"
)

func TestMemoryKeepsTheContract(t *testing.T) {
	storetest.Run(t, storetest.Factory{
		New:    func(_ testing.TB, clock *storetest.Clock) ratelimit.Store { return ratelimit.NewMemory(clock.Now, 0) },
		Fresh:  true,
		Checks: 500,
	})
}

func chargeOf(group string, limits ...*ratelimit.Limit) []ratelimit.Charge {
	charges := hit(limits...)
	for i, l := range limits {
		charges[0].Counters[i].Key = ratelimit.CounterKey(ratelimit.Subject{Group: group}, l)
	}
	return charges
}

// B068: a million subjects that come once do not stay.
func TestMemoryForgetsWhatHasExpired(t *testing.T) {
	now := int64(0)
	m := ratelimit.NewMemory(func() int64 { return now }, 0)
	l := perMinute("a", 5, ratelimit.FailLocal)
	most := 0
	for i := range 100_000 {
		now += 3000 // 333 new subjects a second: 20,000 are alive at a time
		_, err := decide(t, m, chargeOf(fmt.Sprint(i), l))
		require.NoError(t, err)
		if i%1000 == 0 {
			most = max(most, m.Len())
		}
	}
	require.Less(t, most, 65_000)
	now += 10 * time.Minute.Microseconds()
	m.Sweep()
	require.Zero(t, m.Len(), "and silence empties it")
}

// A charge whose own expired counter is charged while others make room for a new one keeps what it charged.
func TestMemoryKeepsWhatItIsCharging(t *testing.T) {
	now := int64(0)
	m := ratelimit.NewMemory(func() int64 { return now }, 0)
	a, b, c := perMinute("a", 5, ratelimit.FailLocal), perMinute("b", 5, ratelimit.FailLocal), perMinute("c", 5, ratelimit.FailLocal)
	for i := range 10_000 {
		group := fmt.Sprint(i)
		_, err := decide(t, m, chargeOf(group, a))
		require.NoError(t, err)
		now += 2 * time.Minute.Microseconds() // a has expired, b and c are new
		_, err = decide(t, m, chargeOf(group, a, b, c))
		require.NoError(t, err)
		out, err := decide(t, m, chargeOf(group, a, b, c))
		require.NoError(t, err)
		require.EqualValues(t, 2, out.Counters[0].Used, i)
		require.EqualValues(t, 2, out.Counters[1].Used, i)
	}
}

func TestMemoryThatIsFull(t *testing.T) {
	now := int64(0)
	m := ratelimit.NewMemory(func() int64 { return now }, 64*100)
	l, day := perMinute("a", 5, ratelimit.FailLocal), perMinute("b", 50, ratelimit.FailLocal)
	full := 0
	for i := range 10_000 {
		out, err := decide(t, m, chargeOf(fmt.Sprint(i), l))
		require.NoError(t, err)
		if out.Err != nil {
			require.ErrorIs(t, out.Err, ratelimit.ErrFull)
			require.ErrorIs(t, out.Err, ratelimit.ErrCounter)
			require.Zero(t, out.Admitted)
			full++
		}
	}
	require.Equal(t, 10_000-m.Len(), full)
	require.LessOrEqual(t, m.Len(), 64*100)

	// Who has a counter is still counted exactly; nobody is charged in part.
	out, err := decide(t, m, chargeOf("0", l))
	require.NoError(t, err)
	require.NoError(t, out.Err)
	require.EqualValues(t, 2, out.Counters[0].Used)
	refused := ""
	for i := 0; refused == ""; i++ {
		if out, _ = decide(t, m, chargeOf(fmt.Sprint(i), l, day)); out.Err != nil {
			refused = fmt.Sprint(i)
		}
	}
	peek := chargeOf(refused, l)
	peek[0].Kind = ratelimit.Peek
	out, err = decide(t, m, peek)
	require.NoError(t, err)
	require.NoError(t, out.Err, "looking needs no room")
	require.LessOrEqual(t, out.Counters[0].Used, int64(2), "a charge without room for all its counters charges none")

	now += 2 * time.Minute.Microseconds()
	out, err = decide(t, m, chargeOf("somebody new", l))
	require.NoError(t, err)
	require.NoError(t, out.Err, "expired counters make room")
}

func TestMemoryRefusesWhatItCannotCount(t *testing.T) {
	m := ratelimit.NewMemory(func() int64 { return 1 }, 0)
	l := perMinute("a", 5, ratelimit.FailLocal)
	good := chargeOf("1", l)

	two := chargeOf("1", l, l)
	two[0].Counters[1].Key = ratelimit.CounterKey(ratelimit.Subject{Group: "2"}, l)
	unknown := *l
	unknown.Algorithm = "gcra"
	other := *l
	other.Algorithm = ratelimit.FixedWindow
	changed := chargeOf("1", l)
	changed[0].Counters[0].Limit = &other
	_, err := decide(t, m, good)
	require.NoError(t, err)
	for name, bad := range map[string][]ratelimit.Charge{
		"two groups": two, "an unknown algorithm": chargeOf("1", &unknown), "another algorithm on the key": changed,
	} {
		batch := []ratelimit.Charge{bad[0], good[0]}
		out := make([]ratelimit.Outcome, 2)
		require.NoError(t, m.Decide(context.Background(), batch, out), name)
		require.ErrorIs(t, out[0].Err, ratelimit.ErrCounter, name)
		require.NoError(t, out[1].Err, "a bad charge harms only itself")
	}
}

// Many goroutines, many subjects, sweeps in between: every subject gets exactly its quota.
func TestMemoryUnderLoad(t *testing.T) {
	clock := ratelimit.MonotonicMicros(time.Now)
	m := ratelimit.NewMemory(clock, 0)
	l := perMinute("a", 20, ratelimit.FailLocal)
	var admitted [100]atomic.Int64
	var wg sync.WaitGroup
	for worker := range 16 {
		wg.Go(func() {
			out := make([]ratelimit.Outcome, 1)
			for i := range 1000 {
				subject := (i*7 + worker) % len(admitted)
				if err := m.Decide(context.Background(), chargeOf(fmt.Sprint(subject), l), out); err != nil {
					t.Error(err)
				}
				admitted[subject].Add(out[0].Admitted)
				if i%100 == 0 {
					m.Sweep()
				}
			}
		})
	}
	wg.Wait()
	for i := range admitted {
		require.EqualValues(t, 20, admitted[i].Load(), i)
	}
}

func TestMonotonicMicros(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	clock := ratelimit.MonotonicMicros(func() time.Time { return at })
	require.Zero(t, clock())
	at = at.Add(1500 * time.Microsecond)
	require.EqualValues(t, 1500, clock())
	at = at.Add(-time.Hour)
	require.Zero(t, clock(), "never negative")
}
