package pgstore_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/devmode"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/pgstore"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// late is how much later than the store's timeout an answer may come on a busy test machine; the fault itself would last
// for minutes.
const late = 350 * time.Millisecond

// ownServer is a migrated server that the test may break.
func ownServer(t *testing.T) *devmode.Postgres {
	t.Helper()
	server := testenv.PostgresServer(t)
	require.NoError(t, postgres.MigrateUp(t.Context(), server.URL(), slog.New(slog.DiscardHandler)))
	return server
}

// warm decides once on every connection of the pool. It is patient: a deadline would cost the pool a connection.
func warm(t *testing.T, pool *pgxpool.Pool, c ratelimit.Counter) {
	t.Helper()
	s := pgstore.New(pool, pgstore.WithTimeout(patient))
	require.Eventually(t, func() bool {
		var all sync.WaitGroup
		for range 2 * pool.Config().MaxConns {
			all.Go(func() { _ = s.Decide(context.Background(), []ratelimit.Charge{peek(c)}, make([]ratelimit.Outcome, 1)) })
		}
		all.Wait()
		stat := pool.Stat()
		return stat.ConstructingConns() == 0 && stat.TotalConns() >= min(4, pool.Config().MaxConns)
	}, patient, 10*time.Millisecond)
}

// recovers waits until the store decides again.
func recovers(t *testing.T, s *pgstore.Store, c ratelimit.Counter) {
	t.Helper()
	require.Eventually(t, func() bool {
		return s.Decide(t.Context(), []ratelimit.Charge{take(1, 1, c)}, make([]ratelimit.Outcome, 1)) == nil
	}, patient, 20*time.Millisecond)
}

func TestAHungServerAnswersWithinTheTimeout(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	pool := newPool(t, server.URL(), 4)
	s := pgstore.New(pool)
	c := counter(window(ratelimit.SlidingWindowLog, 1_000_000, time.Minute))
	warm(t, pool, c)

	require.NoError(t, server.Pause())
	var all sync.WaitGroup
	for range 20 { // four find a connection, the others wait for one
		all.Go(func() {
			start := time.Now()
			err := s.Decide(t.Context(), []ratelimit.Charge{take(1, 1, c)}, make([]ratelimit.Outcome, 1))
			if took := time.Since(start); took > pgstore.DefaultTimeout+late {
				t.Errorf("took %v", took)
			}
			if !errors.Is(err, ratelimit.ErrUnavailable) {
				t.Errorf("got %v", err)
			}
		})
	}
	all.Wait()

	// A pool that has never connected is no slower.
	cold := pgstore.New(newPool(t, server.URL(), 4))
	start := time.Now()
	err := cold.Decide(t.Context(), []ratelimit.Charge{take(1, 1, c)}, make([]ratelimit.Outcome, 1))
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	require.Less(t, time.Since(start), pgstore.DefaultTimeout+late)

	require.NoError(t, server.Resume())
	recovers(t, s, c)
	recovers(t, cold, c)
}

func TestAStoppedServerIsUnavailableAndComesBack(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	pool := newPool(t, server.URL(), 4)
	s := pgstore.New(pool)
	c := counter(window(ratelimit.SlidingWindowLog, 1_000_000, time.Hour))
	warm(t, pool, c)
	before := one(t, pgstore.New(pool, pgstore.WithTimeout(patient)), take(7, 1, c)).Counters[0].Used

	require.NoError(t, server.Stop())
	for range 10 {
		start := time.Now()
		err := s.Decide(t.Context(), []ratelimit.Charge{take(1, 1, c)}, make([]ratelimit.Outcome, 1))
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		require.Less(t, time.Since(start), pgstore.DefaultTimeout+late)
	}
	require.NoError(t, server.Start())
	recovers(t, s, c)
	require.Equal(t, before+1, one(t, pgstore.New(pool, pgstore.WithTimeout(patient)), peek(c)).Counters[0].Used, "usage survives a restart")
}

func TestTerminatedSessionsCostAtMostOneErrorEach(t *testing.T) {
	t.Parallel()
	const size = 4
	url := testenv.Postgres(t)
	pool := newPool(t, url, size)
	s := pgstore.New(pool, pgstore.WithTimeout(patient))
	c := counter(window(ratelimit.SlidingWindowLog, 1_000_000, time.Hour))
	warm(t, pool, c)

	for range 3 {
		admin, err := pgx.Connect(t.Context(), url)
		require.NoError(t, err)
		_, err = admin.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'`)
		require.NoError(t, err)
		require.NoError(t, admin.Close(t.Context()))
		failures := 0
		for range 100 {
			if err := s.Decide(t.Context(), []ratelimit.Charge{take(1, 1, c)}, make([]ratelimit.Outcome, 1)); err != nil {
				require.ErrorIs(t, err, ratelimit.ErrUnavailable)
				failures++
			}
		}
		require.LessOrEqual(t, failures, size)
	}
}

