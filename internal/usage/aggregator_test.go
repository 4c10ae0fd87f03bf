package usage_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/usage"
)

// noon is, on a full minute.
func noon() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

// watched is an aggregator, its picture, and a clock in the test's hands.
type watched struct {
	*usage.Aggregator
	*usage.Reporter

	mu  sync.Mutex
	now time.Time
}

func watch(maxTenants int) *watched {
	w := &watched{Aggregator: usage.NewAggregator(maxTenants), now: noon()}
	w.Reporter = usage.NewReporter(usage.ReporterConfig{
		Aggregator: w.Aggregator, Replica: func() usage.Replica { return usage.Replica{Name: "here", Instance: "1"} },
		Now: w.clock, Log: slog.New(slog.DiscardHandler),
	})
	return w
}

func (w *watched) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// second ends the running second.
func (w *watched) second() {
	w.mu.Lock()
	w.now = w.now.Add(time.Second)
	now := w.now
	w.mu.Unlock()
	w.Collect(now)
}

func (w *watched) seconds(n int) {
	for range n {
		w.second()
	}
}

func (w *watched) tenant(t *testing.T, id int64) usage.TenantUsage {
	t.Helper()
	u, _ := w.Tenant(context.Background(), id)
	return u
}

// event is an admitted hit of school-17.
func event(used int64) usage.Event {
	return usage.Event{TenantID: 17, Tenant: "school-17", Plan: "light", Cost: 1, Limits: []usage.LimitUse{{Name: "m", Used: used, Quota: 100}}}
}

func as(e usage.Event, v usage.Verdict) usage.Event {
	e.Verdict = v
	for i := range e.Limits {
		e.Limits[i].Refused = v == usage.Refused
	}
	return e
}

func TestCountsRollOverSixtySeconds(t *testing.T) {
	t.Parallel()
	w := watch(0)
	for second := range 120 {
		e := event(int64(min(second, 100)))
		e.Exempt = second%2 == 0
		w.Record(e)
		w.Record(as(event(50), usage.Slowed))
		w.Record(as(event(100), usage.Refused))
		w.second()
	}
	u := w.tenant(t, 17)
	require.Equal(t, usage.Counts{Admitted: 60, Slowed: 60, Refused: 60, Exempt: 30, Units: 120}, u.Last60s)
	require.EqualValues(t, 100, u.Used)
	require.InDelta(t, 1, u.Utilization, 0)
	require.Equal(t, "m", u.LimitName)
	overview := w.Overview(context.Background(), 10)
	require.Equal(t, u.Last60s, overview.Total)
	require.Equal(t, 1, overview.Active)

	w.seconds(30)
	u = w.tenant(t, 17)
	require.EqualValues(t, 90, u.Last60s.Hits())
	w.seconds(30)
	overview = w.Overview(context.Background(), 10)
	require.Empty(t, overview.Tenants)
	require.Zero(t, overview.Total)
	require.Len(t, overview.Series, 360)
	at := map[time.Time]usage.Point{}
	for _, p := range overview.Series {
		at[p.At] = p
	}
	require.Equal(t, usage.Point{At: noon().Add(time.Minute), Allowed: 1, Slowed: 1, Refused: 1}, at[noon().Add(time.Minute)])
	require.Zero(t, at[noon().Add(150*time.Second)].Allowed)
}

func TestHighSince(t *testing.T) {
	t.Parallel()
	w := watch(0)
	w.Record(event(79))
	w.second()
	require.Zero(t, w.tenant(t, 17).HighSince)
	w.Record(event(80))
	w.Record(event(10)) // of another user, say: the highest counts
	w.second()
	since := w.clock()
	for range 120 {
		w.seconds(4)
		w.Record(event(95))
		w.second()
	}
	require.Equal(t, since, w.tenant(t, 17).HighSince)
	require.Len(t, w.Overview(context.Background(), 1).High, 1)

	w.Record(event(30))
	w.second()
	require.Equal(t, since, w.tenant(t, 17).HighSince, "one low second does not end it")
	require.InDelta(t, 0.95, w.tenant(t, 17).Limits[0].Peak, 1e-9)
	w.seconds(4)
	w.Record(event(30))
	w.second()
	require.Zero(t, w.tenant(t, 17).HighSince, "five seconds do")
	w.Record(event(99))
	w.second()
	require.Equal(t, w.clock(), w.tenant(t, 17).HighSince)
	w.seconds(59)
	require.NotZero(t, w.tenant(t, 17).HighSince)
	w.second()
	require.Zero(t, w.tenant(t, 17).HighSince, "a minute of silence does too")
}

