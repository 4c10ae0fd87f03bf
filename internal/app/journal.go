package app

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pegel-dev/pegel/internal/journal"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/tenants"
)

const (
	minRetention = time.Hour
	maxRetention = 366 * 24 * time.Hour
	// unwrittenWarning is for people, on /readyz.
	unwrittenWarning = "the request log and explanations cannot be written now: they wait, and what does not fit is dropped and counted"
)

// journalSettings are what is kept of decisions, and for how long.
func journalSettings() []Setting {
	return []Setting{
		{
			Env: "PEGEL_REQUEST_LOG_RETENTION", Default: "168h", Kind: "duration, 1h…8784h",
			Help: "how long the request log is kept, addresses and user ids included; it goes by whole days (UTC)",
			parse: func(c *Config, v string) error {
				return duration(&c.RequestLogRetention, v, minRetention, maxRetention)
			},
		},
		{
			Env: "PEGEL_REQUEST_LOG_ANONYMOUS", Default: "denied", Kind: "off, denied, allowed, sampled or all",
			Help: "which calls are logged that no tenant pays for; a plan's request_log says it for its tenants",
			parse: func(c *Config, v string) error {
				return oneOf(&c.RequestLogAnonymous, v, string(tenants.LogOff), string(tenants.LogDenied), string(tenants.LogAllowed), string(tenants.LogSampled), string(tenants.LogAll))
			},
		},
		{
			Env: "PEGEL_SAMPLE_ALLOWED", Default: "100", Kind: "hits, 0…1000000",
			Help:  "one in so many allowed hits is explained (at most 20 a second) and logged where request_log is sampled; 0: none",
			parse: func(c *Config, v string) error { return integer(&c.SampleAllowed, v, 0, 1_000_000) },
		},
	}
}

// openJournal makes what remembers decisions; it writes once Postgres is migrated.
func (a *App) openJournal() {
	a.recorded = postgres.NewJournal(a.pool)
	a.journal = journal.New(journal.Config{
		Sink: a.recorded, Replica: a.name, Now: a.now, Sample: a.cfg.SampleAllowed, Anonymous: tenants.RequestLog(a.cfg.RequestLogAnonymous),
		Retention: a.cfg.RequestLogRetention, Log: a.log,
	})
	a.observeJournal()
}

// observeJournal registers what was written and what was not.
func (a *App) observeJournal() {
	counter := func(name, help, log string, value func(journal.Stats) int64) {
		a.metrics.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: prometheus.Labels{"log": log}},
			func() float64 { return float64(value(a.journal.Stats())) }))
	}
	const requests, decisions = "requests", "decisions"
	const written, writtenHelp = "pegel_journal_written_total", "Rows of the request log, and explanations of decisions, that were written."
	const dropped, droppedHelp = "pegel_journal_dropped_total", "Rows of the request log, and explanations of decisions, that had no room."
	counter(written, writtenHelp, requests, func(s journal.Stats) int64 { return s.WrittenRequests })
	counter(written, writtenHelp, decisions, func(s journal.Stats) int64 { return s.WrittenDecisions })
	counter(dropped, droppedHelp, requests, func(s journal.Stats) int64 { return s.DroppedRequests })
	counter(dropped, droppedHelp, decisions, func(s journal.Stats) int64 { return s.DroppedDecisions })
	a.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pegel_journal_waiting", Help: "Rows of the request log and explanations that wait to be written.",
	}, func() float64 { return float64(a.journal.Stats().Waiting) }))
}
