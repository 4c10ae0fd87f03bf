package app

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// newMetrics is the registry behind /metrics, with what concerns the process. No metric has a tenant, a key, an address or
// a path in a label: the number of series is fixed.
func newMetrics(version string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "pegel_build_info", Help: "1, with the version of the binary.", ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), build)
	return r
}

// observe registers the replica's own numbers, read when they are scraped.
func (a *App) observe(holder *decision.Holder) {
	a.observeHandover()
	a.observeBatching()
	a.observeBreakers()
	a.observeUsage()
	gauge := func(name, help string, value func() float64) {
		a.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	gauge("pegel_held_requests", "Requests held in slow-down now.", func() float64 { return float64(holder.Held()) })
	gauge("pegel_ready", "1 while this replica takes traffic.", func() float64 { return truth(a.health.Readiness().Ready) })
	gauge("pegel_tenants", "Tenants in the loaded configuration.", func() float64 { return float64(a.directory.Snapshot().TenantCount()) })
	gauge("pegel_config_version", "Version of the loaded configuration.", func() float64 { return float64(a.directory.Snapshot().Version) })
	gauge("pegel_config_age_seconds", "Time since Postgres last confirmed the loaded configuration.", func() float64 {
		confirmed := a.directory.Snapshot().ConfirmedAt
		if confirmed.IsZero() {
			return 0
		}
		return a.now().Sub(confirmed).Seconds()
	})
	for name, up := range map[string]func() string{"redis": a.health.redis, "postgres": a.health.postgres} {
		if up() == storeUnconfigured { // it is not away
			continue
		}
		a.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pegel_store_up", Help: "1 while the store answers.", ConstLabels: prometheus.Labels{"store": name},
		}, func() float64 { return truth(up() == storeUp) }))
	}
	for name, read := range map[string]func(ratelimit.Health) int64{
		"nobody": func(h ratelimit.Health) int64 { return h.Undecided },
		"memory": func(h ratelimit.Health) int64 { return h.Local },
	} {
		a.metrics.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "pegel_charges_without_store_total", Help: "Charges that no store decided, by who did.", ConstLabels: prometheus.Labels{"by": name},
		}, func() float64 { return float64(read(a.stores.failover.Health())) }))
	}
	for _, source := range []ratelimit.Source{ratelimit.SourceRedis, ratelimit.SourcePostgres, ratelimit.SourceNone} {
		a.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pegel_decision_source", Help: "1 for the store that decides now.", ConstLabels: prometheus.Labels{"source": string(source)},
		}, func() float64 { return truth(a.health.source() == source) }))
	}
}

// observeBatching registers how decisions share calls of a store, and how many needed none.
func (a *App) observeBatching() {
	batcher, denials := a.stores.batcher, a.stores.denials
	a.metrics.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "pegel_flights", Help: "Calls of a store under way."},
			func() float64 { return float64(batcher.Stats().Flying) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "pegel_charges_waiting", Help: "Different charges that wait for the next call of a store."},
			func() float64 { return float64(batcher.Stats().Charges) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "pegel_charges_shed_total", Help: "Charges that could not wait for a store: on_store_failure decided.",
		}, func() float64 { return float64(batcher.Stats().Busy) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "pegel_charges_refused_from_memory_total", Help: "Charges refused without asking a store, because it had just refused the same.",
		}, func() float64 { return float64(denials.Stats().Answered) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "pegel_remembered_refusals", Help: "Counters that are remembered as full."},
			func() float64 { return float64(denials.Stats().Keys) }),
	)
}

// countFlights observes how many charges, and hits merged into them, share a call of a store.
func countFlights(r prometheus.Registerer) func(charges int, hits int64) {
	sizes := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "pegel_flight_charges", Help: "Different charges that share a call of a store.", Buckets: prometheus.ExponentialBuckets(1, 2, 10),
	})
	hits := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "pegel_flight_hits_total", Help: "Hits that calls of a store settled, merged ones included.",
	})
	r.MustRegister(sizes, hits)
	return func(charges int, n int64) {
		sizes.Observe(float64(charges))
		hits.Add(float64(n))
	}
}

// countBroken counts the configuration rows that could not be used, at each load that meets them.
func countBroken(r prometheus.Registerer) func(tenants.BrokenRow) {
	broken := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "pegel_config_broken_rows_total", Help: "Configuration rows that could not be used, once for each load that met one.",
	})
	r.MustRegister(broken)
	return func(tenants.BrokenRow) { broken.Inc() }
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
