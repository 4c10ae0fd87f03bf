package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/devmode"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// mainEnv makes the test binary play the pegel command.
const mainEnv = "PEGEL_TEST_PLAY_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		main()
		return
	}
	os.Exit(testenv.Main(m))
}

// devRun is a running `pegel dev` in a process of its own.
type devRun struct {
	cmd   *exec.Cmd
	curls []string
	said  string // standard output up to the end of the banner
	logs  *syncBuffer
	rest  sync.WaitGroup
}

// startDev runs `pegel dev` on free ports and reads its banner.
func startDev(t *testing.T, stateDir string, env []string, args ...string) *devRun {
	t.Helper()
	args = append([]string{"dev", "--state-dir", stateDir, "--listen", anyAddr, "--admin-listen", anyAddr, "--proxy-listen", anyAddr}, args...)
	d := &devRun{cmd: exec.Command(os.Args[0], args...), logs: &syncBuffer{}}
	// A busy machine must not look like a store that is away.
	d.cmd.Env = append(append(os.Environ(), mainEnv+"=1", "PEGEL_REDIS_TIMEOUT=5s", "PEGEL_DATABASE_DECISION_TIMEOUT=5s"), env...)
	d.cmd.Stderr = d.logs
	out, err := d.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, d.cmd.Start())
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill() // of one that ended in order there is nothing left
		d.rest.Wait()
		_ = d.cmd.Wait()
		if t.Failed() {
			t.Log(d.logs.String())
		}
	})
	done := make(chan struct{})
	d.rest.Go(func() {
		defer close(done)
		r := bufio.NewReader(out)
		for !strings.Contains(d.said, "Ctrl-C") {
			line, err := r.ReadString('\n')
			d.said += line
			if strings.HasPrefix(line, "curl ") {
				d.curls = append(d.curls, strings.TrimSuffix(line, "\n"))
			}
			if err != nil {
				return
			}
		}
	})
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		require.Fail(t, "pegel dev is not ready")
	}
	require.Contains(t, d.said, "Pegel is ready.", "%s", d.logs)
	d.rest.Go(func() { _, _ = io.Copy(io.Discard, out) })
	return d
}

// stateDirectory is a fresh one; what its servers keep elsewhere is removed with it.
func stateDirectory(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	servers, err := devmode.ServersDir(dir)
	require.NoError(t, err)
	if servers != dir {
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(servers)) })
	}
	return dir
}

// interrupt is Ctrl-C; the process must end by itself, in order.
func (d *devRun) interrupt(t *testing.T) {
	t.Helper()
	require.NoError(t, d.cmd.Process.Signal(os.Interrupt))
	ended := make(chan error, 1)
	go func() {
		d.rest.Wait()
		ended <- d.cmd.Wait()
	}()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(30 * time.Second):
		require.Fail(t, "pegel dev does not end")
	}
}

// paste runs the printed lines as they stand, in a shell, and returns what each answered.
func (d *devRun) paste(t *testing.T) []string {
	t.Helper()
	answers := make([]string, len(d.curls))
	for i, line := range d.curls {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		out, err := exec.CommandContext(ctx, "sh", "-c", line).CombinedOutput()
		cancel()
		require.NoError(t, err, "%s\n%s", line, out)
		answers[i] = string(out)
	}
	return answers
}

// anyAddr lets the system choose the port: one that is looked up beforehand may be taken by the time it is used.
const anyAddr = "127.0.0.1:0"

// syncBuffer is what a process writes while the test already reads it.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// requireTour checks what the printed lines answer when they are pasted in the order they are printed.
func requireTour(t *testing.T, answers []string) {
	t.Helper()
	require.Len(t, answers, 7)
	for i, want := range [][]string{
		{"HTTP/1.1 200 OK", `"slug":"school-17"`},
		{"HTTP/1.1 200 OK", `"pong":true`, "X-RateLimit-Remaining: "},
		{"HTTP/1.1 200 OK", `"decision":"slow"`, `"delay_ms":500`, "X-RateLimit-Slowdown: 500"},
		{"HTTP/1.1 429 Too Many Requests", `"error":"rate_limit_exceeded"`, "Retry-After: "},
		{"HTTP/1.1 200 OK", `"used":1700`},
		{"HTTP/1.1 200 OK", "the demo upstream of pegel dev", `"path":"/hello"`, "X-RateLimit-Limit: 10000"},
		{"HTTP/1.1 200 OK", `"tenant":"school-17"`},
	} {
		for _, part := range want {
			require.Contains(t, answers[i], part, "line %d", i+1)
		}
		require.NotContains(t, answers[i], "pgk_", "no credential reaches an upstream or an answer")
	}
}

