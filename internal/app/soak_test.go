package app_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// process is Pegel as a process of its own, so that its memory is nobody else's.
type process struct {
	replica
	client *http.Client
	token  string // a service token
}

// pegelBinary is Pegel, built once for all tests that need a process of it.
var pegelBinary struct {
	once sync.Once
	path string
	err  error
}

// buildPegel builds the binary, once.
func buildPegel(t *testing.T) string {
	t.Helper()
	pegelBinary.once.Do(func() {
		var dir string
		if dir, pegelBinary.err = os.MkdirTemp("", "pegel-test-binary"); pegelBinary.err != nil { //nolint:usetesting // it outlives the test
			return
		}
		pegelBinary.path = filepath.Join(dir, "pegel")
		build := exec.Command("go", "build", "-buildvcs=false", "-o", pegelBinary.path, "./cmd/pegel")
		build.Dir = filepath.Join("..", "..")
		if out, err := build.CombinedOutput(); err != nil {
			pegelBinary.err = fmt.Errorf("build Pegel: %w: %s", err, out)
		}
	})
	require.NoError(t, pegelBinary.err)
	return pegelBinary.path
}

// launch starts the binary on the settings given and waits until it is ready. Ending it is the caller's.
func launch(t *testing.T, binary string, env ...string) (p *process, cmd *exec.Cmd, ended chan error) {
	t.Helper()
	p = &process{
		replica: replica{t: t, logs: &syncBuffer{}},
		client:  &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: 30 * time.Second},
	}
	cmd = exec.CommandContext(context.WithoutCancel(t.Context()), binary, "serve")
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "PEGEL_LISTEN=127.0.0.1:0", "PEGEL_ADMIN_LISTEN=127.0.0.1:0", "PEGEL_ADMIN_TOKEN=" + adminToken,
		"PEGEL_DRAIN_PAUSE=0s", "PEGEL_LOG_FORMAT=json",
	}, env...)
	cmd.Stdout, cmd.Stderr = p.logs, p.logs
	require.NoError(t, cmd.Start())
	ended = make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	listening := regexp.MustCompile(`"public":"([^"]+)","admin":"([^"]+)"`)
	up := func() bool {
		at := listening.FindStringSubmatch(p.logs.String())
		if at == nil {
			return false
		}
		p.public, p.admin = "http://"+at[1], "http://"+at[2]
		a, err := call(t.Context(), http.MethodGet, p.public+"/readyz", "", nil)
		return err == nil && a.status == http.StatusOK
	}
	for deadline := time.Now().Add(time.Minute); !up(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill()
			require.Fail(t, "the process does not start", p.logs.String())
		}
	}
	return p, cmd, ended
}

// startProcess builds Pegel, starts it on the settings given and waits until it is ready. It is told to end with the test.
func startProcess(t *testing.T, env ...string) *process {
	t.Helper()
	p, cmd, ended := launch(t, buildPegel(t), env...)
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		select {
		case err := <-ended:
			require.NoError(t, err, "the process must end in order")
		case <-time.After(30 * time.Second):
			require.NoError(t, cmd.Process.Kill())
			require.Fail(t, "the process does not end")
		}
		if t.Failed() {
			t.Log(p.logs.String())
		}
	})
	p.token = p.service()
	return p
}

// post asks with the service token. The body of the answer is read.
func (p *process) post(path string, body []byte) (status int, answer []byte, err error) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, p.public+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+p.token)
	req.Header.Set("Content-Type", "application/json")
	res, err := p.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err = io.ReadAll(res.Body)
	return res.StatusCode, answer, err
}

// metric is the value of a metric without labels.
func (p *process) metric(name string) float64 {
	p.t.Helper()
	for line := range strings.Lines(string(p.call(http.MethodGet, p.admin+"/metrics", "", nil).body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			require.NoError(p.t, err)
			return v
		}
	}
	require.Fail(p.t, "no such metric", name)
	return 0
}

// footprint is what a process that leaks has ever more of.
type footprint struct {
	memory     float64 // resident, bytes
	heap       float64 // live or not collected yet, bytes
	goroutines float64
}

func (f footprint) String() string {
	return fmt.Sprintf("%.0f MiB resident, %.0f MiB of heap, %.0f goroutines", f.memory/mebi, f.heap/mebi, f.goroutines)
}

const mebi = 1 << 20

func (p *process) footprint() footprint {
	p.t.Helper()
	return footprint{
		memory: p.metric("process_resident_memory_bytes"), heap: p.metric("go_memstats_heap_inuse_bytes"), goroutines: p.metric("go_goroutines"),
	}
}
