// Package testenv gives tests real servers: Postgres with the schema in place, and Redis.
//
// Where they come from, in this order: PEGEL_TEST_DATABASE_URL and PEGEL_TEST_REDIS_URL; the servers found on the
// machine, as private child processes; containers. A test that finds none of them fails, with one line that names what
// to install: nothing is ever skipped.
//
// A test binary has one Postgres and one Redis, started when the first test asks. A test gets a database of its own,
// cloned from a migrated template, but shares the Redis: it takes random tenant names and never flushes. Tests of faults
// take a whole server of their own, which they may pause, stop and kill.
//
// Servers end with the binary: through Main when the package's TestMain calls it, otherwise by the kernel, and what is
// left then is swept by the next run.
package testenv

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/pegel-dev/pegel/internal/devmode"
)

// Where given servers are named.
const (
	databaseURLEnv = "PEGEL_TEST_DATABASE_URL"
	redisURLEnv    = "PEGEL_TEST_REDIS_URL"
)

// setupLimit bounds every single step of the set-up: a server's start, a clone, a drop.
const setupLimit = 2 * time.Minute

// environment is what the tests of one binary share.
type environment struct {
	runDir   onceValue[string]
	postgres onceValue[*sharedPostgres]
	redis    onceValue[string]

	mu      sync.Mutex
	cleanup []func() error // run in reverse by close
}

// shared is process-wide because a test binary is the unit that owns servers: `go test` gives no other object that
// lives as long.
var shared environment

// onceValue computes a value on first use and remembers it with its error.
type onceValue[T any] struct {
	once sync.Once
	v    T
	err  error
}

func (o *onceValue[T]) get(compute func() (T, error)) (T, error) {
	o.once.Do(func() { o.v, o.err = compute() })
	return o.v, o.err
}

// Main runs the tests and ends the servers: func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }.
func Main(m *testing.M) int {
	code := m.Run()
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		code = max(code, 1)
	}
	return code
}

// atEnd has Main call f, the last registered first.
func (e *environment) atEnd(f func() error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cleanup = append(e.cleanup, f)
}

func (e *environment) close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var first error
	for i := len(e.cleanup) - 1; i >= 0; i-- {
		if err := e.cleanup[i](); err != nil && first == nil {
			first = err
		}
	}
	e.cleanup = nil
	return first
}

// dir is this binary's own directory for servers.
func (e *environment) dir() (string, error) {
	return e.runDir.get(func() (string, error) {
		run, err := devmode.NewRunDir("pegel-test")
		if err != nil {
			return "", err
		}
		e.atEnd(run.Close)
		return run.Path, nil
	})
}

// RedisServer starts a Redis of the test's own, without persistence unless args ("--appendonly", "yes") say otherwise.
// It is stopped at the end of the test.
func RedisServer(tb testing.TB, args ...string) *devmode.Redis {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), setupLimit)
	defer cancel()
	dir := serverDir(tb, "redis")
	r, err := devmode.StartRedis(ctx, devmode.RedisOptions{Dir: dir, Args: args})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { endServer(tb, dir, r.Stop) })
	return r
}

// PostgresServer starts an empty Postgres of the test's own. It is stopped at the end of the test.
func PostgresServer(tb testing.TB, settings ...string) *devmode.Postgres {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), setupLimit)
	defer cancel()
	dir := serverDir(tb, "postgres")
	p, err := devmode.StartPostgres(ctx, devmode.PostgresOptions{Dir: dir, Disposable: true, Settings: settings})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { endServer(tb, dir, p.Stop) })
	return p
}

func serverDir(tb testing.TB, name string) string {
	tb.Helper()
	base, err := shared.dir()
	if err != nil {
		tb.Fatal(err)
	}
	return filepath.Join(base, name+"-"+randomName())
}

func endServer(tb testing.TB, dir string, stop func() error) {
	tb.Helper()
	if err := stop(); err != nil {
		tb.Errorf("end the test's server: %v", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		tb.Errorf("remove the test's server: %v", err)
	}
}

// randomName is 12 hex digits: unique among tests, binaries and machines that share a server.
func randomName() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}
