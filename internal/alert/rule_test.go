package alert_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pegel-dev/pegel/internal/alert"
)

// noon is when tests begin.
func noon() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

// tenMinutes is the rule of the default plans: 80 % for ten minutes of a limit per minute.
func tenMinutes() alert.Rule {
	return alert.Rule{At: 0.8, Below: 0.7, For: 10 * time.Minute, Quiet: 5 * time.Minute, Dip: 2 * time.Minute, Hold: time.Minute}
}

// drive shows a rule one level every step, for a time, and returns what happened.
func drive(r *alert.Rule, s *alert.State, from time.Time, length, step time.Duration, level func(time.Duration) float64) (events []alert.Event) {
	for d := time.Duration(0); d <= length; d += step {
		events = append(events, r.See(s, alert.Level{Value: level(d), At: from.Add(d)})...)
		events = append(events, r.Follow(s, from.Add(d))...)
	}
	return events
}

func TestSustainedLoadOpensOneIncidentAndResolvesOnce(t *testing.T) {
	t.Parallel()
	r, s := tenMinutes(), alert.State{}
	high := drive(&r, &s, noon(), time.Hour, 5*time.Second, func(time.Duration) float64 { return 0.85 })
	require.Equal(t, []alert.Event{{Turn: alert.Opened, At: noon().Add(10 * time.Minute), Since: noon(), Peak: 0.85}}, high)

	after := noon().Add(time.Hour + 5*time.Second)
	require.Empty(t, drive(&r, &s, after, 30*time.Minute, 5*time.Second, func(time.Duration) float64 { return 0.75 }), "lower, but not low")
	low := drive(&r, &s, after.Add(31*time.Minute), time.Hour, 5*time.Second, func(time.Duration) float64 { return 0.2 })
	require.Len(t, low, 1)
	require.Equal(t, alert.Resolved, low[0].Turn)
	require.Equal(t, after.Add(36*time.Minute), low[0].At)
}

func TestOscillationIsOneIncident(t *testing.T) {
	t.Parallel()
	for _, period := range []time.Duration{10 * time.Second, time.Minute, 3 * time.Minute} {
		r, s := tenMinutes(), alert.State{}
		events := drive(&r, &s, noon(), time.Hour, 5*time.Second, func(d time.Duration) float64 {
			if d/period%2 == 0 {
				return 0.83
			}
			return 0.77
		})
		want := 1
		if period > r.Dip {
			want = 0 // never high for ten minutes
		}
		require.Len(t, events, want, period)
	}
}

func TestAMomentIsNoIncident(t *testing.T) {
	t.Parallel()
	r, s := tenMinutes(), alert.State{}
	require.Empty(t, r.See(&s, alert.Level{Value: 0.99, At: noon()}))
	require.Empty(t, drive(&r, &s, noon().Add(time.Second), time.Hour, 5*time.Second, func(time.Duration) float64 { return 0.75 }))
	require.True(t, s.HighSince.IsZero())
}

func TestSilenceEndsAStretchAndAnIncident(t *testing.T) {
	t.Parallel()
	r, s := tenMinutes(), alert.State{}
	drive(&r, &s, noon(), 8*time.Minute, time.Minute, func(time.Duration) float64 { return 0.9 })
	require.Empty(t, r.Follow(&s, noon().Add(12*time.Minute)), "its last hit counts for one window: 8 min and 1")
	s = alert.State{}
	require.Len(t, drive(&r, &s, noon(), 11*time.Minute, time.Minute, func(time.Duration) float64 { return 0.9 }), 1)
	require.Empty(t, r.Follow(&s, noon().Add(16*time.Minute)))
	over := r.Follow(&s, noon().Add(20*time.Minute))
	require.Len(t, over, 1)
	require.Equal(t, noon().Add(17*time.Minute), over[0].At, "empty from 12:12 on, quiet for five minutes")
	require.True(t, r.Idle(&s, noon().Add(20*time.Minute)))
}

