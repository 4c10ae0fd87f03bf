package metrics_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/metrics"
	"github.com/pegel-dev/pegel/internal/ratelimit"
)

var (
	outcomes = []string{"allow", "slow", "deny", "would_slow", "would_deny", "too_many_held", "suspended", "network_denied", "closed"}
	doors    = []string{"check", "ping", "authz", "proxy", "envoy", "admin", "other"}
	sources  = []string{"redis", "postgres", "memory", "none"}
)

// meter is a fresh registry and what counts into it; at is when decisions began, now when they ended.
type meter struct {
	*metrics.Decisions

	registry *prometheus.Registry
	at, now  time.Time
}

func newMeter() *meter {
	start := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	m := &meter{registry: prometheus.NewPedanticRegistry(), at: start, now: start}
	m.Decisions = metrics.NewDecisions(m.registry, func() time.Time { return m.now })
	return m
}

func (m *meter) decided(door decision.Door, d *decision.Decision, err error) {
	m.Observe(decision.Observation{At: m.at, Hit: &decision.Hit{Door: door, Cost: 1}, Decision: d, Err: err})
}

// read reads the decisions by "outcome door source"; timed how many decisions of a door were timed.
func (m *meter) read(t require.TestingT) (counts map[string]float64, timed map[string]uint64) {
	counts, timed = map[string]float64{}, map[string]uint64{}
	families, err := m.registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, series := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range series.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if family.GetName() == "pegel_decisions_total" {
				counts[labels["outcome"]+" "+labels["door"]+" "+labels["source"]] = series.GetCounter().GetValue()
			} else {
				timed[labels["door"]] = series.GetHistogram().GetSampleCount()
			}
		}
	}
	return counts, timed
}

// Guarantee: the names, types, labels and buckets that dashboards and alerts are made of.
func TestWhatIsRegistered(t *testing.T) {
	t.Parallel()
	m := newMeter()
	m.decided(decision.DoorCheck, &decision.Decision{Verdict: decision.Allow, Source: ratelimit.SourceRedis}, nil)
	families, err := m.registry.Gather()
	require.NoError(t, err)
	var said []string
	for _, family := range families {
		var labels []string
		for _, l := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		said = append(said, fmt.Sprint(family.GetName(), " ", family.GetType(), " ", strings.Join(labels, ","), ": ", family.GetHelp()))
	}
	require.Equal(t, []string{
		"pegel_decision_duration_seconds HISTOGRAM door: How long decisions take, their stores included and the delay of a slow-down not.",
		"pegel_decisions_total COUNTER door,outcome,source: Decided hits, by what became of them, the door they came through and the store that decided.",
	}, said)

	buckets := metrics.Seconds()
	require.True(t, slices.IsSorted(buckets))
	require.Len(t, slices.Compact(slices.Clone(buckets)), len(buckets))
	for _, bound := range []float64{.025, .05, .25} {
		require.Contains(t, buckets, bound, "where the rules of deploy/prometheus and the stores' timeouts draw a line")
	}
	require.Less(t, buckets[0], 0.0001, "a decision from memory takes less")
	require.Greater(t, buckets[len(buckets)-1], 2.0, "a request waits for a hung store that long")
	buckets[0] = 9
	require.NotEqual(t, buckets[0], metrics.Seconds()[0], "a caller's own")

	require.Panics(t, func() { metrics.NewDecisions(m.registry, time.Now) }, "registered twice, one of them would count into nothing")
	require.Len(t, families[0].GetMetric(), len(doors), "a door that nobody came through has its histogram: rate() needs the zero")
}

// Guarantee: each thing that can become of a hit has its word, and the store that decided is the one that is named.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		decision *decision.Decision
		err      error
		want     string
		untimed  bool
	}{
		{"allow", &decision.Decision{Verdict: decision.Allow, Source: ratelimit.SourceRedis}, nil, "allow check redis", false},
		{"slow", &decision.Decision{Verdict: decision.Slow, Source: ratelimit.SourcePostgres}, nil, "slow check postgres", false},
		{"deny", &decision.Decision{Verdict: decision.Deny, Source: ratelimit.SourceMemory}, nil, "deny check memory", false},
		{"open", &decision.Decision{Verdict: decision.Allow, Source: ratelimit.SourceNone}, nil, "allow check none", false},
		{"would deny", &decision.Decision{Verdict: decision.Allow, Shadowed: true, Would: decision.Deny, Source: ratelimit.SourceRedis}, nil, "would_deny check redis", false},
		{"would slow", &decision.Decision{Verdict: decision.Allow, Shadowed: true, Would: decision.Slow, Source: ratelimit.SourceRedis}, nil, "would_slow check redis", false},
		{"held in vain", &decision.Decision{Verdict: decision.Deny, Held: true, Source: ratelimit.SourceRedis}, nil, "too_many_held check redis", true},
		{"suspended", nil, decision.ErrSuspended, "suspended check none", false},
		{"network", nil, fmt.Errorf("wrapped: %w", decision.ErrNetworkDenied), "network_denied check none", false},
		{"closed", nil, fmt.Errorf("wrapped: %w", decision.ErrClosed), "closed check none", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newMeter()
			m.decided(decision.DoorCheck, c.decision, c.err)
			m.decided(decision.DoorCheck, c.decision, c.err)
			counts, timed := m.read(t)
			require.Equal(t, map[string]float64{c.want: 2}, counts)
			if c.untimed {
				require.Zero(t, timed["check"], "it was timed when it was decided")
			} else {
				require.EqualValues(t, 2, timed["check"])
			}
		})
	}
}