// Guarantee: `pegel dev` prints lines that work as they stand, as often as they are pasted; keys survive a restart and
// --fresh makes new ones; Ctrl-C leaves nothing running.
func TestDev(t *testing.T) {
	t.Parallel()
	dir := stateDirectory(t)
	first := startDev(t, dir, nil)
	requireTour(t, first.paste(t))
	requireTour(t, first.paste(t))
	first.requireProxyIsNamed(t)
	keys, err := os.Stat(filepath.Join(dir, "keys.json"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), keys.Mode().Perm())

	second := exec.Command(os.Args[0], "dev", "--state-dir", dir)
	second.Env = append(os.Environ(), mainEnv+"=1")
	out, err := second.CombinedOutput()
	require.Error(t, err, "two cannot share a state directory")
	require.Contains(t, string(out), "in use by another running pegel")
	first.interrupt(t)
	requireNothingRuns(t, dir)

	again := startDev(t, dir, nil)
	require.Equal(t, credentials(first.said), credentials(again.said), "keys survive a restart")
	requireTour(t, again.paste(t))
	again.interrupt(t)

	fresh := startDev(t, dir, nil, "--fresh")
	require.NotEqual(t, credentials(first.said), credentials(fresh.said))
	requireTour(t, fresh.paste(t))
	fresh.interrupt(t)
}

// requireProxyIsNamed asks the proxy for what the admin listener has: it wants a caller's credential, and the command must not blame its token.
func (d *devRun) requireProxyIsNamed(t *testing.T) {
	t.Helper()
	found := regexp.MustCompile(`proxy to a demo upstream (http://\S+)`).FindStringSubmatch(d.said)
	require.Len(t, found, 2)
	cmd, stderr, wait := process(t, found[1], "tenant", "list")
	require.NoError(t, cmd.Start())
	require.Equal(t, exitError, wait())
	require.Equal(t, "pegel: "+found[1]+" is not the admin listener (PEGEL_ADMIN_LISTEN): name that one with --server or PEGEL_SERVER\n", stderr.String())
}

// Guarantee: without a Redis server everything works all the same, under a banner that nobody overlooks; a database or
// Redis that the environment names is never touched.
func TestDevWithoutRedis(t *testing.T) {
	t.Parallel()
	bin := t.TempDir() // a PATH with what the test needs, and no redis-server
	for _, tool := range []string{"sh", "curl"} {
		path, err := exec.LookPath(tool)
		require.NoError(t, err, "install the Debian package curl, as make setup does")
		require.NoError(t, os.Symlink(path, filepath.Join(bin, tool)))
	}
	pg, err := devmode.FindPostgres()
	require.NoError(t, err)
	d := startDev(t, stateDirectory(t), []string{
		"PATH=" + bin, "PEGEL_DEV_PG_BIN=" + pg,
		"PEGEL_DATABASE_URL=postgres://nobody@127.0.0.1:1/production", "PEGEL_REDIS_URL=redis://127.0.0.1:1",
	})
	require.Contains(t, d.said, "!!  no Redis server found: install the Debian package redis-server")
	requireTour(t, d.paste(t))
	d.interrupt(t)
}

// credentials are the words of a banner that are credentials.
func credentials(said string) []string {
	var found []string
	for word := range strings.FieldsSeq(said) {
		if strings.HasPrefix(word, "pgk_") || strings.HasPrefix(word, "pgs_") || strings.HasPrefix(word, "pga_") {
			found = append(found, word)
		}
	}
	return found
}

// requireNothingRuns checks the pid files of a state directory.
func requireNothingRuns(t *testing.T, stateDir string) {
	t.Helper()
	dir, err := devmode.ServersDir(stateDir)
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(dir, "*", "*.pid"))
	require.NoError(t, err)
	require.Len(t, files, 2, "Postgres and Redis")
	for _, f := range files {
		raw, err := os.ReadFile(f)
		require.NoError(t, err)
		var pid int
		_, err = fmt.Sscan(string(raw), &pid)
		require.NoError(t, err)
		require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH, "%s still runs", f)
	}
}
