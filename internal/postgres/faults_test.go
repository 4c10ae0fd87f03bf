package postgres_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// within runs f and fails the test when it takes longer than a caller may wait.
func within(t *testing.T, f func() error) error {
	t.Helper()
	start := time.Now()
	err := f()
	require.Less(t, time.Since(start), 2*time.Second)
	return err
}

func TestHungPostgresIsUnavailableInTime(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t)
	require.NoError(t, postgres.MigrateUp(t.Context(), server.URL(), quiet()))
	b := benchOn(t, server.URL())
	b.havePlan(t, "light", 10)
	require.NoError(t, server.Pause())
	calls := map[string]func() error{
		"read":   func() error { _, err := b.Plan(t.Context(), "light"); return err },
		"write":  func() error { return b.SetMode(t.Context(), alice, ratelimit.Shadow) },
		"poll":   func() error { _, err := b.Version(t.Context()); return err },
		"policy": func() error { _, err := b.AddressPolicy(t.Context()); return err },
	}
	for name, call := range calls {
		require.ErrorIs(t, within(t, call), tenants.ErrUnavailable, name)
	}
	// Many at once wait no longer: nobody queues behind anybody.
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			start := time.Now()
			_, err := b.Tenant(t.Context(), "school-17")
			if !errorIs(err, tenants.ErrUnavailable) || time.Since(start) > 2*time.Second {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, server.Resume())
	require.Eventually(t, func() bool { return calls["read"]() == nil && calls["write"]() == nil }, 10*time.Second, 50*time.Millisecond)
}

func TestStoppedPostgresIsUnavailableAndComesBack(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t)
	require.NoError(t, postgres.MigrateUp(t.Context(), server.URL(), quiet()))
	b := benchOn(t, server.URL())
	b.havePlan(t, "light", 10)
	require.NoError(t, server.Stop())
	read := func() error { _, err := b.Plan(t.Context(), "light"); return err }
	require.ErrorIs(t, within(t, read), tenants.ErrUnavailable)
	require.ErrorIs(t, within(t, func() error { return b.SetMode(t.Context(), alice, ratelimit.Shadow) }), tenants.ErrUnavailable)
	require.NoError(t, server.Start())
	require.Eventually(t, func() bool { return read() == nil }, 10*time.Second, 50*time.Millisecond)
}

func TestBlackHoleAtTheStart(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts into its backlog and never answers
	require.NoError(t, err)
	defer l.Close()
	b := benchOn(t, "postgres://user:canary@"+l.Addr().String()+"/db?sslmode=disable")
	err = within(t, func() error { _, err := b.Version(t.Context()); return err })
	require.ErrorIs(t, err, tenants.ErrUnavailable)
	require.NotContains(t, err.Error(), "canary")
}

func TestFullPoolFailsTheNextCallerInTime(t *testing.T) {
	t.Parallel()
	b := benchOn(t, testenv.Postgres(t))
	for range int(b.pool.Config().MaxConns) {
		conn, err := b.pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
	}
	require.ErrorIs(t, within(t, func() error { _, err := b.Version(t.Context()); return err }), tenants.ErrUnavailable)
}

func TestUnmigratedDatabaseIsUnavailable(t *testing.T) {
	t.Parallel()
	b := benchOn(t, testenv.EmptyPostgres(t))
	_, err := b.Version(t.Context())
	require.ErrorIs(t, err, tenants.ErrUnavailable)
	require.ErrorContains(t, err, "not migrated")
}

func TestCallersOwnCancellationIsNotUnavailable(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Version(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, tenants.ErrUnavailable)
	require.NotErrorIs(t, b.SetMode(ctx, alice, ratelimit.Shadow), tenants.ErrUnavailable)
}

// B045: sessions on a server that became read-only are dropped, and writes work soon after it no longer is.
func TestReadOnlyServer(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t)
	require.NoError(t, postgres.MigrateUp(t.Context(), server.URL(), quiet()))
	b := benchOn(t, server.URL())
	require.NoError(t, b.SetMode(t.Context(), alice, ratelimit.Shadow))
	_, err := b.pool.Exec(t.Context(), `SET default_transaction_read_only = on`)
	require.NoError(t, err)
	// Every session of the pool gets it, those to come too.
	b.exec(t, `ALTER SYSTEM SET default_transaction_read_only = on`)
	b.exec(t, `SELECT pg_reload_conf()`)
	require.Eventually(t, func() bool { return errorIs(b.SetMode(t.Context(), alice, ratelimit.Enforce), tenants.ErrUnavailable) }, 5*time.Second, 20*time.Millisecond)
	_, err = b.Mode(t.Context())
	require.NoError(t, err, "reading goes on")
	conn, err := pgx.Connect(t.Context(), server.URL())
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(t.Context(), `ALTER SYSTEM RESET default_transaction_read_only`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `SELECT pg_reload_conf()`)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return b.SetMode(t.Context(), alice, ratelimit.Enforce) == nil }, 10*time.Second, 20*time.Millisecond)
}

// B073: sessions killed in the middle of changes leave no change without its entry and no entry without its change.
func TestKilledSessionsLeaveChangeAndEntryTogether(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.havePlan(t, "light", 10)
	b.haveTenant(t, "school-17", "light")
	killer := session(t, b.url)
	var stop atomic.Bool
	var failed atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !stop.Load() {
				_, err := b.ResetTenant(t.Context(), alice, "school-17")
				if err != nil {
					failed.Add(1)
					if !errorIs(err, tenants.ErrUnavailable) {
						t.Error(err)
					}
				}
			}
		})
	}
	require.Eventually(t, func() bool {
		_, err := killer.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'`)
		require.NoError(t, err)
		return failed.Load() >= 100
	}, 60*time.Second, time.Millisecond)
	stop.Store(true)
	wg.Wait()
	resets := b.number(t, `SELECT count(*) FROM audit_log WHERE action = 'tenant.reset'`)
	require.Equal(t, resets, b.number(t, `SELECT generation FROM tenants`))
	require.Equal(t, resets+2, b.number(t, `SELECT version - 1 FROM config_version`), "the plan, the tenant and every reset raised the version once")
	require.Positive(t, resets)
}