// plain is the rule as one would say it, over the whole history at once: intervals instead of a state.
func plain(r *alert.Rule, seen []alert.Level, now time.Time) (events []alert.Event) {
	type interval struct {
		from, to time.Time
		peak     float64
	}
	var high, low []interval
	join := func(list []interval, next interval, gap time.Duration) []interval {
		if n := len(list); n > 0 && next.from.Sub(list[n-1].to) <= gap {
			list[n-1].to, list[n-1].peak = next.to, max(list[n-1].peak, next.peak)
			return list
		}
		return append(list, next)
	}
	stays := func(l alert.Level, above float64) time.Duration {
		if l.Value < above {
			return -1
		}
		if r.Drains {
			return time.Duration(min(1, l.Value-above) * float64(r.Hold))
		}
		return r.Hold
	}
	open, after := false, 0 // after: index of the first level that counts
	for i := 0; i <= len(seen); i++ {
		// What is known when level i has just been seen, or at the end.
		until := now
		if i < len(seen) {
			until = seen[i].At
		}
		high, low = nil, nil
		for j := after; j < i; j++ {
			end := until
			if j+1 < i {
				end = seen[j+1].At
			}
			l := seen[j]
			if d := stays(l, r.At); d >= 0 {
				high = join(high, interval{l.At, min2(end, l.At.Add(d)), l.Value}, r.Dip)
			}
			if d := stays(l, r.Below); d < 0 {
				low = join(low, interval{from: l.At, to: end}, 0)
			} else if !l.At.Add(d).After(end) { // its moment was not low: a new interval, whatever was before
				low = append(low, interval{from: l.At.Add(d), to: end})
			}
		}
		if !open && len(high) > 0 {
			if h := high[len(high)-1]; h.to.Sub(h.from) >= r.For {
				open = true
				events = append(events, alert.Event{Turn: alert.Opened, At: h.from.Add(r.For), Since: h.from, Peak: h.peak})
			}
		}
		if open && len(low) > 0 {
			if l := low[len(low)-1]; l.to.Equal(until) && l.to.Sub(l.from) >= r.Quiet {
				open = false
				events = append(events, alert.Event{Turn: alert.Resolved, At: low[len(low)-1].from.Add(r.Quiet)})
				after = i
			}
		}
	}
	return events
}

func min2(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// Whatever levels are seen, whenever: following them one by one is what the whole history says.
func TestRuleAgainstTheWholeHistory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		seconds := func(name string, least, most int) time.Duration {
			return time.Duration(rapid.IntRange(least, most).Draw(t, name)) * time.Second
		}
		r := alert.Rule{
			At: 0.8, Below: 0.7, For: seconds("for", 0, 60), Quiet: seconds("quiet", 1, 40), Dip: seconds("dip", 0, 20),
			Hold: seconds("hold", 1, 30), Drains: rapid.Bool().Draw(t, "drains"),
		}
		var s alert.State
		var seen []alert.Level
		var got []alert.Event
		at := noon()
		for range rapid.IntRange(1, 60).Draw(t, "levels") {
			at = at.Add(seconds("pause", 1, 25))
			l := alert.Level{Value: rapid.SampledFrom([]float64{0, 0.5, 0.69, 0.7, 0.75, 0.8, 0.81, 0.9, 1}).Draw(t, "level"), At: at}
			seen = append(seen, l)
			got = append(got, r.See(&s, l)...)
			// Looking more often changes nothing.
			for look := at; rapid.Bool().Draw(t, "look") && look.Before(at); {
				look = look.Add(time.Second)
				got = append(got, r.Follow(&s, look)...)
			}
		}
		end := at.Add(2 * time.Minute)
		got = append(got, r.Follow(&s, end)...)
		want := plain(&r, seen, end)
		require.Equal(t, short(want), short(got), "%+v\n%v", r, seen)
	})
}

func short(events []alert.Event) (out []string) {
	for _, e := range events {
		out = append(out, fmt.Sprintf("%d at %s", e.Turn, e.At.Format("15:04:05.000000")))
	}
	return out
}

// Whichever replica is heard first, an incident opens once and a late word never ends one.
func TestRuleOverReplicasHeardOutOfOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r, s := tenMinutes(), alert.State{}
		opened := 0
		for tick := 0; tick < 200; tick++ {
			now := noon().Add(time.Duration(tick) * 5 * time.Second)
			for range rapid.IntRange(0, 3).Draw(t, "replicas") {
				ago := time.Duration(rapid.IntRange(0, 5).Draw(t, "ago")) * time.Second
				value := 0.8 + 0.01*float64(rapid.IntRange(0, 9).Draw(t, "level"))
				for _, e := range r.See(&s, alert.Level{Value: value, At: now.Add(-ago)}) {
					require.Equal(t, alert.Opened, e.Turn)
					opened++
				}
			}
			s.Last.At = later(s.Last.At, now) // at least one hit per look
			for _, e := range r.Follow(&s, now) {
				require.Equal(t, alert.Opened, e.Turn)
				opened++
			}
		}
		require.LessOrEqual(t, opened, 1)
	})
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func TestBridgeNeitherCountsNorBreaks(t *testing.T) {
	t.Parallel()
	r, s := tenMinutes(), alert.State{}
	drive(&r, &s, noon(), 8*time.Minute, 5*time.Second, func(time.Duration) float64 { return 0.9 })
	s.Bridge(20 * time.Minute)
	events := drive(&r, &s, noon().Add(28*time.Minute), 10*time.Second, 5*time.Second, func(time.Duration) float64 { return 0.9 })
	require.Len(t, events, 1, "high before and after: high")
	require.Equal(t, noon(), events[0].Since)

	drive(&r, &s, noon().Add(29*time.Minute), 4*time.Minute, 5*time.Second, func(time.Duration) float64 { return 0.1 })
	s.Bridge(time.Hour)
	require.Empty(t, r.Follow(&s, noon().Add(93*time.Minute)), "nobody saw that it was low")
}
