package postgres_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/usage"
)

// monday is some days before the tests run, so that Postgres' clock is past all of it.
func monday() time.Time { return time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC) }

// historyBench is a history whose marks stand at monday.
type historyBench struct {
	*bench
	*postgres.UsageHistory
}

func newHistory(t *testing.T) *historyBench {
	t.Helper()
	h := &historyBench{bench: newBench(t)}
	h.UsageHistory = postgres.NewUsageHistory(h.Repository)
	h.exec(t, `UPDATE usage_marks SET rolled_to = $1 WHERE step <> 'day'`, monday())
	return h
}

// upkeep works until nothing is left.
func (h *historyBench) upkeep(t *testing.T, now time.Time, keep usage.Retention) {
	t.Helper()
	for more, rounds := true, 0; more; rounds++ {
		var err error
		more, err = h.Upkeep(t.Context(), now, keep)
		require.NoError(t, err)
		require.Less(t, rounds, 1000, "upkeep must end")
	}
}

func (h *historyBench) usage(t *testing.T, from, to time.Time, step time.Duration, by usage.Kind) []usage.HistoryName {
	t.Helper()
	series, err := h.Usage(t.Context(), usage.HistoryQuery{TenantID: 7, From: from, To: to, Step: step, By: by})
	require.NoError(t, err)
	return series.Names
}

func (h *historyBench) write(t *testing.T, instance string, rows ...usage.Row) {
	t.Helper()
	require.NoError(t, h.Write(t.Context(), instance, rows))
}

func row(at time.Duration, kind usage.Kind, name string, admitted int64) usage.Row {
	return usage.Row{Minute: monday().Add(at), TenantID: 7, Kind: kind, Name: name, Counts: usage.Counts{Admitted: admitted, Units: admitted, Peak: 0.5}}
}

var forever = usage.Retention{Minutes: 1 << 60, Hours: 1 << 60, Days: 1 << 60}

// Guarantee: a write that is repeated, or comes in another order, counts once; two runs of a replica add up.
func TestUsageIsWrittenOnce(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	one, two := uuid.NewString(), uuid.NewString()
	h.write(t, one, row(0, usage.KindTenant, "", 10), row(0, usage.KindUser, "a\x00b", 1))
	h.write(t, one, row(0, usage.KindTenant, "", 25))
	h.write(t, one, row(0, usage.KindTenant, "", 10), row(0, usage.KindTenant, "", 25))
	h.write(t, two, row(0, usage.KindTenant, "", 3))
	names := h.usage(t, monday(), monday().Add(time.Hour), usage.StepMinute, usage.KindTenant)
	require.Len(t, names, 1)
	require.Equal(t, usage.Counts{Admitted: 28, Units: 28, Peak: 0.5}, names[0].Total)
	require.Equal(t, []usage.HistoryPoint{{At: monday(), Counts: names[0].Total}}, names[0].Points)
}

// Guarantee: at every moment, whatever is rolled up and whatever came late, every step of history sums up to what was written.
func TestUsageSurvivesRollups(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	r := rand.New(rand.NewPCG(8, 15))
	for trial := range 8 {
		h.exec(t, `TRUNCATE usage_minutes, usage_hours, usage_days, usage_late`)
		h.exec(t, `UPDATE usage_marks SET rolled_to = $1, pruned_to = '-infinity' WHERE step <> 'day'`, monday())
		want := map[string]int64{}
		for range 1 + r.IntN(6) {
			var rows []usage.Row
			seen := map[time.Duration]bool{}
			for range 1 + r.IntN(12) {
				at := time.Duration(r.IntN(4*24*60)) * time.Minute
				if seen[at] {
					continue
				}
				seen[at] = true
				name := []string{"a", "b"}[r.IntN(2)]
				rows = append(rows, row(at, usage.KindLimit, name, 5))
			}
			instance := uuid.NewString() // another run, so that every row adds
			h.write(t, instance, rows...)
			for _, added := range rows {
				want[added.Name] += 5
			}
			h.upkeep(t, monday().Add(time.Duration(r.IntN(5*24+1))*time.Hour), forever)
			for _, step := range []time.Duration{usage.StepMinute, usage.StepFiveMinutes, usage.StepHour, usage.StepDay} {
				got := map[string]int64{}
				for _, name := range h.usage(t, monday(), monday().Add(4*24*time.Hour), step, usage.KindLimit) {
					for _, p := range name.Points {
						got[name.Name] += p.Admitted
						require.Zero(t, p.At.Sub(monday())%step)
					}
				}
				require.Equal(t, want, got, "trial %d, in steps of %s", trial, step)
			}
		}
	}
}

// Guarantee: what is older than it is kept is removed, in batches, and not before it is rolled up; hours and days stay right.
func TestUsageIsKeptAsLongAsSaid(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	var rows []usage.Row
	for minute := range 3 * 24 * 60 {
		rows = append(rows, row(time.Duration(minute)*time.Minute, usage.KindTenant, "", 1))
	}
	h.write(t, uuid.NewString(), rows...)
	now := monday().Add(3*24*time.Hour + time.Hour)
	keep := usage.Retention{Minutes: 24 * time.Hour, Hours: 48 * time.Hour, Days: 1 << 60}
	h.upkeep(t, now, keep)
	oldest := func(table string) (at time.Time) {
		require.NoError(t, h.pool.QueryRow(t.Context(), `SELECT min(at) FROM `+table).Scan(&at))
		return at.UTC()
	}
	require.Equal(t, now.Add(-24*time.Hour), oldest("usage_minutes"))
	require.Equal(t, now.Add(-48*time.Hour), oldest("usage_hours"))
	require.Equal(t, monday(), oldest("usage_days"))
	days := h.usage(t, monday(), monday().Add(3*24*time.Hour), usage.StepDay, usage.KindTenant)[0]
	require.Len(t, days.Points, 3)
	for _, day := range days.Points {
		require.EqualValues(t, 24*60, day.Admitted)
	}

	h.write(t, uuid.NewString(), row(90*time.Minute, usage.KindTenant, "", 1))
	h.upkeep(t, now, keep)
	days = h.usage(t, monday(), monday().Add(24*time.Hour), usage.StepDay, usage.KindTenant)[0]
	require.EqualValues(t, 24*60, days.Total.Admitted, "an hour whose minutes are gone is not made anew from one that comes late")
	require.Zero(t, h.number(t, `SELECT count(*) FROM usage_late`))
}

// Guarantee: reports are seen by others while they are fresh, and leave nothing behind.
func TestUsageReportsAreExchanged(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	exchange := postgres.NewExchange(b.Repository)
	one, two := uuid.NewString(), uuid.NewString()
	require.NoError(t, exchange.Publish(t.Context(), one, []byte("old")))
	require.NoError(t, exchange.Publish(t.Context(), one, []byte{0, 1}))
	require.NoError(t, exchange.Publish(t.Context(), two, []byte{}))
	reports, err := exchange.Reports(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string][]byte{one: {0, 1}, two: {}}, reports)
	require.NoError(t, exchange.Withdraw(t.Context(), two))
	b.exec(t, `UPDATE usage_reports SET reported_at = reported_at - interval '2 minutes'`)
	reports, err = exchange.Reports(t.Context())
	require.NoError(t, err)
	require.Empty(t, reports)
	_, err = postgres.NewUsageHistory(b.Repository).Upkeep(t.Context(), time.Now(), forever)
	require.NoError(t, err)
	require.Zero(t, b.number(t, `SELECT count(*) FROM usage_reports`))
}
