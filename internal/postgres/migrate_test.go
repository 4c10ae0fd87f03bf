package postgres_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/testenv"
	"github.com/pegel-dev/pegel/migrations"
)

// session is one plain connection, for what a test does behind the runner's back.
func session(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// schemaOf lists every column of a database in order.
func schemaOf(t *testing.T, url string) string {
	t.Helper()
	var out string
	err := session(t, url).QueryRow(t.Context(), `
		SELECT COALESCE(string_agg(table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable, E'\n' ORDER BY table_name, ordinal_position), '')
		FROM information_schema.columns WHERE table_schema = 'public'`).Scan(&out)
	require.NoError(t, err)
	return out
}

func TestFiveReplicasRaceOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	want := schemaOf(t, testenv.Postgres(t))
	for round := range 10 {
		url := testenv.EmptyPostgres(t)
		errs := make([]error, 5)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() {
				errs[i] = postgres.MigrateUp(t.Context(), url, quiet())
				if errs[i] == nil {
					pool, err := postgres.NewPool(url, postgres.PoolOptions{MaxConns: 2})
					if err != nil {
						errs[i] = err
						return
					}
					defer pool.Close()
					errs[i] = postgres.NewRepository(pool, postgres.WithAnswerWithin(time.Minute)).InstallDefaults(t.Context())
				}
			})
		}
		wg.Wait()
		for _, err := range errs {
			require.NoError(t, err, "round %d", round)
		}
		require.Equal(t, want, schemaOf(t, url))
		b := benchOn(t, url)
		require.EqualValues(t, 1, b.number(t, `SELECT count(*) FROM schema_migrations WHERE NOT dirty`))
		require.EqualValues(t, 3, b.number(t, `SELECT count(*) FROM plans`))
		require.EqualValues(t, 3, b.number(t, `SELECT count(*) FROM address_limits`))
		require.EqualValues(t, 4, b.number(t, `SELECT count(*) FROM audit_log`), "three plans and the policy, once each")
	}
}

func TestStatusAndDown(t *testing.T) {
	t.Parallel()
	url := testenv.EmptyPostgres(t)
	status, err := postgres.MigrateStatus(t.Context(), url)
	require.NoError(t, err)
	require.Zero(t, status.Version)
	steps, err := fs.Glob(migrations.FS, "*.up.sql")
	require.NoError(t, err)
	require.Len(t, status.Pending, len(steps), "an untouched database has every step before it")
	require.Equal(t, "000001_configuration", status.Pending[0])

	require.NoError(t, postgres.MigrateUp(t.Context(), url, quiet()))
	status, err = postgres.MigrateStatus(t.Context(), url)
	require.NoError(t, err)
	require.Equal(t, status.Latest, status.Version)
	require.Empty(t, status.Pending)

	require.NoError(t, postgres.MigrateDown(t.Context(), url, len(steps)))
	require.Equal(t, "schema_migrations.version bigint NO\nschema_migrations.dirty boolean NO", schemaOf(t, url), "every step undoes what it did")
	require.ErrorContains(t, postgres.MigrateDown(t.Context(), url, 1), "no step is left")
	require.NoError(t, postgres.MigrateUp(t.Context(), url, quiet()))
}

