package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

const (
	// mirrorEvery is how often Postgres is told what Redis has counted: so much, at most, is lost with Redis.
	mirrorEvery = time.Second
	// mirrorLimit bounds one call that does so. Decisions have their own, much shorter limit.
	mirrorLimit = 2 * time.Second
)

// mirror carries usage from Redis to Postgres until ctx ends, and tells what is left when it does.
func (s *stores) mirror(ctx context.Context) {
	for sleep(ctx, mirrorEvery) {
		if err := s.failover.Mirror(ctx); err != nil && ctx.Err() == nil {
			s.log.Debug("usage is not mirrored now", slog.Any("error", err))
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), mirrorLimit)
	defer cancel()
	if err := s.failover.Mirror(last); err != nil {
		s.log.Debug("the last usage is not mirrored", slog.Any("error", err))
	}
}

// observeHandover registers how far Postgres is behind Redis.
func (a *App) observeHandover() {
	read := func() ratelimit.HandoverHealth { return a.stores.failover.Health().Handover }
	gauges := map[string]struct {
		help  string
		value func(ratelimit.HandoverHealth) float64
	}{
		"pegel_mirror_lag_seconds": {
			"How long ago Postgres last knew of all that Redis counted through this replica; 0 when it does.",
			func(h ratelimit.HandoverHealth) float64 { return h.Lag.Seconds() },
		},
		"pegel_mirror_pending": {
			"Counters whose use Postgres has not been told of yet.",
			func(h ratelimit.HandoverHealth) float64 { return float64(h.Pending) },
		},
		"pegel_mirror_tracked": {
			"Counters whose use this replica remembers.",
			func(h ratelimit.HandoverHealth) float64 { return float64(h.Tracked) },
		},
	}
	for name, g := range gauges {
		a.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: g.help}, func() float64 { return g.value(read()) }))
	}
	counters := map[string]struct {
		help  string
		value func(ratelimit.HandoverHealth) int64
	}{
		"pegel_mirrored_total": {
			"Uses of counters that Postgres was told of.", func(h ratelimit.HandoverHealth) int64 { return h.Mirrored },
		},
		"pegel_mirror_dropped_total": {
			"Uses that were not mirrored because this replica remembers too many counters.",
			func(h ratelimit.HandoverHealth) int64 { return h.Dropped },
		},
		"pegel_top_ups_total": {
			"Counters raised on Redis to what Postgres or this replica knew.", func(h ratelimit.HandoverHealth) int64 { return h.ToppedUp },
		},
	}
	for name, c := range counters {
		a.metrics.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: c.help}, func() float64 { return float64(c.value(read())) }))
	}
}
