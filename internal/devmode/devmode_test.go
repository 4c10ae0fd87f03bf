package devmode

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func testDir(t *testing.T) string {
	t.Helper()
	run, err := NewRunDir("pegel-devmode-test")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, run.Close()) })
	return run.Path
}

func startTestPostgres(t *testing.T) *Postgres {
	t.Helper()
	p, err := StartPostgres(t.Context(), PostgresOptions{Dir: filepath.Join(testDir(t), "pg"), Disposable: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Stop()) })
	return p
}

func TestPostgresLife(t *testing.T) {
	t.Parallel()
	p := startTestPostgres(t)
	ask := func() error { return askPostgres(t.Context(), socketPath(p.opts.Dir, p.port)) }
	url := p.URL()
	require.NoError(t, ask())

	require.NoError(t, p.Pause())
	require.Error(t, ask(), "a paused server must not answer")
	require.NoError(t, p.Resume())
	require.NoError(t, ask())

	// Pause must reach the backends too, which Postgres puts in sessions of their own.
	conn, err := dialSocket(t.Context(), socketPath(p.opts.Dir, p.port))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, p.Pause())
	for _, process := range tree(p.child.cmd.Process.Pid) {
		require.True(t, process.still(), "process %d runs on", process.pid)
	}

	require.NoError(t, p.Stop(), "a paused server can be stopped")
	require.Error(t, ask())
	require.NoError(t, p.Start())
	require.Equal(t, url, p.URL(), "it comes back on the same port")
	require.NoError(t, ask())

	require.NoError(t, p.Kill())
	require.Error(t, ask())
	require.NoError(t, p.Start(), "it recovers from a kill")
	require.NoError(t, ask())
}

// Guarantee: when Pause returns nothing answers, however many sessions were just being opened.
func TestPauseMissesNoNewSession(t *testing.T) {
	t.Parallel()
	p := startTestPostgres(t)
	var dialling sync.WaitGroup
	stop := make(chan struct{})
	for range 4 { // a fork at every moment
		dialling.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				_ = askPostgres(t.Context(), socketPath(p.opts.Dir, p.port)) // gets no answer while the server is frozen
			}
		})
	}
	for range 20 {
		require.NoError(t, p.Pause())
		for _, process := range tree(p.child.cmd.Process.Pid) {
			require.True(t, process.still(), "process %d runs on", process.pid)
		}
		require.NoError(t, p.Resume())
	}
	close(stop)
	dialling.Wait()
}

func TestRedisLife(t *testing.T) {
	t.Parallel()
	r, err := StartRedis(t.Context(), RedisOptions{Dir: filepath.Join(testDir(t), "redis"), Args: []string{"--appendonly", "yes"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Stop()) })
	addr := r.Addr()

	require.Equal(t, "+OK", command(t, addr, "SET k v"))
	require.NoError(t, r.Pause())
	_, err = tryCommand(addr, "GET k", 200*time.Millisecond)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "a paused server accepts and stays silent")
	require.NoError(t, r.Resume())

	require.NoError(t, r.Stop())
	require.NoError(t, r.Stop(), "stopping twice is no error")
	require.Error(t, r.Pause())
	_, err = tryCommand(addr, "GET k", time.Second)
	require.Error(t, err)
	require.NoError(t, r.Start())
	require.Equal(t, addr, r.Addr(), "it comes back on the same port")
	require.Equal(t, "$1 v", command(t, addr, "GET k"), "appendonly data survives")

	require.NoError(t, r.Kill())
	require.NoError(t, r.Start())
}

func command(t *testing.T, addr, line string) string {
	t.Helper()
	answer, err := tryCommand(addr, line, 5*time.Second)
	require.NoError(t, err)
	return answer
}

