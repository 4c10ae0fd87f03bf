package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/pegel-dev/pegel/internal/devmode"
)

// world is all the child processes of a run.
type world struct {
	dir       string
	redis     *devmode.Redis
	postgres  *devmode.Postgres
	redisCPU  meter
	pgCPU     meter
	floor     *child
	onRedis   *service // a Pegel that decides from Redis
	onPG      *service // one without Redis
	libraryDB string   // for the store as a library
}

// openWorld starts them one after the other and builds Pegel from the source beside this module.
func openWorld(ctx context.Context) (w *world, err error) {
	w = &world{}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.dir, err = os.MkdirTemp("", "pegel-bench-"); err != nil {
		return w, err
	}
	if err := os.Chmod(w.dir, 0o755); err != nil { // Postgres may run as another user
		return w, err
	}
	if err := w.openStores(ctx); err != nil {
		return w, err
	}
	self, err := os.Executable()
	if err != nil {
		return w, err
	}
	address, err := freeAddress()
	if err != nil {
		return w, err
	}
	if w.floor, err = start(self, []string{floorCommand, address}, nil); err != nil {
		return w, err
	}
	w.floor.address = address

	progress("building pegel")
	binary := filepath.Join(w.dir, "pegel")
	if err := build(ctx, binary); err != nil {
		return w, err
	}
	if w.onRedis, err = w.openService(ctx, binary, "pegel_on_redis", w.redis.URL()); err != nil {
		return w, err
	}
	w.onPG, err = w.openService(ctx, binary, "pegel_on_postgres", "")
	return w, err
}

func (w *world) openStores(ctx context.Context) (err error) {
	if w.redis, err = devmode.StartRedis(ctx, devmode.RedisOptions{Dir: filepath.Join(w.dir, "redis")}); err != nil {
		return err
	}
	pid, err := redisPID(ctx, w.redis.Addr())
	if err != nil {
		return err
	}
	w.redisCPU = ofProcess(pid)
	if w.postgres, err = devmode.StartPostgres(ctx, devmode.PostgresOptions{Dir: filepath.Join(w.dir, "postgres")}); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, w.postgres.URL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var backend int
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&backend); err != nil {
		return err
	}
	_, postmaster := stat(backend)
	w.pgCPU = ofChildren(postmaster)
	return nil
}

// database creates a database and returns its URL.
func (w *world) database(ctx context.Context, name string) (string, error) {
	conn, err := pgx.Connect(ctx, w.postgres.URL())
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
		return "", err
	}
	return strings.Replace(w.postgres.URL(), "/postgres?", "/"+name+"?", 1), nil
}

// openService starts a Pegel on a database of its own and gives it tenants to decide about.
func (w *world) openService(ctx context.Context, binary, name, redisURL string) (*service, error) {
	url, err := w.database(ctx, name)
	if err != nil {
		return nil, err
	}
	progress("starting %s", strings.ReplaceAll(name, "_", " "))
	return startService(ctx, binary, url, redisURL)
}

func (w *world) close() {
	for _, s := range []*service{w.onRedis, w.onPG} {
		if s != nil {
			s.child.stop()
		}
	}
	if w.floor != nil {
		w.floor.stop()
	}
	var errs []error
	if w.redis != nil {
		errs = append(errs, w.redis.Stop())
	}
	if w.postgres != nil {
		errs = append(errs, w.postgres.Stop())
	}
	errs = append(errs, os.RemoveAll(w.dir))
	if err := errors.Join(errs...); err != nil {
		progress("cleaning up: %v", err)
	}
}

// build compiles the service from the module that this one replaces.
func build(ctx context.Context, binary string) error {
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/pegel-dev/pegel")
	list.Stderr = os.Stderr
	root, err := list.Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	compile := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/pegel")
	compile.Dir = strings.TrimSpace(string(root))
	compile.Stdout, compile.Stderr = os.Stderr, os.Stderr
	if err := compile.Run(); err != nil {
		return fmt.Errorf("build pegel: %w", err)
	}
	return nil
}

// child is a process of ours. It dies with this one.
type child struct {
	cmd     *exec.Cmd
	address string
	ended   chan struct{}
}

func start(binary string, args, env []string) (*child, error) {
	c := &child{cmd: exec.Command(binary, args...), ended: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.Stderr = os.Stderr
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = c.cmd.Wait() // it ends because stop says so, or its silence is noticed by whoever calls it
		close(c.ended)
	}()
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// stop asks the process to end, and after a few seconds insists.
func (c *child) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.ended:
	case <-time.After(5 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.ended
	}
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func redisPID(ctx context.Context, address string) (int, error) {
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	info, err := client.Info(ctx, "server").Result()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(info) {
		var pid int
		if n, _ := fmt.Sscanf(line, "process_id:%d", &pid); n == 1 {
			return pid, nil
		}
	}
	return 0, errors.New("redis does not say its process id")
}
