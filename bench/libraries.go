package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/pgstore"
	"github.com/pegel-dev/pegel/internal/ratelimit/redisstore"
)

const (
	counterCount = 1000
	wide         = 1_000_000_000 // a quota that no run uses up
	// patient is every store's timeout: a slow call must show as slow, not as failed.
	patient    = 5 * time.Second
	redisConns = 100
	pgConns    = 16
)

// libraries are the limiters that run in this process, with the stores they use.
type libraries struct {
	world      *world
	client     *redis.Client
	rueidis    rueidis.Client
	rueidisLog limiter
	store      *redisstore.Store
	merged     ratelimit.Store // store behind the decorators that the service has
	pool       *pgxpool.Pool
	plain      *pgxpool.Pool // like pool, for the plain upsert
	pg         *pgstore.Store
	memory     *ratelimit.Memory
	began      time.Time
}

func (w *world) openLibraries(ctx context.Context) (l *libraries, err error) {
	l = &libraries{world: w, began: time.Now()}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	l.client = redis.NewClient(&redis.Options{Addr: w.redis.Addr(), PoolSize: redisConns, DisableIdentity: true})
	if l.store, err = redisstore.New(redisstore.Config{URL: w.redis.URL(), Timeout: patient, PoolSize: redisConns, Now: time.Now}, slog.New(slog.DiscardHandler)); err != nil {
		return l, err
	}
	l.merged = ratelimit.NewDenyCache(ratelimit.NewBatcher(l.store, ratelimit.BatcherConfig{}), time.Now, 0)
	url, err := w.database(ctx, "library")
	if err != nil {
		return l, err
	}
	if err := postgres.MigrateUp(ctx, url, slog.New(slog.DiscardHandler)); err != nil {
		return l, err
	}
	cfg, err := pgstore.PoolConfig(url, pgConns, patient)
	if err != nil {
		return l, err
	}
	if l.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return l, err
	}
	plain := cfg.Copy()
	plain.ConnConfig.RuntimeParams["synchronous_commit"] = "off" // as pgstore does for itself
	if l.plain, err = pgxpool.NewWithConfig(ctx, plain); err != nil {
		return l, err
	}
	l.pg = pgstore.New(l.pool, pgstore.WithTimeout(patient))
	l.memory = ratelimit.NewMemory(func() int64 { return time.Since(l.began).Microseconds() }, 0)
	_, err = l.pool.Exec(ctx, `CREATE TABLE plain (key text, window_start timestamptz, count bigint NOT NULL, PRIMARY KEY (key, window_start))`)
	return l, err
}

func (l *libraries) close() {
	var errs []error
	if l.client != nil {
		errs = append(errs, l.client.Close())
	}
	if l.rueidis != nil {
		l.rueidis.Close()
	}
	if l.store != nil {
		errs = append(errs, l.store.Close())
	}
	for _, pool := range []*pgxpool.Pool{l.pool, l.plain} {
		if pool != nil {
			pool.Close()
		}
	}
	if err := errors.Join(errs...); err != nil {
		progress("closing connections: %v", err)
	}
}

// limiter decides about one hit on a key against a quota per minute.
type limiter func(ctx context.Context, key string, quota int64) (allowed bool, err error)

// peers are the library peers.
func (l *libraries) peers(ctx context.Context) ([]*peer, error) {
	onRedisCPU := map[string]meter{"client": ofSelf, "redis": l.world.redisCPU}
	onPGCPU := map[string]meter{"client": ofSelf, "postgres": l.world.pgCPU}
	insideCPU := map[string]meter{"client": ofSelf}
	others, err := l.libraryPeers(ctx)
	if err != nil {
		return nil, err
	}
	l.rueidisLog = others[len(others)-1].decide
	var peers []*peer
	for _, table := range []struct {
		name string
		keys int
	}{{onRedis, counterCount}, {onManyKeys, 100 * counterCount}, {onHotKey, 1}} {
		for i, o := range others {
			if !o.notHot || table.keys > 1 {
				peers = append(peers, &peer{table: table.name, name: o.name, reference: i == len(others)-1, cpu: onRedisCPU, caller: single(o.decide, table.keys, wide)})
			}
		}
		peers = append(peers,
			&peer{table: table.name, name: "pegel, sliding log", cpu: onRedisCPU, caller: charges(l.store, log(), table.keys, 1, 1)},
			&peer{table: table.name, name: "pegel, token bucket", cpu: onRedisCPU, caller: charges(l.store, bucket(), table.keys, 1, 1)},
			&peer{table: table.name, name: "pegel, sliding log, merged", cpu: onRedisCPU, caller: charges(l.merged, log(), table.keys, 1, 1)},
			&peer{table: table.name, name: "pegel, sliding log, 16 a call", decisions: 16, cpu: onRedisCPU, caller: charges(l.store, log(), table.keys, 16, 1)},
			&peer{table: table.name, name: "denied: plain sliding log, rueidis", cpu: onRedisCPU, caller: single(l.rueidisLog, table.keys, 0)},
			&peer{table: table.name, name: "denied: pegel, sliding log", cpu: onRedisCPU, caller: charges(l.store, logOf(0), table.keys, 1, 0)},
			&peer{table: table.name, name: "denied: pegel, sliding log, merged", cpu: onRedisCPU, caller: charges(l.merged, logOf(0), table.keys, 1, 0)},
		)
	}
	peers = append(peers, l.watchedPeers(ctx)...)
	proxies, err := l.proxyPeers(ctx)
	if err != nil {
		return nil, err
	}
	peers = append(peers, proxies...)
	return append(peers,
		&peer{table: onPG, name: "plain upsert, fixed window", reference: true, cpu: onPGCPU, caller: single(l.plainUpsert, counterCount, wide)},
		&peer{table: onPG, name: "pegel, segments", cpu: onPGCPU, caller: charges(l.pg, log(), counterCount, 1, 1)},
		&peer{table: onPG, name: "pegel, segments, one counter", cpu: onPGCPU, caller: charges(l.pg, log(), 1, 1, 1)},
		&peer{table: onPG, name: "pegel, segments, 16 a call", decisions: 16, cpu: onPGCPU, caller: charges(l.pg, log(), counterCount, 16, 1)},
		&peer{table: inside, name: "pegel, token bucket", reference: true, decisions: 100, cpu: insideCPU, caller: charges(l.memory, bucket(), counterCount, 100, 1)},
		&peer{table: inside, name: "pegel, sliding log", decisions: 100, cpu: insideCPU, caller: charges(l.memory, log(), counterCount, 100, 1)},
	), nil
}