func TestAReadOnlyServerIsUnavailableAndItsConnectionsGo(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	pool := newPool(t, server.URL(), 4)
	s := pgstore.New(pool, pgstore.WithTimeout(patient))
	c := counter(window(ratelimit.SlidingWindowLog, 1_000_000, time.Hour))
	warm(t, pool, c)
	admin, err := pgx.Connect(t.Context(), server.URL())
	require.NoError(t, err)
	defer admin.Close(context.Background())
	set := func(value string) {
		_, err := admin.Exec(t.Context(), `ALTER SYSTEM SET default_transaction_read_only = `+value)
		require.NoError(t, err)
		_, err = admin.Exec(t.Context(), `SELECT pg_reload_conf()`)
		require.NoError(t, err)
	}
	set("on")
	require.Eventually(t, func() bool {
		for range 2 * pool.Config().MaxConns { // so that no session is left that has not read the setting
			if s.Decide(t.Context(), []ratelimit.Charge{take(1, 1, c)}, make([]ratelimit.Outcome, 1)) == nil {
				return false
			}
		}
		return true
	}, patient, 10*time.Millisecond)
	made := pool.Stat().NewConnsCount()
	for range 20 {
		err := s.Decide(t.Context(), []ratelimit.Charge{take(1, 1, c)}, make([]ratelimit.Outcome, 1))
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		require.ErrorContains(t, err, "25006")
	}
	require.GreaterOrEqual(t, pool.Stat().NewConnsCount()-made, int64(15), "each refusal ends its connection, so that the next dial can find a writable server")
	set("off")
	recovers(t, s, c)
}

func TestAWaitForALockEndsOnTheServerAndKeepsTheConnection(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	pool := newPool(t, url, 4)
	s := pgstore.New(pool)
	c := counter(window(ratelimit.SlidingWindowLog, 1_000_000, time.Hour))
	warm(t, pool, c)

	blocker, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer blocker.Close(context.Background())
	tx, err := blocker.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `LOCK TABLE rate_limit_windows IN ACCESS EXCLUSIVE MODE`)
	require.NoError(t, err)
	made := pool.Stat().NewConnsCount()
	inTime := 0
	for range 5 {
		start := time.Now()
		err := s.Decide(t.Context(), []ratelimit.Charge{take(1, 1, c)}, make([]ratelimit.Outcome, 1))
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		require.Less(t, time.Since(start), pgstore.DefaultTimeout+late)
		if sqlState(err) == "55P03" {
			inTime++
		}
	}
	require.Positive(t, inTime, "the server's own limit comes before the caller's")
	require.LessOrEqual(t, pool.Stat().NewConnsCount()-made, int64(5-inTime))
	require.NoError(t, tx.Rollback(t.Context()))
	recovers(t, s, c)
}

func TestAPoolWithoutAFreeConnectionFailsAtItsOwnBudget(t *testing.T) {
	t.Parallel()
	pool := newPool(t, testenv.Postgres(t), 4)
	s := pgstore.New(pool)
	for range 4 {
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
	}
	start := time.Now()
	err := s.Decide(t.Context(), []ratelimit.Charge{take(1, 1, counter(window(ratelimit.FixedWindow, 1, time.Hour)))}, make([]ratelimit.Outcome, 1))
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	require.GreaterOrEqual(t, time.Since(start), pgstore.DefaultTimeout)
	require.Less(t, time.Since(start), pgstore.DefaultTimeout+late)
}

func TestTheCallersCancellationIsNotTheStoresFailure(t *testing.T) {
	t.Parallel()
	s, pool := newStore(t)
	c := counter(window(ratelimit.SlidingWindowLog, 10, time.Hour))
	one(t, s, peek(c))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := s.Decide(ctx, []ratelimit.Charge{take(1, 1, c)}, make([]ratelimit.Outcome, 1))
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ratelimit.ErrUnavailable)

	// The caller's deadline is shorter than the store's: that is a store too slow for it.
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(context.Background())) }()
	_, err = tx.Exec(t.Context(), `LOCK TABLE rate_limit_windows IN ACCESS EXCLUSIVE MODE`)
	require.NoError(t, err)
	ctx, cancel = context.WithTimeout(t.Context(), 60*time.Millisecond)
	defer cancel()
	start := time.Now()
	require.ErrorIs(t, s.Decide(ctx, []ratelimit.Charge{take(1, 1, c)}, make([]ratelimit.Outcome, 1)), ratelimit.ErrUnavailable)
	require.Less(t, time.Since(start), 60*time.Millisecond+late)
}

func TestNoSchemaIsUnavailable(t *testing.T) {
	t.Parallel()
	s := pgstore.New(newPool(t, testenv.EmptyPostgres(t), 4), pgstore.WithTimeout(patient))
	err := s.Decide(t.Context(), []ratelimit.Charge{take(1, 1, counter(window(ratelimit.FixedWindow, 1, time.Hour)))}, make([]ratelimit.Outcome, 1))
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
}

func TestAStricterIsolationIsRefusedInsteadOfMiscounted(t *testing.T) {
	t.Parallel()
	cfg, err := pgstore.PoolConfig(testenv.Postgres(t)+"&default_transaction_isolation=serializable", 4, pgstore.DefaultTimeout)
	require.NoError(t, err)
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer pool.Close()
	s := pgstore.New(pool, pgstore.WithTimeout(patient))
	err = s.Decide(t.Context(), []ratelimit.Charge{take(1, 1, counter(window(ratelimit.FixedWindow, 1, time.Hour)))}, make([]ratelimit.Outcome, 1))
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	require.ErrorContains(t, err, "read committed")
}

func TestABadURLIsNotQuoted(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"postgres://u:canary@h:port/db", "postgres://u:can%zzary@h/db", "host=h password=canary port=x", "postgres://u:canary@h/db?sslmode=canary"} {
		_, err := pgstore.PoolConfig(url, 4, pgstore.DefaultTimeout)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "canary")
	}
}
