package testenv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/testcontainers/testcontainers-go"
	tcpostgres "github.com/testcontainers/testcontainers-go/modules/postgres"

	"github.com/pegel-dev/pegel/internal/devmode"
	"github.com/pegel-dev/pegel/internal/postgres"
)

// postgresImage is the Postgres that Pegel is tested on.
const postgresImage = "postgres:15"

// sharedPostgres is the server of this binary's tests.
type sharedPostgres struct {
	admin    string // URL of a database to give orders from
	template onceValue[string]
}

// Postgres is the URL of a fresh, migrated database that only this test uses. It is dropped at the end of the test.
func Postgres(tb testing.TB) string {
	tb.Helper()
	s := postgresOf(tb)
	template, err := s.template.get(s.makeTemplate)
	if err != nil {
		tb.Fatal(err)
	}
	clone := s.database(tb, template)
	// Clones are installations of their own, or tests that share a Redis would share counters and see each other's replicas.
	if err := execOn(clone, "UPDATE config_version SET installation = gen_random_uuid()"); err != nil {
		tb.Fatal(err)
	}
	return clone
}

// EmptyPostgres is the URL of a fresh, empty database that only this test uses.
func EmptyPostgres(tb testing.TB) string {
	tb.Helper()
	return postgresOf(tb).database(tb, "template0")
}

func postgresOf(tb testing.TB) *sharedPostgres {
	tb.Helper()
	s, err := shared.postgres.get(shared.startPostgres)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func (e *environment) startPostgres() (*sharedPostgres, error) {
	if given := os.Getenv(databaseURLEnv); given != "" {
		return &sharedPostgres{admin: given}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), setupLimit)
	defer cancel()
	dir, err := e.dir()
	if err != nil {
		return nil, err
	}
	p, err := devmode.StartPostgres(ctx, devmode.PostgresOptions{Dir: filepath.Join(dir, "postgres"), Disposable: true})
	switch {
	case err == nil:
		e.atEnd(p.Stop)
		return &sharedPostgres{admin: p.URL()}, nil
	case !errors.Is(err, devmode.ErrNoPostgres):
		return nil, err
	}
	if !dockerReachable(ctx) {
		return nil, devmode.ErrNoPostgres
	}
	c, err := tcpostgres.Run(ctx, postgresImage, tcpostgres.BasicWaitStrategies())
	if err != nil {
		return nil, errors.Join(devmode.ErrNoPostgres, err)
	}
	e.atEnd(func() error { return testcontainers.TerminateContainer(c) })
	admin, err := c.ConnectionString(ctx, "sslmode=disable")
	if err != nil {
		return nil, fmt.Errorf("find the Postgres container: %w", err)
	}
	return &sharedPostgres{admin: admin}, nil
}

// makeTemplate creates and migrates the database that tests are cloned from. Its name is random, so that binaries that
// share a given server do not meet.
func (s *sharedPostgres) makeTemplate() (string, error) {
	name := "pegel_template_" + randomName()
	if err := s.exec("CREATE DATABASE " + name + " TEMPLATE template0"); err != nil {
		return "", err
	}
	shared.atEnd(func() error { return s.exec("DROP DATABASE IF EXISTS " + name + " WITH (FORCE)") })
	ctx, cancel := context.WithTimeout(context.Background(), setupLimit)
	defer cancel()
	template, err := s.urlOf(name)
	if err != nil {
		return "", err
	}
	if err := postgres.MigrateUp(ctx, template, slog.New(slog.DiscardHandler)); err != nil {
		return "", fmt.Errorf("migrate the template database: %w", err)
	}
	return name, nil
}

// database creates a database for one test.
func (s *sharedPostgres) database(tb testing.TB, template string) string {
	tb.Helper()
	name := "pegel_test_" + randomName()
	if err := s.exec("CREATE DATABASE " + name + " TEMPLATE " + template); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.exec("DROP DATABASE IF EXISTS " + name + " WITH (FORCE)"); err != nil {
			tb.Errorf("drop the test's database: %v", err)
		}
	})
	u, err := s.urlOf(name)
	if err != nil {
		tb.Fatal(err)
	}
	return u
}

// urlOf is the admin URL with another database.
func (s *sharedPostgres) urlOf(database string) (string, error) {
	u, err := url.Parse(s.admin)
	if err != nil {
		return "", fmt.Errorf("%s is not a URL", databaseURLEnv) // the error would show the password
	}
	u.Path = "/" + database
	return u.String(), nil
}

// objectInUse is the SQLSTATE of a template that somebody is still connected to.
const objectInUse = "55006"

// exec runs one order on a connection of its own. A template whose last session is just leaving is tried again for
// five seconds.
func (s *sharedPostgres) exec(sql string) error { return execOn(s.admin, sql) }

func execOn(database, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), setupLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return fmt.Errorf("connect to the test server: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	deadline := time.Now().Add(5 * time.Second)
	for {
		_, err := conn.Exec(ctx, sql)
		var pgErr *pgconn.PgError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &pgErr) && pgErr.Code == objectInUse && time.Now().Before(deadline):
			time.Sleep(20 * time.Millisecond)
		default:
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
}
