package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"time"

	"github.com/golang-migrate/migrate/v4"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pegel-dev/pegel/migrations"
)

const (
	// lockTimeout bounds how long a step waits for a table lock, and so how long serving replicas queue behind it.
	lockTimeout = 3 * time.Second
	// lockRetryPause is the longest pause after a lock could not be had; the actual one is random.
	lockRetryPause = 500 * time.Millisecond
	// maxMigrationWait ends the tries when the locks never come free, whatever the caller's context says.
	maxMigrationWait = 5 * time.Minute
	// maxMigration ends all of it: a step that reads a large table may take minutes, one that hears nothing any more must not hang.
	maxMigration = time.Hour
)

// DirtyError is an interrupted migration step that only a person can judge. Pegel's own steps are one transaction each and
// never leave it behind; another tool or a hand-made change can.
type DirtyError struct {
	Version uint
	Name    string
}

func (e *DirtyError) Error() string {
	return fmt.Sprintf("migration %06d_%s is marked as interrupted (dirty): check the schema, finish or undo that step by hand, "+
		"then run UPDATE schema_migrations SET dirty = false; nothing was changed", e.Version, e.Name)
}

// MigrationStatus is where a database stands.
type MigrationStatus struct {
	Version uint // 0: nothing applied
	Latest  uint // the newest step this binary knows
	Dirty   bool
	Pending []string // names of the steps still to apply, in order
}

// Newer reports whether a later release has migrated the database.
func (s MigrationStatus) Newer() bool { return s.Version > s.Latest }

// MigrateUp applies every pending step and returns when the schema is at least as new as this binary. Any number of
// replicas may call it at once: each step runs under an advisory lock, in one transaction with its mark, so a process
// that is killed leaves either the whole step or nothing. A step that cannot get its locks within 3 s lets go of what it
// has and is tried again, for 5 min at most; all of it ends after an hour. A dirty mark is a *DirtyError and changes nothing. A schema newer than the binary
// is logged and accepted: each release works on the next one's schema. Cancelling ctx ends it at once.
func MigrateUp(ctx context.Context, databaseURL string, log *slog.Logger) error {
	return migrateUp(ctx, databaseURL, migrations.FS, log)
}

// MigrateDown undoes the last steps, newest first.
func MigrateDown(ctx context.Context, databaseURL string, steps int) error {
	for range steps {
		if err := oneStep(ctx, databaseURL, migrations.FS, -1, slog.New(slog.DiscardHandler)); err != nil {
			if errors.Is(err, os.ErrNotExist) {
				return errors.New("migrate down: no step is left to undo")
			}
			return fmt.Errorf("migrate down: %w", err)
		}
	}
	return nil
}

// MigrateStatus reads where the database stands and changes nothing.
func MigrateStatus(ctx context.Context, databaseURL string) (MigrationStatus, error) {
	return migrateStatus(ctx, databaseURL, migrations.FS)
}

func migrateUp(ctx context.Context, databaseURL string, steps fs.FS, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, maxMigration)
	defer cancel()
	waiting, cancel := context.WithTimeout(ctx, maxMigrationWait)
	defer cancel()
	for {
		err := oneStep(ctx, databaseURL, steps, 1, log)
		switch {
		case err == nil: // applied, or waited for another replica's
		case errors.Is(err, os.ErrNotExist): // no later step in this binary
			return reportSchema(ctx, databaseURL, steps, log)
		case ctx.Err() != nil:
			return fmt.Errorf("migrate up: %w (%w)", ctx.Err(), err)
		case isLockTimeout(err):
			log.InfoContext(ctx, "migration waits for a lock held by somebody else, will try again", slog.Duration("waited", lockTimeout))
			if err := pause(waiting, rand.N(lockRetryPause)); err != nil { //nolint:gosec // spreads tries, keeps no secret
				return fmt.Errorf("migrate up: the database's locks never came free: %w", err)
			}
		default:
			return fmt.Errorf("migrate up: %w", err)
		}
	}
}

// reportSchema says in one line what the database is at, loudly when that is newer than this binary.
func reportSchema(ctx context.Context, databaseURL string, steps fs.FS, log *slog.Logger) error {
	status, err := migrateStatus(ctx, databaseURL, steps)
	if err != nil {
		return fmt.Errorf("migrate up: %w", err)
	}
	if status.Newer() {
		log.WarnContext(ctx, "the database schema is newer than this binary; carrying on, since a release works on the next one's schema",
			slog.Uint64("schema", uint64(status.Version)), slog.Uint64("binary", uint64(status.Latest)))
		return nil
	}
	log.InfoContext(ctx, "database schema is up to date", slog.Uint64("schema", uint64(status.Version)))
	return nil
}

