package usage_test

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/usage"
)

// noon is, on a full minute.
func noon() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

// event is an admitted hit of school-17.
func event(at time.Time, used int64) usage.Event {
	return usage.Event{TenantID: 17, Tenant: "school-17", Plan: "light", LimitName: "m", Used: used, Quota: 100, Cost: 1, At: at}
}

func as(e usage.Event, v usage.Verdict) usage.Event { e.Verdict = v; return e }

func TestCountsRollOverSixtySeconds(t *testing.T) {
	t.Parallel()
	a := usage.NewAggregator(0)
	for second := range 120 {
		at := noon().Add(time.Duration(second) * time.Second)
		e := event(at, int64(second))
		e.Exempt = second%2 == 0
		a.Record(e)
		a.Record(as(event(at, 50), usage.Slowed))
		a.Record(as(event(at, 100), usage.Refused))
	}
	now := noon().Add(119 * time.Second)
	u, ok := a.Tenant(17, now)
	require.True(t, ok)
	require.Equal(t, usage.Counts{Admitted: 60, Slowed: 60, Refused: 60, Exempt: 30, Units: 120, Peak: 1}, u.Last60s)
	require.EqualValues(t, 100, u.Used)
	require.InDelta(t, 1, u.Utilization, 0)

	u, _ = a.Tenant(17, now.Add(30*time.Second))
	require.InDelta(t, 90, u.Last60s.Hits(), 15, "by slots of five seconds")
	require.Empty(t, a.Top(10, now.Add(2*time.Minute)).Tenants)
	_, ok = a.Tenant(18, now)
	require.False(t, ok)
}

func TestHighSince(t *testing.T) {
	t.Parallel()
	a := usage.NewAggregator(0)
	since := func(now time.Time) time.Time {
		u, _ := a.Tenant(17, now)
		return u.HighSince
	}
	a.Record(event(noon(), 79))
	require.Zero(t, since(noon()))
	a.Record(event(noon().Add(time.Second), 80))
	a.Record(event(noon().Add(2*time.Second), 10)) // another limit's hit in between
	for s := 5; s < 600; s += 5 {
		a.Record(event(noon().Add(time.Duration(s)*time.Second), 95))
	}
	now := noon().Add(600 * time.Second)
	require.Equal(t, noon().Add(time.Second), since(now))
	require.Zero(t, since(now.Add(time.Minute)), "a minute of silence ends it")

	a.Record(event(now, 30))
	require.Equal(t, noon().Add(time.Second), since(now), "one low hit does not")
	a.Record(event(now.Add(5*time.Second), 30))
	require.Zero(t, since(now.Add(5*time.Second)), "a low slot does")
	a.Record(event(now.Add(6*time.Second), 99))
	require.Equal(t, now.Add(6*time.Second), since(now.Add(6*time.Second)))
}

func TestTopIsOrderedAndBounded(t *testing.T) {
	t.Parallel()
	a := usage.NewAggregator(0)
	for id := range 30 {
		e := event(noon(), int64(id%10)*10)
		e.TenantID, e.Tenant = int64(id+1), fmt.Sprintf("t%02d", id)
		for range 1 + id/10 {
			a.Record(e)
		}
	}
	top := a.Top(4, noon())
	names := make([]string, 0, 4)
	for _, u := range top.Tenants {
		names = append(names, u.Tenant)
	}
	require.Equal(t, []string{"t29", "t19", "t09", "t28"}, names, "by utilisation, then hits")
	require.Empty(t, a.Top(0, noon()).Tenants)
	require.Empty(t, a.Top(-1, noon()).Tenants)
}

