package pgstore_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/pgstore"
)

// Real time, random bursts around a window's edges: never more than the quota in any trailing window.
func TestWorstTrailingWindow(t *testing.T) {
	t.Parallel()
	const quota, w = 40, time.Second
	s, _ := newStore(t)
	k := counter(window(ratelimit.SlidingWindowLog, quota, w))
	var mu sync.Mutex
	var admitted []time.Time // when each was certainly counted at the latest, and asked for at the earliest
	var all sync.WaitGroup
	end := time.Now().Add(3500 * time.Millisecond)
	for range 6 {
		all.Go(func() {
			out := make([]ratelimit.Outcome, 1)
			for time.Now().Before(end) {
				asked := time.Now()
				if err := s.Decide(t.Context(), []ratelimit.Charge{take(1+rand.Int64N(3), 1, k)}, out); err != nil {
					t.Error(err)
					return
				}
				// Hits counted within w are at most w apart in the server's time. Only what was asked for and answered
				// within w is certain to have been.
				answered := time.Now()
				mu.Lock()
				for range out[0].Admitted {
					admitted = append(admitted, asked, answered)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	require.Greater(t, len(admitted)/2, 2*quota, "several windows were filled")
	for i := 0; i < len(admitted); i += 2 {
		n := 0
		for j := 0; j < len(admitted); j += 2 {
			if !admitted[j].Before(admitted[i]) && admitted[j+1].Sub(admitted[i]) < w {
				n++
			}
		}
		require.LessOrEqual(t, n, quota)
	}
}

func TestPruneTakesOnlyWhatIsOverInBatches(t *testing.T) {
	t.Parallel()
	c := newClock()
	s, pool := newStore(t, pgstore.WithClock(c.now))
	short, long := window(ratelimit.SlidingWindowLog, 10, time.Minute), window(ratelimit.FixedWindow, 10, 24*time.Hour)
	var charges []ratelimit.Charge
	for range 25 {
		charges = append(charges, take(1, 1, counter(short)))
	}
	kept := counter(long)
	charges = append(charges, take(1, 1, kept))
	require.NoError(t, s.Decide(t.Context(), charges, make([]ratelimit.Outcome, len(charges))))

	prune := func() int64 {
		n, err := s.Prune(t.Context(), 10)
		require.NoError(t, err)
		return n
	}
	c.advance(2 * time.Minute)
	require.Zero(t, prune(), "a minute of grace, and the last segment")
	c.advance(8 * time.Second)
	require.Equal(t, []int64{10, 10, 5, 0}, []int64{prune(), prune(), prune(), prune()})
	require.Equal(t, int64(1), rowCount(t, pool))
	require.Equal(t, int64(1), one(t, s, peek(kept)).Counters[0].Used)
}

func TestUpdatesAreHeapOnly(t *testing.T) {
	t.Parallel()
	s, pool := newStore(t)
	k := counter(window(ratelimit.FixedWindow, 1_000_000, 24*time.Hour))
	for range 200 {
		one(t, s, take(1, 1, k))
	}
	var updates, hot int64
	require.Eventually(t, func() bool {
		_, err := pool.Exec(t.Context(), `SELECT pg_stat_clear_snapshot()`)
		require.NoError(t, err)
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
			WHERE relname = 'rate_limit_windows'`).Scan(&updates, &hot))
		return updates > 150
	}, patient, 50*time.Millisecond)
	require.Greater(t, hot, updates*9/10, "no index entry for an update in place")
}

func TestWritesDoNotWaitForTheDisk(t *testing.T) {
	t.Parallel()
	_, pool := newStore(t)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(t.Context())) }()
	_, err = tx.Exec(t.Context(), `SET LOCAL synchronous_commit = on`)
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT FROM rate_limit_decide(NULL, '100', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')`)
	require.NoError(t, err)
	var commit, patience string
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT current_setting('synchronous_commit'), current_setting('lock_timeout')`).Scan(&commit, &patience))
	require.Equal(t, "off", commit)
	require.Equal(t, "100ms", patience)
}
