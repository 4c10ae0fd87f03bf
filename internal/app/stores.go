package app

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/pgstore"
	"github.com/pegel-dev/pegel/internal/ratelimit/redisstore"
)

const (
	// redisCalls bounds the calls that Redis works on at one time. There are as many as there are flights, and those that
	// somebody has left before they ended.
	redisCalls = 64
	closeLimit = 2 * time.Second
	// checkEvery is how often Redis' settings are looked at.
	checkEvery = 15 * time.Second
	// evictsWarning is for people, in the log and on /readyz.
	evictsWarning = "Redis forgets counters when its memory is full: set maxmemory-policy noeviction"
)

// stores is everything counters may live in, put together so that the engine sees one Store: what was refused is refused from
// memory; the rest is merged into few calls; each goes to Redis when it is configured, then to Postgres, then to what each limit
// says about a failure. Every store is behind a deadline and a breaker.
type stores struct {
	denials  *ratelimit.DenyCache // what the engine asks
	batcher  *ratelimit.Batcher
	failover *ratelimit.Failover
	local    *ratelimit.Memory
	postgres *pgstore.Store
	pool     *pgxpool.Pool     // decisions only, so that administration never takes their connections
	redis    *redisstore.Store // nil without Redis
	log      *slog.Logger
	metrics  *storeMetrics

	postgresProbe *probe
	redisProbe    *probe // nil without Redis
	evicts        atomic.Bool
}

// openStores makes them; nothing connects before it is used. Flown is told of every call that decisions were merged into.
func openStores(
	ctx context.Context, cfg *Config, now func() time.Time, log *slog.Logger, flown func(charges int, hits int64), metrics *storeMetrics, tracer trace.TracerProvider,
) (*stores, error) {
	s := &stores{log: log, metrics: metrics}
	pool, err := pgstore.PoolConfig(string(cfg.DatabaseURL), cfg.DatabasePoolSize, cfg.DatabaseDecisionTimeout)
	if err != nil {
		return nil, fmt.Errorf("open the decision pool: %w", err)
	}
	if tracer != nil {
		pool.ConnConfig.Tracer = postgres.NewTracer(tracer)
	}
	// The pool lives until it is closed, not as long as a call.
	if s.pool, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), pool); err != nil {
		return nil, fmt.Errorf("open the decision pool: %w", err)
	}
	s.postgres = pgstore.New(s.pool, pgstore.WithTimeout(cfg.DatabaseDecisionTimeout))
	s.postgresProbe = &probe{name: "postgres", ask: s.pool.Ping, now: now, log: log}

	var guards []*ratelimit.Guard
	if cfg.RedisURL != "" {
		s.redis, err = redisstore.New(redisstore.Config{
			URL: string(cfg.RedisURL), Timeout: cfg.RedisTimeout, PoolSize: cfg.RedisPoolSize, Now: now, Tracing: tracer,
		}, log)
		if err != nil {
			s.pool.Close()
			return nil, &SettingError{Name: "PEGEL_REDIS_URL", Reason: err.Error()}
		}
		s.redisProbe = &probe{name: "redis", ask: s.redis.Ping, now: now, log: log}
		guards = append(guards, s.guard(s.redis, redisCalls, cfg.RedisTimeout, now))
	}
	guards = append(guards, s.guard(s.postgres, cfg.DatabasePoolSize, cfg.DatabaseDecisionTimeout, now))
	s.local = ratelimit.NewMemory(ratelimit.MonotonicMicros(now), 0)
	failover := ratelimit.FailoverConfig{Stores: guards, Local: s.local, Now: now, Log: log}
	if s.redis != nil {
		failover.Mirror = pgstore.New(s.pool, pgstore.WithTimeout(mirrorLimit))
		failover.Lives = s.redis.Lives
	}
	s.failover = ratelimit.NewFailover(failover)
	s.batcher = ratelimit.NewBatcher(s.failover, ratelimit.BatcherConfig{
		// What waits longer than a whole flight may take, a hung Redis and a hung Postgres included, would come too late:
		// on_store_failure decides.
		Patience: cfg.RedisTimeout + cfg.DatabaseDecisionTimeout, Now: now, Full: s.failover.Nobody(), Flown: flown,
	})
	s.denials = ratelimit.NewDenyCache(s.batcher, now, 0)
	return s, nil
}

