package devmode

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// redisReady bounds a server's start, loading its data included.
const redisReady = 30 * time.Second

// RedisOptions say how to start a Redis server.
type RedisOptions struct {
	// Dir holds the data, the socket, the log and the pid file; it is created.
	Dir string
	// Port on 127.0.0.1; 0: a free one.
	Port int
	// Args follow the built-in ones, which turn persistence off: "--appendonly", "yes".
	Args []string
}

// Redis is a private server without a password.
type Redis struct {
	opts RedisOptions
	path string

	mu    sync.Mutex
	port  int
	child *child // nil while stopped
}

// StartRedis starts a server and returns when it answers.
func StartRedis(ctx context.Context, opts RedisOptions) (*Redis, error) {
	path, err := FindRedis()
	if err != nil {
		return nil, err
	}
	if opts.Dir, err = filepath.Abs(opts.Dir); err != nil {
		return nil, fmt.Errorf("resolve the data directory: %w", err)
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create %s: %w", opts.Dir, err)
	}
	r := &Redis{opts: opts, path: path}
	if n := len(r.socket()); n > maxSocketPath {
		return nil, fmt.Errorf("the path of %s is too long for a Redis socket: %d bytes, at most %d", opts.Dir, n, maxSocketPath)
	}
	for try := 1; ; try++ {
		if r.port = opts.Port; r.port == 0 {
			if r.port, err = freePort(ctx); err != nil {
				return nil, err
			}
		}
		r.child, err = r.launch(ctx)
		if err == nil {
			return r, nil
		}
		if opts.Port != 0 || try == startTries || !errors.Is(err, errEnded) {
			return nil, err
		}
	}
}

// URL is where the server is.
func (r *Redis) URL() string { return "redis://" + r.Addr() }

// Addr is host:port.
func (r *Redis) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port)) }

// Start starts a stopped server again, on the same port and directory. It returns when the server answers, its data
// loaded.
func (r *Redis) Start() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.child != nil && !r.child.exited() {
		return nil
	}
	var err error
	r.child, err = r.launch(context.Background())
	return err
}

// Stop ends the server in order: with appendonly its data is on disk.
func (r *Redis) Stop() error { return r.with((*child).stop, true) }

// Kill ends the server at once, as a crash would.
func (r *Redis) Kill() error { return r.with((*child).kill, true) }

// Pause freezes the server: connections stay open, even new ones are accepted by the kernel, and nothing answers.
func (r *Redis) Pause() error {
	return r.with((*child).freeze, false)
}

// Resume lets a paused server go on.
func (r *Redis) Resume() error {
	return r.with((*child).thaw, false)
}

// Done is closed when the server that runs now has ended, whoever ended it.
func (r *Redis) Done() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return doneOf(r.child)
}

func (r *Redis) with(do func(*child) error, ends bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return withChild("redis", &r.child, do, ends)
}

func (r *Redis) socket() string { return filepath.Join(r.opts.Dir, "redis.sock") }

func (r *Redis) launch(ctx context.Context) (*child, error) {
	args := []string{
		"--port", strconv.Itoa(r.port), "--bind", "127.0.0.1", "--unixsocket", r.socket(), "--dir", r.opts.Dir,
		"--daemonize", "no", "--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction",
	}
	// A socket that a killed server left behind would answer "refused" until the new one replaces it; that is harmless,
	// but a file of another kind in its place would not be.
	if err := os.Remove(r.socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the old redis socket: %w", err)
	}
	c, err := startChild(childSpec{
		name: "redis", dir: r.opts.Dir, path: r.path, args: append(args, r.opts.Args...), env: os.Environ(),
		stop: syscall.SIGTERM, marker: ":" + strconv.Itoa(r.port), // Redis shows itself as "redis-server 127.0.0.1:port"
	})
	if err != nil {
		return nil, err
	}
	ask := func(ctx context.Context) error { return askRedis(ctx, r.socket()) }
	if err := c.awaitReady(ctx, redisReady, ask); err != nil {
		return nil, err
	}
	return c, nil
}

// askRedis pings over the server's own socket. (It tells our server from a stranger that took the port first.)
func askRedis(ctx context.Context, socket string) error {
	conn, err := dialSocket(ctx, socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return fmt.Errorf("ping redis: %w", err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return fmt.Errorf("ping redis: %w", err)
	}
	// A server with a password answers too; it is ready for whoever knows it.
	if line = strings.TrimSpace(line); line != "+PONG" && !strings.HasPrefix(line, "-NOAUTH") {
		return fmt.Errorf("redis: %s", strings.TrimPrefix(line, "-"))
	}
	return nil
}