// Guarantee: each limit has its own numbers; a limit in shadow mode never makes the tenant look high.
func TestLimitsAreToldApart(t *testing.T) {
	t.Parallel()
	w := watch(0)
	e := event(50)
	e.Limits = append(e.Limits, usage.LimitUse{Name: "day", Used: 95, Quota: 100, Watches: true}, usage.LimitUse{Name: "none", Quota: 0, Refused: true})
	e.Verdict = usage.Refused
	w.Record(e)
	w.second()
	u := w.tenant(t, 17)
	require.Equal(t, []string{"day", "m", "none"}, []string{u.Limits[0].Name, u.Limits[1].Name, u.Limits[2].Name})
	require.True(t, u.Limits[0].Watches)
	require.Equal(t, "none", u.LimitName, "a quota of nothing is full")
	rows := map[string]usage.Counts{}
	for _, row := range w.Take() {
		if row.Kind == usage.KindLimit {
			rows[row.Name] = row.Counts
		}
	}
	require.Equal(t, usage.Counts{Refused: 1, Peak: 1}, rows["none"], "the limit without room refused")
	require.Equal(t, usage.Counts{Peak: 0.5}, rows["m"])
}

func TestTopIsOrderedAndBounded(t *testing.T) {
	t.Parallel()
	w := watch(0)
	for id := range 30 {
		e := event(int64(id%10) * 10)
		e.TenantID, e.Tenant = int64(id+1), fmt.Sprintf("t%02d", id)
		for range 1 + id/10 {
			w.Record(e)
		}
	}
	w.second()
	names := make([]string, 0, 4)
	for _, u := range w.Overview(context.Background(), 4).Tenants {
		names = append(names, u.Tenant)
	}
	require.Equal(t, []string{"t29", "t19", "t09", "t28"}, names, "by utilisation, then hits")
	require.Empty(t, w.Overview(context.Background(), 0).Tenants)
	require.Empty(t, w.Overview(context.Background(), -1).Tenants)
}

func TestRefusedAddressesAndServices(t *testing.T) {
	t.Parallel()
	w := watch(0)
	refuse := func(address, service string, times int) {
		for range times {
			w.Record(usage.Event{Verdict: usage.Refused, Address: address, Service: service, WrongCredential: service == ""})
		}
	}
	refuse("203.0.113.1/32", "", 5)
	refuse("203.0.113.2/32", "edge", 7)
	w.seconds(60)
	refuse("203.0.113.1/32", "", 4)
	w.second()
	o := w.Overview(context.Background(), 10)
	require.Equal(t, []usage.Refusals{{Name: "203.0.113.1/32", Count: 9}, {Name: "203.0.113.2/32", Count: 7}}, o.Addresses)
	require.Equal(t, []usage.Refusals{{Name: "edge", Count: 7}}, o.Services)
	require.EqualValues(t, 4, o.WrongCredentials, "of the last 60 s")
	require.EqualValues(t, 4, o.Anonymous.Refused)
	w.seconds(60)
	require.Equal(t, []usage.Refusals{{Name: "203.0.113.1/32", Count: 4}}, w.Overview(context.Background(), 10).Addresses)
	w.seconds(120)
	require.Empty(t, w.Overview(context.Background(), 10).Addresses)
}

// B068: a flood of addresses, users or keys grows nothing, and does not hide who is counted most.
func TestFloodOfNamesIsBounded(t *testing.T) {
	t.Parallel()
	w := watch(0)
	for i := range 100_000 {
		name := "10.0.0." + strconv.Itoa(i)
		if i%10 == 0 {
			name = "loud"
		}
		w.Record(usage.Event{TenantID: 1, Verdict: usage.Refused, Address: name, User: name, Key: name})
	}
	w.second()
	o := w.Overview(context.Background(), 1_000_000)
	require.LessOrEqual(t, len(o.Addresses), 100)
	loud := o.Addresses[0]
	require.Equal(t, "loud", loud.Name)
	require.LessOrEqual(t, loud.Count-loud.Error, int64(10_000))
	require.GreaterOrEqual(t, loud.Count, int64(10_000))
	rows := w.Take()
	require.LessOrEqual(t, len(rows), 2*20+3)
	require.Contains(t, rows, usage.Row{Minute: noon(), TenantID: 1, Kind: usage.KindUser, Name: "loud", Counts: usage.Counts{Refused: 10_000}})
}