// Guarantee: looks are no decisions.
func TestLooksAreNotCounted(t *testing.T) {
	t.Parallel()
	m := newMeter()
	allowed := &decision.Decision{Verdict: decision.Allow, Source: ratelimit.SourceRedis}
	m.Observe(decision.Observation{At: m.at, Hit: &decision.Hit{Door: decision.DoorPing, Cost: 1, Peek: true}, Decision: allowed})
	m.Observe(decision.Observation{At: m.at, Hit: &decision.Hit{Door: decision.DoorPing, Cost: 0}, Decision: allowed})
	counts, timed := m.read(t)
	require.Empty(t, counts)
	require.Zero(t, timed["ping"])
}

// Guarantee: a decision is timed in seconds, from when it began, in the bucket that its time is in.
func TestDurations(t *testing.T) {
	t.Parallel()
	m := newMeter()
	for _, took := range []time.Duration{20 * time.Microsecond, 2500 * time.Microsecond, 26 * time.Millisecond, 3 * time.Second} {
		m.now = m.at.Add(took)
		m.decided(decision.DoorProxy, &decision.Decision{Verdict: decision.Allow, Source: ratelimit.SourceRedis}, nil)
	}
	families, err := m.registry.Gather()
	require.NoError(t, err)
	for _, series := range families[0].GetMetric() {
		if series.GetLabel()[0].GetValue() != "proxy" {
			require.Zero(t, series.GetHistogram().GetSampleCount())
			continue
		}
		h := series.GetHistogram()
		require.InDelta(t, 3.02852, h.GetSampleSum(), 1e-9)
		within := map[float64]uint64{}
		for _, b := range h.GetBucket() {
			within[b.GetUpperBound()] = b.GetCumulativeCount()
		}
		require.Equal(t, []uint64{1, 1, 2, 2, 3, 3}, []uint64{within[.00005], within[.001], within[.0025], within[.025], within[.05], within[2.5]})
	}
}

// Guarantee: whatever comes in, no label has a word of its sender's, so the number of series has an end; and nothing goes uncounted.
func TestSeriesHaveAnEnd(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := newMeter()
		hits := rapid.IntRange(1, 200).Draw(t, "hits")
		for range hits {
			door := decision.Door(rapid.OneOf(rapid.SampledFrom(doors), rapid.String()).Draw(t, "door"))
			source := ratelimit.Source(rapid.OneOf(rapid.SampledFrom(sources), rapid.String()).Draw(t, "source"))
			verdicts := []decision.Verdict{decision.Allow, decision.Slow, decision.Deny, "odd"}
			d := &decision.Decision{
				Verdict: rapid.SampledFrom(verdicts).Draw(t, "verdict"), Would: rapid.SampledFrom(verdicts).Draw(t, "would"), Source: source,
				Shadowed: rapid.Bool().Draw(t, "shadowed"), Held: rapid.Bool().Draw(t, "held"), Tenant: rapid.String().Draw(t, "tenant"),
			}
			err := rapid.SampledFrom([]error{nil, decision.ErrSuspended, decision.ErrNetworkDenied, decision.ErrClosed}).Draw(t, "err")
			if err != nil {
				d = nil
			}
			m.decided(door, d, err)
		}
		counts, timed := m.read(t)
		require.Len(t, timed, len(doors))
		total := 0.0
		for series, n := range counts {
			labels := strings.Split(series, " ")
			require.Len(t, labels, 3)
			require.Contains(t, outcomes, labels[0])
			require.Contains(t, doors, labels[1])
			require.Contains(t, sources, labels[2])
			total += n
		}
		require.InDelta(t, hits, total, 0)
	})
}

// Guarantee: on the hot path nothing is lost between goroutines, whichever of them makes a series, and nothing is allocated.
func TestTheHotPath(t *testing.T) {
	t.Parallel()
	m := newMeter()
	const each = 2000
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			d := &decision.Decision{Verdict: decision.Allow, Source: ratelimit.SourceRedis}
			for i := range each {
				m.decided(decision.Door(doors[(g+i)%len(doors)]), d, nil)
			}
		})
	}
	wg.Wait()
	counts, timed := m.read(t)
	total, times := 0.0, uint64(0)
	for _, door := range doors {
		total += counts["allow "+door+" redis"]
		times += timed[door]
	}
	require.InDelta(t, 8*each, total, 0)
	require.EqualValues(t, 8*each, times)
}

func TestObservingAllocatesNothing(t *testing.T) { //nolint:paralleltest // others would allocate meanwhile
	m := newMeter()
	o := decision.Observation{At: m.at, Hit: &decision.Hit{Door: decision.DoorCheck, Cost: 1}, Decision: &decision.Decision{Verdict: decision.Deny, Source: ratelimit.SourceRedis}}
	m.Observe(o)
	require.Zero(t, testing.AllocsPerRun(100, func() { m.Observe(o) }))
}
