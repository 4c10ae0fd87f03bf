// Package metrics counts decisions for Prometheus. It is on the hot path: no lock, no allocation once a series is there, and a number
// of series that no client can raise. Everything else on /metrics is registered by internal/app, from what each part knows of itself.
package metrics

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// What becomes of a hit. In shadow mode it is let through and counted as what would have been.
const (
	outcomeAllow = iota
	outcomeSlow
	outcomeDeny
	outcomeWouldSlow
	outcomeWouldDeny
	outcomeTooManyHeld
	outcomeSuspended
	outcomeNetworkDenied
	outcomeClosed
	outcomes
)

var outcomeNames = [outcomes]string{
	"allow", "slow", "deny", "would_slow", "would_deny", "too_many_held", "suspended", "network_denied", "closed",
}

// The doors and sources that are told apart; anything else is the last.
var (
	metricDoors   = [...]decision.Door{decision.DoorCheck, decision.DoorPing, decision.DoorAuthz, decision.DoorProxy, decision.DoorEnvoy, decision.DoorAdmin, "other"}
	metricSources = [...]ratelimit.Source{ratelimit.SourceRedis, ratelimit.SourcePostgres, ratelimit.SourceMemory, ratelimit.SourceNone}
)

// Seconds are the buckets of how long decisions and calls of stores take: from memory to a hung store.
func Seconds() []float64 {
	return []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}
}

// Decisions counts and times decisions. Series are made when they are first needed: there can be no more than outcomes × doors ×
// sources.
type Decisions struct {
	now     func() time.Time
	counts  *prometheus.CounterVec
	series  [outcomes][len(metricDoors)][len(metricSources)]atomic.Pointer[prometheus.Counter]
	seconds [len(metricDoors)]prometheus.Observer
}

// NewDecisions registers what it counts. Now is this replica's clock.
func NewDecisions(r prometheus.Registerer, now func() time.Time) *Decisions {
	m := &Decisions{
		now: now,
		counts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pegel_decisions_total", Help: "Decided hits, by what became of them, the door they came through and the store that decided.",
		}, []string{"outcome", "door", "source"}),
	}
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "pegel_decision_duration_seconds", Help: "How long decisions take, their stores included and the delay of a slow-down not.",
		Buckets: Seconds(),
	}, []string{"door"})
	r.MustRegister(m.counts, seconds)
	for i, door := range metricDoors {
		m.seconds[i] = seconds.WithLabelValues(string(door))
	}
	return m
}

// Observe is in decision.Observer.
func (m *Decisions) Observe(o decision.Observation) {
	if !o.Hit.Consumes() {
		return
	}
	door := doorIndex(o.Hit.Door)
	outcome, source := outcomeOf(&o)
	series := &m.series[outcome][door][sourceIndex(source)]
	counter := series.Load()
	if counter == nil {
		made := m.counts.WithLabelValues(outcomeNames[outcome], string(metricDoors[door]), string(metricSources[sourceIndex(source)]))
		counter = &made
		series.Store(counter)
	}
	(*counter).Inc()
	if outcome != outcomeTooManyHeld { // it was timed when it was decided
		m.seconds[door].Observe(m.now().Sub(o.At).Seconds())
	}
}

func outcomeOf(o *decision.Observation) (outcome int, source ratelimit.Source) {
	d := o.Decision
	switch {
	case d == nil && errors.Is(o.Err, decision.ErrSuspended):
		return outcomeSuspended, ratelimit.SourceNone
	case d == nil && errors.Is(o.Err, decision.ErrNetworkDenied):
		return outcomeNetworkDenied, ratelimit.SourceNone
	case d == nil:
		return outcomeClosed, ratelimit.SourceNone
	case d.Held:
		return outcomeTooManyHeld, d.Source
	case d.Shadowed && d.Would == decision.Deny:
		return outcomeWouldDeny, d.Source
	case d.Shadowed:
		return outcomeWouldSlow, d.Source
	case d.Verdict == decision.Deny:
		return outcomeDeny, d.Source
	case d.Verdict == decision.Slow:
		return outcomeSlow, d.Source
	}
	return outcomeAllow, d.Source
}

func doorIndex(door decision.Door) int {
	for i, known := range metricDoors {
		if known == door {
			return i
		}
	}
	return len(metricDoors) - 1
}

func sourceIndex(source ratelimit.Source) int {
	for i, known := range metricSources {
		if known == source {
			return i
		}
	}
	return len(metricSources) - 1
}
