package usage_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/usage"
)

func (w *watched) set(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

// Guarantee: a clock that was a day ahead and is set right again does not stop the watching until it gets there once more:
// the last minute slides on, who was high is not high for a day, and history goes on under the right minutes.
func TestAClockThatIsSetBack(t *testing.T) {
	t.Parallel()
	for _, wrong := range []time.Duration{24 * time.Hour, 61*time.Second + time.Hour, 90 * time.Second} {
		w := watch(0)
		w.set(wrong)
		for range 5 {
			w.Record(event(90))
			w.second()
		}
		w.set(-wrong)
		right := w.clock()
		for range 120 {
			w.Record(event(90))
			w.second()
		}
		u := w.tenant(t, 17)
		require.EqualValues(t, 60, u.Last60s.Hits(), wrong)
		require.False(t, u.LastAt.After(w.clock()), "%s: last at %s", wrong, u.LastAt)
		require.WithinDuration(t, right, u.HighSince, 70*time.Second, "high since about when it was")
		overview := w.Overview(context.Background(), 10)
		require.EqualValues(t, 60, overview.Total.Hits())
		var shown float64
		for _, p := range overview.Series {
			shown += p.Allowed * usage.SeriesStep.Seconds()
		}
		require.InDelta(t, 115, shown, 15, "the hour's curve has them where they belong")

		minutes := map[time.Time]int64{}
		for _, row := range w.Take() {
			if row.Kind == usage.KindTenant && row.TenantID == 17 {
				minutes[row.Minute] += row.Admitted
			}
		}
		var inTime int64
		for at, n := range minutes {
			if !at.After(w.clock()) {
				inTime += n
			}
		}
		require.InDelta(t, 120, inTime, 5, "%s: %v", wrong, minutes)

		w.set(5 * time.Second)
		for range 70 { // calm again: it ends
			w.Record(event(10))
			w.second()
		}
		require.Zero(t, w.tenant(t, 17).HighSince)
	}
}