func tryCommand(addr, line string, limit time.Duration) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, limit)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(limit))
	if _, err := fmt.Fprintf(conn, "%s\r\n", line); err != nil {
		return "", err
	}
	r := bufio.NewReader(conn)
	first, err := r.ReadString('\n')
	if err != nil || !strings.HasPrefix(first, "$") {
		return strings.TrimSpace(first), err
	}
	second, err := r.ReadString('\n')
	return strings.TrimSpace(first) + " " + strings.TrimSpace(second), err
}

// A server whose port somebody else took must say so and not be mistaken for the stranger.
func TestTakenPortIsAnErrorWithTheLog(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	tcp, ok := l.Addr().(*net.TCPAddr)
	require.True(t, ok)
	port := tcp.Port
	_, err = StartRedis(t.Context(), RedisOptions{Dir: filepath.Join(testDir(t), "redis"), Port: port})
	require.ErrorIs(t, err, errEnded)
	require.ErrorContains(t, err, "Address already in use")
}

func TestLockIsExclusiveAndReturns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := Lock(dir)
	require.NoError(t, err)
	_, err = Lock(dir)
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, first.Unlock())
	second, err := Lock(dir)
	require.NoError(t, err)
	require.NoError(t, second.Unlock())
}

// helperEnv makes the test binary play a parent that starts servers and waits to be killed.
const helperEnv = "DEVMODE_TEST_PARENT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperEnv); dir != "" {
		playParent(dir)
	}
	os.Exit(m.Run())
}

func playParent(dir string) {
	if _, err := Lock(dir); err != nil {
		panic(err)
	}
	r, err := StartRedis(context.Background(), RedisOptions{Dir: filepath.Join(dir, "redis")})
	if err != nil {
		panic(err)
	}
	if os.Getenv(helperEnv+"_PAUSE") != "" {
		if err := r.Pause(); err != nil { // a paused child does not act on its parent's death
			panic(err)
		}
	}
	fmt.Println(r.Addr())
	select {}
}

// What a killed parent leaves behind must be gone: at once by the kernel, or at the latest when the directory is used
// again.
func TestLeftoversOfAKilledParent(t *testing.T) {
	for _, paused := range []bool{false, true} {
		t.Run(fmt.Sprintf("paused=%t", paused), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), helperEnv+"="+dir)
			if paused {
				cmd.Env = append(cmd.Env, helperEnv+"_PAUSE=1")
			}
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			_, err = bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			pidFile, err := os.ReadFile(pidPath(filepath.Join(dir, "redis"), "redis"))
			require.NoError(t, err)
			var pid int
			_, err = fmt.Sscan(string(pidFile), &pid)
			require.NoError(t, err)
			require.NotEmpty(t, commandLine(pid))

			_, err = Lock(dir)
			require.ErrorIs(t, err, ErrLocked, "its parent lives")
			require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
			_ = cmd.Wait()

			lock, err := Lock(dir)
			require.NoError(t, err)
			require.NotContains(t, commandLine(pid), "redis-server")
			require.NoError(t, lock.Unlock())
		})
	}
}

func TestFindPostgresRefusesAWrongSetting(t *testing.T) {
	t.Setenv(PostgresBinDirEnv, t.TempDir())
	_, err := FindPostgres()
	require.ErrorContains(t, err, PostgresBinDirEnv)
}

func TestVersionIn(t *testing.T) {
	t.Parallel()
	for dir, want := range map[string]int{
		"/usr/lib/postgresql/15/bin": 15, "/usr/lib/postgresql/9.6/bin": 9, "/usr/pgsql-16/bin": 16,
		"/opt/homebrew/opt/postgresql@17/bin": 17, "/opt/homebrew/opt/postgresql/bin": 0,
	} {
		require.Equal(t, want, versionIn(dir), dir)
	}
}

func TestMiniRedisAnswers(t *testing.T) {
	t.Parallel()
	m, err := StartMiniRedis()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Stop()) })
	require.Equal(t, "+OK", command(t, strings.TrimPrefix(m.URL(), "redis://"), "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv"))
}