func TestRefusedAddressesAndServices(t *testing.T) {
	t.Parallel()
	a := usage.NewAggregator(0)
	refuse := func(address, service string, at time.Time, times int) {
		for range times {
			a.Record(usage.Event{Verdict: usage.Refused, Address: address, Service: service, At: at, WrongCredential: service == ""})
		}
	}
	refuse("203.0.113.1/32", "", noon(), 5)
	refuse("203.0.113.2/32", "edge", noon(), 7)
	refuse("203.0.113.1/32", "", noon().Add(time.Minute), 4)
	top := a.Top(10, noon().Add(time.Minute))
	require.Equal(t, []usage.Refusals{{Name: "203.0.113.1/32", Count: 9}, {Name: "203.0.113.2/32", Count: 7}}, top.Addresses)
	require.Equal(t, []usage.Refusals{{Name: "edge", Count: 7}}, top.Services)
	require.EqualValues(t, 9, top.WrongCredentials)
	require.EqualValues(t, 4, top.Anonymous.Refused, "of the last 60 s")
	top = a.Top(10, noon().Add(2*time.Minute))
	require.Equal(t, []usage.Refusals{{Name: "203.0.113.1/32", Count: 4}}, top.Addresses)
	require.Empty(t, a.Top(10, noon().Add(5*time.Minute)).Addresses)
}

// B068: a flood of addresses grows nothing, and does not hide who is refused most.
func TestFloodOfAddressesIsBounded(t *testing.T) {
	t.Parallel()
	a := usage.NewAggregator(0)
	for i := range 100_000 {
		name := "10.0.0." + strconv.Itoa(i)
		if i%20 == 0 {
			name = "loud"
		}
		a.Record(usage.Event{Verdict: usage.Refused, Address: name, At: noon()})
	}
	top := a.Top(1_000_000, noon())
	require.LessOrEqual(t, len(top.Addresses), 16*64)
	loud := top.Addresses[0]
	require.Equal(t, "loud", loud.Name)
	require.LessOrEqual(t, loud.Count-loud.Error, int64(5000))
	require.GreaterOrEqual(t, loud.Count, int64(5000))
}

func TestTenantsAreBounded(t *testing.T) {
	t.Parallel()
	a := usage.NewAggregator(100)
	record := func(id int, at time.Time) {
		e := event(at, 1)
		e.TenantID = int64(id)
		a.Record(e)
	}
	for id := 1; id <= 200; id++ {
		record(id, noon())
	}
	require.Len(t, a.Top(1000, noon()).Tenants, 100)
	require.EqualValues(t, 100, a.Dropped())
	record(300, noon().Add(11*time.Minute))
	require.Len(t, a.Top(1000, noon().Add(11*time.Minute)).Tenants, 1, "idle ones make room")
}

func TestHeldRefusalMovesOverFromSlowed(t *testing.T) {
	t.Parallel()
	a := usage.NewAggregator(0)
	a.Record(as(event(noon(), 90), usage.Slowed))
	held := as(event(noon(), 90), usage.Refused)
	held.Held = true
	a.Record(held)
	u, _ := a.Tenant(17, noon())
	require.Equal(t, usage.Counts{Refused: 1, Peak: 0.9}, u.Last60s)
}

func TestParallelRecordingLosesNothing(t *testing.T) {
	t.Parallel()
	a := usage.NewAggregator(0)
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			for i := range 1000 {
				e := event(noon().Add(time.Duration(i)*time.Millisecond), int64(i%100))
				e.TenantID = int64(i%7 + 1)
				if g == 0 {
					e.TenantID = 0
				}
				a.Record(e)
			}
		})
	}
	group.Go(func() {
		for range 100 {
			a.Top(10, noon())
		}
	})
	group.Wait()
	top := a.Top(10, noon().Add(time.Second))
	total := top.Anonymous.Hits()
	for _, u := range top.Tenants {
		total += u.Last60s.Hits()
	}
	require.EqualValues(t, 8000, total)
}

func BenchmarkRecord(b *testing.B) {
	a := usage.NewAggregator(0)
	e := event(noon(), 50)
	b.ReportAllocs()
	for b.Loop() {
		a.Record(e)
	}
}
