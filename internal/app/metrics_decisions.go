package app

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/metrics"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// observers tells several of every decision.
type observers []decision.Observer

// Observe is in decision.Observer.
func (all observers) Observe(o decision.Observation) {
	for _, one := range all {
		one.Observe(o)
	}
}

// storeMetrics counts calls of stores.
type storeMetrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

func newStoreMetrics(r prometheus.Registerer) *storeMetrics {
	m := &storeMetrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pegel_store_calls_total", Help: "Calls of a store for decisions, by how they ended.",
		}, []string{"store", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pegel_store_call_duration_seconds", Help: "How long calls of a store for decisions take; one settles many hits.", Buckets: metrics.Seconds(),
		}, []string{"store"}),
	}
	r.MustRegister(m.calls, m.seconds)
	return m
}

// called is for one store's guard.
func (m *storeMetrics) called(source ratelimit.Source) func(took time.Duration, err error) {
	seconds := m.seconds.WithLabelValues(string(source))
	count := func(result string) prometheus.Counter { return m.calls.WithLabelValues(string(source), result) }
	good, failed, late := count("ok"), count("error"), count("timeout")
	return func(took time.Duration, err error) {
		seconds.Observe(took.Seconds())
		switch {
		case err == nil:
			good.Inc()
		case errors.Is(err, context.DeadlineExceeded):
			late.Inc()
		default:
			failed.Inc()
		}
	}
}

// observeBreakers registers the breakers' states, one series for each state.
func (a *App) observeBreakers() {
	for _, st := range a.stores.failover.Health().Stores {
		for _, state := range []ratelimit.BreakerState{ratelimit.BreakerClosed, ratelimit.BreakerHalfOpen, ratelimit.BreakerOpen} {
			a.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "pegel_store_breaker", Help: "1 for the state that the store's breaker is in.",
				ConstLabels: prometheus.Labels{"store": string(st.Source), "state": string(state)},
			}, func() float64 { return truth(a.stores.breaker(st.Source) == string(state)) }))
		}
	}
}

// countedLoader counts loads of the configuration that failed.
type countedLoader struct {
	tenants.Loader

	failed prometheus.Counter
}

func newCountedLoader(next tenants.Loader, r prometheus.Registerer) *countedLoader {
	l := &countedLoader{Loader: next, failed: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "pegel_config_load_errors_total", Help: "Polls and loads of the configuration that failed.",
	})}
	r.MustRegister(l.failed)
	return l
}

// Version is in tenants.Loader.
func (l *countedLoader) Version(ctx context.Context) (int64, error) {
	version, err := l.Loader.Version(ctx)
	return version, l.note(ctx, err)
}

// Load is in tenants.Loader.
func (l *countedLoader) Load(ctx context.Context, since int64) (tenants.Changes, error) {
	changes, err := l.Loader.Load(ctx, since)
	return changes, l.note(ctx, err)
}

func (l *countedLoader) note(ctx context.Context, err error) error {
	if err != nil && ctx.Err() == nil {
		l.failed.Inc()
	}
	return err
}

// observeUsage registers how watching does.
func (a *App) observeUsage() {
	for _, m := range []struct {
		name, help string
		value      func() int64
	}{
		{"pegel_usage_overflow_total", "Events that were counted for no tenant, because there were too many tenants.", func() int64 { return a.reporter.Stats().Dropped }},
		{"pegel_usage_unpublished_total", "Reports to other replicas that a store did not take.", func() int64 { return a.reporter.Stats().Unpublished }},
		{"pegel_usage_lost_total", "Rows of usage history that were given up while Postgres was away.", func() int64 { return a.reporter.Stats().Lost }},
	} {
		a.metrics.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: m.name, Help: m.help}, func() float64 { return float64(m.value()) }))
	}
	a.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pegel_usage_waiting", Help: "Rows of usage history that wait for Postgres.",
	}, func() float64 { return float64(a.reporter.Stats().Waiting) }))
}
