package redisstore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLives(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	start := now
	fresh := func() *lives { return newLives(func() time.Time { return now }) }
	read := func(l *lives) (uint64, time.Time) { return l.state.Load().count, l.state.Load().since }

	t.Run("servers", func(t *testing.T) {
		l := fresh()
		count, since := read(l)
		require.Zero(t, count)
		require.True(t, since.IsZero(), "nothing is known")
		l.met("", "a", time.Hour)
		count, since = read(l)
		require.EqualValues(t, 1, count)
		require.Equal(t, start.Add(-time.Hour), since, "its counters may be as old as itself")
		l.met("", "a", time.Hour)
		l.met("", "", 0)
		count, _ = read(l)
		require.EqualValues(t, 1, count, "the same one")

		now = start.Add(time.Minute)
		l.met("", "b", 24*time.Hour)
		count, since = read(l)
		require.EqualValues(t, 2, count)
		require.Equal(t, now, since, "however long it has been up: it is not the one that counted")
	})
	t.Run("nodes of a cluster", func(t *testing.T) {
		now = start
		l := fresh()
		l.met("one", "a", time.Hour)
		l.met("two", "b", time.Minute)
		l.met("three", "c", 2*time.Hour)
		count, since := read(l)
		require.EqualValues(t, 3, count)
		require.Equal(t, start.Add(-time.Minute), since, "the youngest")
		l.met("two", "b", time.Minute)
		l.met("one", "a", time.Minute)
		count, _ = read(l)
		require.EqualValues(t, 3, count)
	})
	t.Run("pings", func(t *testing.T) {
		now = start
		l := fresh()
		ping := func(used int64, whole time.Duration) uint64 {
			l.pinged(used, whole)
			count, _ := read(l)
			return count
		}
		require.Zero(t, ping(7, 50*time.Second))
		require.Zero(t, ping(9, 49*time.Second), "other replicas ping, too")
		now = start.Add(time.Second)
		require.EqualValues(t, 1, ping(1, 48*time.Second), "it cannot fall within its window")
		require.EqualValues(t, 1, ping(2, 47*time.Second))
		now = start.Add(55 * time.Second)
		require.EqualValues(t, 1, ping(1, time.Minute), "the next window")
	})
}