func TestDirtyMarkStopsWithOneClearMessage(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	conn := session(t, url)
	_, err := conn.Exec(t.Context(), `UPDATE schema_migrations SET version = 2, dirty = true`)
	require.NoError(t, err)
	before := schemaOf(t, url)

	err = postgres.MigrateUp(t.Context(), url, quiet())
	var dirty *postgres.DirtyError
	require.ErrorAs(t, err, &dirty)
	require.Contains(t, err.Error(), "000002_credentials")
	require.NotContains(t, err.Error(), "\n")
	require.Equal(t, before, schemaOf(t, url))
	var still bool
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT dirty FROM schema_migrations`).Scan(&still))
	require.True(t, still, "never forced")
}

func TestSchemaNewerThanTheBinary(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	_, err := session(t, url).Exec(t.Context(), `UPDATE schema_migrations SET version = 999`)
	require.NoError(t, err)
	var log bytes.Buffer
	require.NoError(t, postgres.MigrateUp(t.Context(), url, slog.New(slog.NewTextHandler(&log, nil))))
	require.Contains(t, log.String(), "newer than this binary")
	status, err := postgres.MigrateStatus(t.Context(), url)
	require.NoError(t, err)
	require.True(t, status.Newer())
	require.EqualValues(t, 999, status.Version)
}

// stepsWith are the real steps and one more.
func stepsWith(t *testing.T, up string) (fs.FS, string) {
	t.Helper()
	entries, err := fs.ReadDir(migrations.FS, ".")
	require.NoError(t, err)
	steps := fstest.MapFS{}
	for _, e := range entries {
		raw, err := fs.ReadFile(migrations.FS, e.Name())
		require.NoError(t, err)
		steps[e.Name()] = &fstest.MapFile{Data: raw}
	}
	steps["000900_extra.up.sql"] = &fstest.MapFile{Data: []byte(up)}
	steps["000900_extra.down.sql"] = &fstest.MapFile{Data: []byte("DROP TABLE extra;")}
	return steps, "000900_extra"
}

func TestFailedStepLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	bad, _ := stepsWith(t, "CREATE TABLE extra (id bigint);\nSELECT nonsense();")
	err := postgres.MigrateUpFrom(t.Context(), url, bad, quiet())
	require.ErrorContains(t, err, "nonsense")
	require.ErrorContains(t, err, "line 2")
	status, err := postgres.MigrateStatusFrom(t.Context(), url, bad)
	require.NoError(t, err)
	require.False(t, status.Dirty, "step and mark are one transaction")
	require.Equal(t, []string{"000900_extra"}, status.Pending)

	good, _ := stepsWith(t, "CREATE TABLE extra (id bigint);")
	require.NoError(t, postgres.MigrateUpFrom(t.Context(), url, good, quiet()))
	require.Contains(t, schemaOf(t, url), "extra.id")
}

func TestKilledMidStepTheNextStartFinishes(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	conn := session(t, url)
	slow, name := stepsWith(t, "CREATE TABLE extra (id bigint); SELECT pg_sleep(60);")
	done := make(chan error, 1)
	go func() { done <- postgres.MigrateUpFrom(t.Context(), url, slow, quiet()) }()
	require.Eventually(t, func() bool {
		tag, err := conn.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND state = 'active' AND pid <> pg_backend_pid() AND datname = current_database()`)
		return err == nil && tag.RowsAffected() > 0
	}, 20*time.Second, 20*time.Millisecond)
	require.Error(t, <-done)
	status, err := postgres.MigrateStatusFrom(t.Context(), url, slow)
	require.NoError(t, err)
	require.False(t, status.Dirty)
	require.Equal(t, []string{name}, status.Pending)

	quick, _ := stepsWith(t, "CREATE TABLE extra (id bigint);")
	require.NoError(t, postgres.MigrateUpFrom(t.Context(), url, quick, quiet()))
	require.Contains(t, schemaOf(t, url), "extra.id")
}

func TestCancellingEndsAStepAtOnce(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	conn := session(t, url)
	slow, _ := stepsWith(t, "SELECT pg_sleep(60);")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- postgres.MigrateUpFrom(ctx, url, slow, quiet()) }()
	require.Eventually(t, func() bool {
		var n int
		err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid() AND datname = current_database()`).Scan(&n)
		return err == nil && n > 0
	}, 20*time.Second, 20*time.Millisecond)
	cancel()
	select {
	case err := <-done:
		require.ErrorIs(t, err, context.Canceled)
	case <-time.After(10 * time.Second):
		t.Fatal("the step went on")
	}
}

func TestStepWaitingForALockDoesNotBlockServingReplicas(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.havePlan(t, "light", 10)
	holder, err := b.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = holder.Exec(t.Context(), `SELECT * FROM plans`) // a long-running reader
	require.NoError(t, err)

	steps, _ := stepsWith(t, "ALTER TABLE plans ADD COLUMN extra text;")
	var log lockedBuffer
	done := make(chan error, 1)
	go func() {
		done <- postgres.MigrateUpFrom(t.Context(), b.url, steps, slog.New(slog.NewTextHandler(&log, nil)))
	}()
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "waits for a lock") }, 20*time.Second, 20*time.Millisecond)

	// The step queues again and again, and each time lets go: a reader gets through within the lock timeout and a bit.
	require.Eventually(t, func() bool {
		_, err := b.Plan(t.Context(), "light")
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, holder.Rollback(t.Context()))
	require.NoError(t, <-done, "the step goes through once the lock is free")
	require.Contains(t, schemaOf(t, b.url), "plans.extra")
}

func TestBadDatabaseURLKeepsItsSecret(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"postgres://user:canary@%zz/db", "postgres://user:canary@127.0.0.1:1/db?connect_timeout=1"} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		err := postgres.MigrateUp(ctx, url, quiet())
		cancel()
		require.Error(t, err)
		require.NotContains(t, fmt.Sprintf("%v %+v", err, err), "canary")
	}
	_, err := postgres.NewPool("postgres://user:canary@%zz/db", postgres.PoolOptions{})
	require.Error(t, err)
	require.NotContains(t, err.Error(), "canary")
}

func TestEveryStepHasADown(t *testing.T) {
	t.Parallel()
	entries, err := fs.ReadDir(migrations.FS, ".")
	require.NoError(t, err)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	for _, name := range names {
		if up, ok := strings.CutSuffix(name, ".up.sql"); ok {
			require.True(t, slices.Contains(names, up+".down.sql"), up)
		}
	}
}

// lockedBuffer takes log lines from another goroutine.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
