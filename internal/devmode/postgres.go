package devmode

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// postgresReady bounds a server's start, recovery after a kill included.
const postgresReady = 60 * time.Second

// PostgresOptions say how to start a Postgres server.
type PostgresOptions struct {
	// Dir holds the data, the socket, the log and the pid file; it is created. A database in it is used as it is.
	Dir string
	// Port on 127.0.0.1; 0: a free one.
	Port int
	// Disposable gives up durability for speed: after a crash of the machine the data may be gone. For tests.
	Disposable bool
	// Settings are passed as -c name=value.
	Settings []string
}

// Postgres is a private server. All its users are trusted: the superuser is postgres.
type Postgres struct {
	opts PostgresOptions
	bin  string
	cred *syscall.Credential

	mu    sync.Mutex
	port  int
	child *child // nil while stopped
}

// StartPostgres creates the database on first use and starts a server on it. It returns when the server answers.
func StartPostgres(ctx context.Context, opts PostgresOptions) (*Postgres, error) {
	bin, err := FindPostgres()
	if err != nil {
		return nil, err
	}
	cred, err := serverCredential()
	if err != nil {
		return nil, err
	}
	if opts.Dir, err = filepath.Abs(opts.Dir); err != nil {
		return nil, fmt.Errorf("resolve the data directory: %w", err)
	}
	if n := len(socketPath(opts.Dir, lastPort)); n > maxSocketPath {
		return nil, fmt.Errorf("the path of %s is too long for a Postgres socket: %d bytes, at most %d", opts.Dir, n, maxSocketPath)
	}
	p := &Postgres{opts: opts, bin: bin, cred: cred}
	if err := p.prepare(ctx); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		if p.port = opts.Port; p.port == 0 {
			if p.port, err = freePort(ctx); err != nil {
				return nil, err
			}
		}
		p.child, err = p.launch(ctx)
		if err == nil {
			return p, nil
		}
		if opts.Port != 0 || try == startTries || !errors.Is(err, errEnded) {
			return nil, err
		}
	}
}

// URL is where the server is, as superuser, in the database postgres.
func (p *Postgres) URL() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", p.port)
}

// LogPath is where the server's log goes.
func (p *Postgres) LogPath() string { return logPath(p.opts.Dir, "postgres") }

// Start starts a stopped server again, on the same port and data.
func (p *Postgres) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child != nil && !p.child.exited() {
		return nil
	}
	var err error
	p.child, err = p.launch(context.Background())
	return err
}

// Stop ends the server by a fast shutdown (sessions are cut, the data is clean), or by force after five seconds.
func (p *Postgres) Stop() error { return p.with((*child).stop, true) }

// Kill ends the server at once, as a crash would; the next Start recovers.
func (p *Postgres) Kill() error { return p.with((*child).kill, true) }

// Pause freezes the server with every session: connections stay open and nothing answers.
func (p *Postgres) Pause() error {
	return p.with((*child).freeze, false)
}

// Resume lets a paused server go on.
func (p *Postgres) Resume() error {
	return p.with((*child).thaw, false)
}

// Done is closed when the server that runs now has ended, whoever ended it.
func (p *Postgres) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return doneOf(p.child)
}

func (p *Postgres) with(do func(*child) error, ends bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return withChild("postgres", &p.child, do, ends)
}

// withChild runs do on a running child; stopping one that is not running is no error.
func withChild(name string, c **child, do func(*child) error, ends bool) error {
	if *c == nil {
		if ends {
			return nil
		}
		return fmt.Errorf("%s is not running", name)
	}
	err := do(*c)
	if ends && err == nil {
		*c = nil
	}
	return err
}

func doneOf(c *child) <-chan struct{} {
	if c != nil {
		return c.done
	}
	closed := make(chan struct{})
	close(closed)
	return closed
}

func (p *Postgres) dataDir() string { return filepath.Join(p.opts.Dir, "data") }

func socketPath(dir string, port int) string {
	return filepath.Join(dir, "socket", ".s.PGSQL."+strconv.Itoa(port))
}