// charges makes callers that send so many charges a call to a store of ours and want so many hits of each admitted.
func charges(s ratelimit.Store, l *ratelimit.Limit, keys, perCall int, admitted int64) func(context.Context, int) (func() error, func(), error) {
	counters := make([][]ratelimit.Counter, keys)
	for i := range counters {
		counters[i] = []ratelimit.Counter{counter(fmt.Sprintf("bench-%d", i), l)}
	}
	return func(ctx context.Context, n int) (func() error, func(), error) {
		i := n * 7919
		batch, out := make([]ratelimit.Charge, perCall), make([]ratelimit.Outcome, perCall)
		call := func() error {
			for j := range batch {
				i++
				batch[j] = ratelimit.Charge{Kind: ratelimit.Take, Hits: 1, Cost: 1, Counters: counters[i*31%keys]}
			}
			if err := s.Decide(ctx, batch, out); err != nil {
				return err
			}
			for j := range out {
				if out[j].Err != nil || out[j].Admitted != admitted {
					return errors.Join(fmt.Errorf("%d hits admitted, not %d", out[j].Admitted, admitted), out[j].Err)
				}
			}
			return nil
		}
		return call, func() {}, nil
	}
}

func counter(group string, l *ratelimit.Limit) ratelimit.Counter {
	return ratelimit.Counter{Key: ratelimit.CounterKey(ratelimit.Subject{Group: group, Scope: l.Scope}, l), Limit: l}
}

func log() *ratelimit.Limit { return logOf(wide) }

func logOf(quota int64) *ratelimit.Limit {
	return &ratelimit.Limit{
		Name: "bench", Scope: ratelimit.ScopeTenant, Algorithm: ratelimit.SlidingWindowLog, Quota: quota, Window: time.Minute, Cost: 1,
	}
}

func bucket() *ratelimit.Limit {
	return &ratelimit.Limit{
		Name: "bench", Scope: ratelimit.ScopeTenant, Algorithm: ratelimit.TokenBucket, Quota: wide, Cost: 1,
		Refill: ratelimit.Rate{Units: wide, Every: time.Minute},
	}
}

// unique keeps hits of one microsecond apart.
var unique atomic.Int64

// plainUpsert is a fixed window in one statement, without waits or a second limit, sent and committed in the same way as
// pgstore's.
func (l *libraries) plainUpsert(ctx context.Context, key string, quota int64) (bool, error) {
	var count int64
	err := l.plain.QueryRow(ctx, `INSERT INTO plain AS p (key, window_start, count) VALUES ($1, date_trunc('minute', now()), 1)
		ON CONFLICT (key, window_start) DO UPDATE SET count = p.count + 1 WHERE p.count < $2::bigint RETURNING count`, key, quota).Scan(&count)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// exactness lets 64 callers make 4,000 calls at a quota of 1,000 and counts what gets through.
func (l *libraries) exactness(ctx context.Context, out io.Writer) error {
	const quota, callers, each = 1000, 64, 4000 / 64
	ours := func(s ratelimit.Store) limiter {
		return func(ctx context.Context, key string, quota int64) (bool, error) {
			answer := make([]ratelimit.Outcome, 1)
			err := s.Decide(ctx, []ratelimit.Charge{{Kind: ratelimit.Take, Hits: 1, Cost: 1, Counters: []ratelimit.Counter{counter(key, logOf(quota))}}}, answer)
			return answer[0].Admitted == 1, errors.Join(err, answer[0].Err)
		}
	}
	fmt.Fprintf(out, "\nAdmitted of %d calls by %d callers at a quota of %d a minute, on one counter.\n\n", callers*each, callers, quota)
	for _, p := range []struct {
		name   string
		decide limiter
	}{
		{"read, decide, write (sorted set)", l.readDecideWrite},
		{"redis_rate (GCRA)", l.redisRate()},
		{"plain sliding log, rueidis", l.rueidisLog},
		{"pegel, sliding log on Redis", ours(l.store)},
		{"pegel, segments on Postgres", ours(l.pg)},
	} {
		var admitted atomic.Int64
		errs := make([]error, callers)
		began := time.Now()
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for range each {
					allowed, err := p.decide(ctx, "exactness", quota)
					if err != nil {
						errs[i] = err
						return
					}
					if allowed {
						admitted.Add(1)
					}
				}
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintf(out, "%8s in %4.1f s   %s\n", grouped(float64(admitted.Load())), time.Since(began).Seconds(), p.name)
	}
	fmt.Fprintln(out, "\n(A GCRA or token bucket also hands out what flows in meanwhile: 1,000 a minute is 16.7 a second.)")
	return nil
}
