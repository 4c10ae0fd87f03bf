package app

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/pgstore"
)

// stores is everything counters may live in, put together so that the engine sees one Store.
type stores struct {
	store    ratelimit.Store
	postgres *pgstore.Store
	pool     *pgxpool.Pool // decisions only, so that administration never takes their connections
	redis    redis.UniversalClient

	postgresProbe *probe
	redisProbe    *probe // nil without Redis
}

// openStores makes them; nothing connects before it is used.
func openStores(cfg *Config, now func() time.Time, log *slog.Logger, metrics prometheus.Registerer) (*stores, error) {
	s := &stores{}
	pool, err := pgstore.PoolConfig(string(cfg.DatabaseURL), cfg.DatabasePoolSize, cfg.DatabaseDecisionTimeout)
	if err != nil {
		return nil, fmt.Errorf("open the decision pool: %w", err)
	}
	// The pool lives until it is closed, not as long as a call.
	if s.pool, err = pgxpool.NewWithConfig(context.Background(), pool); err != nil {
		return nil, fmt.Errorf("open the decision pool: %w", err)
	}
	s.postgres = pgstore.New(s.pool, pgstore.WithTimeout(cfg.DatabaseDecisionTimeout))
	s.postgresProbe = &probe{name: "postgres", ask: s.pool.Ping, now: now, log: log}
	s.store = s.postgres
	return s, nil
}

// watch probes the stores until ctx ends.
func (s *stores) watch(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { s.postgresProbe.run(ctx) })
	if s.redisProbe != nil {
		all.Go(func() { s.redisProbe.run(ctx) })
	}
	all.Wait()
}

// source is the store that decides now.
func (s *stores) source() ratelimit.Source {
	switch {
	case s.redisProbe.state() == storeUp:
		return ratelimit.SourceRedis
	case s.postgresProbe.state() == storeUp:
		return ratelimit.SourcePostgres
	default:
		return ratelimit.SourceNone
	}
}

// since is when the source last changed.
func (s *stores) since() time.Time {
	redis, pg := s.redisProbe.changed(), s.postgresProbe.changed()
	if s.source() == ratelimit.SourceRedis || redis.After(pg) {
		return redis
	}
	return pg
}

// close ends the connections; nothing may use the stores afterwards.
func (s *stores) close(log *slog.Logger) {
	if s.redis != nil {
		if err := s.redis.Close(); err != nil {
			log.Warn("Redis connections did not close in order", slog.Any("error", err))
		}
	}
	s.pool.Close()
}