// prepare makes the directories, owned by whoever the server runs as, and an empty database in them.
func (p *Postgres) prepare(ctx context.Context) error {
	for _, dir := range []string{p.opts.Dir, p.dataDir(), filepath.Join(p.opts.Dir, "socket")} {
		mode := os.FileMode(0o700)
		if dir == p.opts.Dir {
			mode = 0o755
		}
		if err := os.MkdirAll(dir, mode); err != nil {
			return fmt.Errorf("create %s: %w", dir, err)
		}
		if p.cred != nil {
			if err := os.Chown(dir, int(p.cred.Uid), int(p.cred.Gid)); err != nil {
				return fmt.Errorf("give %s to the server's user: %w", dir, err)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(p.dataDir(), "PG_VERSION")); err == nil {
		return nil
	}
	locale := "--locale=C.UTF-8"
	if runtime.GOOS == "darwin" {
		locale = "--no-locale" // it has no C.UTF-8
	}
	cmd := exec.CommandContext(ctx, filepath.Join(p.bin, "initdb"), "-D", p.dataDir(), "-U", "postgres", //nolint:gosec // a server found by us
		"-A", "trust", "-E", "UTF8", locale, "--no-sync")
	cmd.Dir = p.opts.Dir
	cmd.Env = postgresEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.cred, Setpgid: true}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb in %s: %w: %s", p.dataDir(), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// postgresEnv is our environment without the variables that steer Postgres.
func postgresEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PG") && !strings.HasPrefix(kv, "LC_") && !strings.HasPrefix(kv, "PEGEL_") {
			env = append(env, kv)
		}
	}
	return append(env, "LC_ALL=C")
}

// launch starts the server process on p.port and waits until it answers.
func (p *Postgres) launch(ctx context.Context) (*child, error) {
	args := []string{
		"-D", p.dataDir(), "-k", filepath.Join(p.opts.Dir, "socket"), "-h", "127.0.0.1", "-p", strconv.Itoa(p.port),
		"-c", "lc_messages=C",
	}
	if p.opts.Disposable {
		args = append(args, "-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off",
			"-c", "max_connections=300")
	}
	for _, s := range p.opts.Settings {
		args = append(args, "-c", s)
	}
	c, err := startChild(childSpec{
		name: "postgres", dir: p.opts.Dir, path: filepath.Join(p.bin, "postgres"), args: args, env: postgresEnv(),
		cred: p.cred, stop: syscall.SIGINT, marker: p.dataDir(),
	})
	if err != nil {
		return nil, err
	}
	ask := func(ctx context.Context) error { return askPostgres(ctx, socketPath(p.opts.Dir, p.port)) }
	if err := c.awaitReady(ctx, postgresReady, ask); err != nil {
		return nil, err
	}
	return c, nil
}

// awaitReady polls ask until the server answers. A server that ends first is errEnded; one that has not answered after
// limit, or when ctx ends, is killed.
func (c *child) awaitReady(ctx context.Context, limit time.Duration, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		select {
		case <-c.done:
			return fmt.Errorf("%s %w (%w); its log ends: %s", c.spec.name, errEnded, errors.Join(c.err, last), c.logTail())
		case <-ctx.Done():
			_ = c.kill()
			return fmt.Errorf("%s does not answer (%w); its log ends: %s", c.spec.name, errors.Join(ctx.Err(), last), c.logTail())
		case <-tick.C:
		}
		if last = ask(ctx); last == nil {
			return nil
		}
	}
}

// askPostgres opens a session over the server's own socket and returns nil when it is ready for a query. (The socket
// tells our server from a stranger that took the port first.)
func askPostgres(ctx context.Context, socket string) error {
	conn, err := dialSocket(ctx, socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()

	// StartupMessage: length, protocol 3.0, name-value pairs, a zero byte.
	params := "user\x00postgres\x00database\x00postgres\x00\x00"
	msg := binary.BigEndian.AppendUint32(nil, uint32(8+len(params))) //nolint:gosec // a constant of some 40 bytes
	msg = binary.BigEndian.AppendUint32(msg, 3<<16)
	if _, err := conn.Write(append(msg, params...)); err != nil {
		return fmt.Errorf("greet postgres: %w", err)
	}
	for {
		var head [5]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return fmt.Errorf("read postgres's answer: %w", err)
		}
		size := binary.BigEndian.Uint32(head[1:])
		if size < 4 || size > 1<<16 {
			return fmt.Errorf("postgres answered with a message of %d bytes", size)
		}
		body := make([]byte, size-4)
		if _, err := io.ReadFull(conn, body); err != nil {
			return fmt.Errorf("read postgres's answer: %w", err)
		}
		switch head[0] {
		case 'Z': // ready for query
			_, _ = conn.Write([]byte{'X', 0, 0, 0, 4}) // goodbye
			return nil
		case 'E':
			return fmt.Errorf("postgres: %s", bytes.ReplaceAll(body, []byte{0}, []byte{' '}))
		}
	}
}

// dialSocket connects to a Unix socket for one short question.
func dialSocket(ctx context.Context, socket string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}
