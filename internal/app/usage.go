package app

import (
	"time"

	"github.com/google/uuid"

	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/redisstore"
	"github.com/pegel-dev/pegel/internal/usage"
)

// newReporter makes what carries this replica's usage to the others and into history.
func (a *App) newReporter() *usage.Reporter {
	instance := uuid.NewString()
	var exchanges []usage.Exchange
	if a.stores.redis != nil {
		installation := func() string { return a.directory.Snapshot().Installation }
		exchanges = append(exchanges, redisstore.NewExchange(a.stores.redis, installation))
	}
	return usage.NewReporter(usage.ReporterConfig{
		Aggregator: a.usage,
		Exchanges:  append(exchanges, postgres.NewExchange(a.repository)),
		History:    postgres.NewUsageHistory(a.repository),
		Retention:  usage.Retention{Minutes: 48 * time.Hour, Hours: 90 * 24 * time.Hour, Days: 730 * 24 * time.Hour},
		Replica: func() usage.Replica {
			r := a.health.replica()
			r.Instance, r.Version = instance, a.version
			return r
		},
		Now: a.now, Log: a.log,
	})
}

// replica is what this replica tells the others of itself and its stores.
func (h *health) replica() usage.Replica {
	r := h.Readiness()
	return usage.Replica{
		Name: h.name, Status: r.Status, Source: string(r.Source), Redis: r.Redis, Postgres: r.Postgres, Since: h.stores.since().UTC(),
		RedisBreaker: h.stores.breaker(ratelimit.SourceRedis), PostgresBreaker: h.stores.breaker(ratelimit.SourcePostgres),
	}
}

// breaker is the state of a store's breaker; empty for a store that is not configured.
func (s *stores) breaker(source ratelimit.Source) string {
	for _, st := range s.failover.Health().Stores {
		if st.Source == source {
			return string(st.Breaker)
		}
	}
	return ""
}