// oneStep applies (+1) or undoes (-1) one step under the advisory lock. os.ErrNotExist: there is no such step.
func oneStep(ctx context.Context, databaseURL string, steps fs.FS, direction int, log *slog.Logger) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	db, hangUp, err := migrationDB(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer hangUp()
	defer func() { err = errors.Join(err, db.Close()) }()

	inner, err := migratepgx.WithInstance(db, &migratepgx.Config{})
	if err != nil {
		return fmt.Errorf("prepare the migration table: %w", err)
	}
	src, err := iofs.New(steps, ".")
	if err != nil {
		return fmt.Errorf("read the embedded steps: %w", err)
	}
	m, err := migrate.NewWithInstance("iofs", src, "pgx5", &atomicDriver{Driver: inner})
	if err != nil {
		return fmt.Errorf("prepare the migration: %w", err)
	}
	m.Log = migrationLog{ctx: ctx, log: log}
	err = m.Steps(direction)
	srcErr, dbErr := m.Close()
	var dirty migrate.ErrDirty
	if errors.As(err, &dirty) && dirty.Version >= 0 {
		version := uint(dirty.Version)
		return &DirtyError{Version: version, Name: stepName(src, version)}
	}
	return errors.Join(err, srcErr, dbErr)
}

// migrationDB opens one connection for a step. golang-migrate runs its statements without the caller's context, so
// cancelling ctx closes the socket under them; hangUp does the same when the step is over.
func migrationDB(ctx context.Context, databaseURL string) (db *sql.DB, hangUp context.CancelFunc, err error) {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return nil, nil, fmt.Errorf("database URL: %w", redact(err))
	}
	stepCtx, hangUp := context.WithCancel(ctx)
	dial := config.DialFunc
	config.DialFunc = func(dialCtx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(dialCtx, network, address)
		if err == nil {
			context.AfterFunc(stepCtx, func() { _ = conn.Close() }) // a second Close only says so
		}
		return conn, err
	}
	config.ConnectTimeout = 10 * time.Second
	db = stdlib.OpenDB(*config, stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		// Also bounds the wait for the advisory lock. SET and not a start-up parameter: poolers refuse unknown ones.
		_, err := conn.Exec(ctx, fmt.Sprintf("SET lock_timeout = %d; SET application_name = 'pegel-migrate'", lockTimeout.Milliseconds()))
		return err
	}))
	db.SetMaxOpenConns(2)
	return db, hangUp, nil
}

func migrateStatus(ctx context.Context, databaseURL string, steps fs.FS) (MigrationStatus, error) {
	var status MigrationStatus
	src, err := iofs.New(steps, ".")
	if err != nil {
		return status, fmt.Errorf("read the embedded steps: %w", err)
	}
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return status, fmt.Errorf("migration status: %w", redact(err))
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()

	var version int64
	err = conn.QueryRow(ctx, "SELECT version, dirty FROM schema_migrations LIMIT 1").Scan(&version, &status.Dirty)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) && sqlState(err) != codeUndefinedTable {
		return status, fmt.Errorf("migration status: %w", err)
	}
	status.Version = uint(max(0, version))
	for v, err := src.First(); err == nil; v, err = src.Next(v) {
		status.Latest = v
		if v > status.Version {
			status.Pending = append(status.Pending, fmt.Sprintf("%06d_%s", v, stepName(src, v)))
		}
	}
	return status, nil
}

func stepName(src source.Driver, version uint) string {
	r, name, err := src.ReadUp(version)
	if err != nil {
		return "unknown to this binary"
	}
	_ = r.Close() // an embedded file
	return name
}

// isLockTimeout reports whether a step gave up because somebody else holds a lock.
func isLockTimeout(err error) bool {
	return errors.Is(err, migrate.ErrLockTimeout) || sqlState(err) == codeLockNotAvailable
}

// pause waits unless ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// redact keeps the cause of a connection error and drops the connection string.
func redact(err error) error {
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) {
		return errors.New("it cannot be parsed as a postgres:// URL or a key=value connection string")
	}
	return err
}
