package app

import (
	"time"

	"github.com/google/uuid"

	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/redisstore"
	"github.com/pegel-dev/pegel/internal/usage"
)

const (
	day             = 24 * time.Hour
	minuteRowsMost  = 60 * day
	hourRowsMost    = 3 * 366 * day
	dayRowsMost     = 20 * 366 * day
	minuteRowsLeast = day // an hour is rolled up when it is over, and again when minutes come late
	hourRowsLeast   = 7 * day
	dayRowsLeast    = 31 * day
)

// usageSettings are how long usage is kept, user ids and keys included.
func usageSettings() []Setting {
	return []Setting{
		{
			Env: "PEGEL_USAGE_MINUTES_RETENTION", Default: "48h", Kind: "duration, 24h…1440h",
			Help: "how long usage is kept by the minute, user ids and key names included",
			parse: func(c *Config, v string) error {
				return duration(&c.UsageMinutesRetention, v, minuteRowsLeast, minuteRowsMost)
			},
		},
		{
			Env: "PEGEL_USAGE_HOURS_RETENTION", Default: "2160h", Kind: "duration, 168h…26352h",
			Help: "how long usage is kept by the hour, user ids and key names included",
			parse: func(c *Config, v string) error {
				return duration(&c.UsageHoursRetention, v, hourRowsLeast, hourRowsMost)
			},
		},
		{
			Env: "PEGEL_USAGE_DAYS_RETENTION", Default: "17520h", Kind: "duration, 744h…175680h",
			Help: "how long usage is kept by the day, user ids and key names included",
			parse: func(c *Config, v string) error {
				return duration(&c.UsageDaysRetention, v, dayRowsLeast, dayRowsMost)
			},
		},
	}
}

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
		Retention:  usage.Retention{Minutes: a.cfg.UsageMinutesRetention, Hours: a.cfg.UsageHoursRetention, Days: a.cfg.UsageDaysRetention},
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