// guard puts a store behind a deadline and a breaker.
func (s *stores) guard(store ratelimit.Store, calls int, timeout time.Duration, now func() time.Time) *ratelimit.Guard {
	return ratelimit.NewGuard(ratelimit.GuardConfig{Store: store, Timeout: timeout, MaxInFlight: calls, Now: now, Log: s.log, Called: s.metrics.called(store.Source())})
}

// sweep gives back the memory of what is over.
func (s *stores) sweep() {
	s.local.Sweep()
	s.denials.Sweep()
}

// watch probes the stores until ctx ends.
func (s *stores) watch(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { s.postgresProbe.run(ctx) })
	if s.redisProbe != nil {
		all.Go(func() { s.redisProbe.run(ctx) })
		all.Go(func() { s.mirror(ctx) })
		all.Go(func() { s.checkRedis(ctx) })
	}
	all.Wait()
}

// checkRedis looks now and then whether the server would forget counters: a warning of /readyz, and one line when it begins.
func (s *stores) checkRedis(ctx context.Context) {
	for pause := probeEvery; sleep(ctx, pause); {
		if s.redisProbe.state() != storeUp {
			continue
		}
		info, err := s.redis.Info(ctx)
		if err != nil {
			continue
		}
		pause = checkEvery
		evicts := info.MaxmemoryPolicy != "" && info.MaxmemoryPolicy != "noeviction"
		if evicts && !s.evicts.Load() {
			s.log.Warn(evictsWarning, slog.String("policy", info.MaxmemoryPolicy))
		}
		s.evicts.Store(evicts)
	}
}

// warnings are what an operator should change although all is well now.
func (s *stores) warnings() []string {
	if s.evicts.Load() {
		return []string{evictsWarning}
	}
	return nil
}

// health is a store as this replica sees it: down when the probe does not reach it or the breaker has given it up.
// Breakers see more than probes (a server that is slow under load, say), and probes see what no traffic has met yet.
func (s *stores) health(source ratelimit.Source, p *probe) string {
	if p == nil {
		return storeUnconfigured
	}
	for _, st := range s.failover.Health().Stores {
		if st.Source == source && st.Breaker == ratelimit.BreakerOpen {
			return storeDown
		}
	}
	return p.state()
}

func (s *stores) redisHealth() string    { return s.health(ratelimit.SourceRedis, s.redisProbe) }
func (s *stores) postgresHealth() string { return s.health(ratelimit.SourcePostgres, s.postgresProbe) }

// source is the store that decides now; SourceNone when neither does.
func (s *stores) source() ratelimit.Source {
	switch {
	case s.redisHealth() == storeUp:
		return ratelimit.SourceRedis
	case s.postgresHealth() == storeUp:
		return ratelimit.SourcePostgres
	default:
		return ratelimit.SourceNone
	}
}

// since is when the source last changed, as far as this replica knows: the latest of what happened to its store and to
// those before it.
func (s *stores) since() time.Time {
	var latest time.Time
	source := s.source()
	for _, st := range s.failover.Health().Stores {
		at := st.Since
		if st.Source == ratelimit.SourceRedis && s.redisProbe.changed().After(at) {
			at = s.redisProbe.changed()
		}
		if st.Source == ratelimit.SourcePostgres && s.postgresProbe.changed().After(at) {
			at = s.postgresProbe.changed()
		}
		if at.After(latest) {
			latest = at
		}
		if st.Source == source {
			break
		}
	}
	return latest
}

// close waits for the calls under way and ends the connections; nothing may use the stores afterwards.
func (s *stores) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, closeLimit)
	defer cancel()
	s.batcher.Close() // its flights end by the deadlines of the stores
	if err := s.failover.Close(ctx); err != nil {
		s.log.Warn("calls of a store were cut", slog.Any("error", err))
	}
	if s.redis != nil {
		if err := s.redis.Close(); err != nil {
			s.log.Warn("Redis connections did not close in order", slog.Any("error", err))
		}
	}
	s.pool.Close()
}