func TestTenantsAreBounded(t *testing.T) {
	t.Parallel()
	w := watch(100)
	record := func(id int) {
		e := event(1)
		e.TenantID = int64(id)
		w.Record(e)
	}
	for id := 1; id <= 200; id++ {
		record(id)
	}
	w.second()
	o := w.Overview(context.Background(), 1000)
	require.Len(t, o.Tenants, 100)
	require.EqualValues(t, 100, o.Dropped)
	require.EqualValues(t, 200, o.Total.Hits(), "all of them count in all")
	w.seconds(12 * 60)
	record(300)
	w.second()
	require.Len(t, w.Overview(context.Background(), 1000).Tenants, 1, "idle ones make room")
}

func TestHeldRefusalMovesOverFromSlowed(t *testing.T) {
	t.Parallel()
	w := watch(0)
	w.Record(as(event(90), usage.Slowed))
	held := event(90)
	held.Verdict, held.Held = usage.Refused, true
	w.Record(held)
	w.second()
	require.Equal(t, usage.Counts{Refused: 1}, w.tenant(t, 17).Last60s)
}

// Guarantee: history knows each minute's total once, however often it is taken and comes back.
func TestMinutesAreTotals(t *testing.T) {
	t.Parallel()
	w := watch(0)
	total := func(rows []usage.Row, minute time.Time) (c usage.Counts) {
		for _, row := range rows {
			if row.Kind == usage.KindTenant && row.TenantID == 17 && row.Minute.Equal(minute) {
				c.Add(&row.Counts)
			}
		}
		return c
	}
	w.Record(event(10))
	w.second()
	first := w.Take()
	require.EqualValues(t, 1, total(first, noon()).Admitted)
	require.Empty(t, w.Take(), "nothing new")
	w.Record(event(20))
	w.seconds(30)
	second := w.Take()
	require.Equal(t, usage.Counts{Admitted: 2, Units: 2, Peak: 0.2}, total(second, noon()), "the minute so far")
	w.Return(first)
	w.Record(event(5))
	w.seconds(30)
	w.Return(second)
	w.seconds(60)
	require.EqualValues(t, 3, total(w.Take(), noon()).Admitted, "what comes back replaces nothing that is newer")
	require.Zero(t, w.Lost())
}

func TestParallelRecordingLosesNothing(t *testing.T) {
	t.Parallel()
	w := watch(0)
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			for i := range 1000 {
				e := event(int64(i % 100))
				e.TenantID, e.User, e.Key = int64(i%7+1), strconv.Itoa(i%5), "k"
				e.Limits[0].Name = strconv.Itoa(i % 3)
				if g == 0 {
					e.TenantID = 0
				}
				w.Record(e)
			}
		})
	}
	group.Go(func() {
		for range 30 {
			w.second()
			w.Overview(context.Background(), 10)
		}
	})
	group.Wait()
	w.second()
	o := w.Overview(context.Background(), 10)
	require.EqualValues(t, 8000, o.Total.Hits())
	var users, limits int64
	for _, row := range w.Take() {
		switch row.Kind {
		case usage.KindUser:
			users += row.Hits()
		case usage.KindLimit:
			limits += row.Hits()
		case usage.KindTenant, usage.KindKey, usage.KindTotal:
		}
	}
	require.EqualValues(t, 7000, users)
	require.EqualValues(t, 7000, limits)
}

func BenchmarkRecord(b *testing.B) {
	a := usage.NewAggregator(0)
	e := event(50)
	e.User, e.Key = "u42", "k1"
	b.ReportAllocs()
	for b.Loop() {
		e.TenantID = (e.TenantID*31 + 7) % 1000
		a.Record(e)
	}
}
