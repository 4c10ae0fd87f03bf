package app_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/app"
	"github.com/pegel-dev/pegel/internal/testenv"
)

func TestMain(m *testing.M) {
	code := testenv.Main(m)
	if pegelBinary.path != "" {
		_ = os.RemoveAll(filepath.Dir(pegelBinary.path))
	}
	os.Exit(code)
}

// adminToken is the bootstrap administrator of every test replica.
const adminToken = "bootstrap-token-of-the-tests-0123456789"

// replica is a real replica in this process, on ports of its own.
type replica struct {
	t      *testing.T
	app    *app.App
	public string // base URLs
	admin  string
	proxy  string
	stop   context.CancelFunc // SIGTERM
	ended  chan error
	logs   *syncBuffer
}

// startReplica starts one on the settings given, and does not wait for it to be ready. It is stopped at the end of the
// test.
func startReplica(t *testing.T, env ...string) *replica {
	t.Helper()
	return startReplicaAt(t, time.Now, env...)
}

// startReplicaAt is startReplica with a clock.
func startReplicaAt(t *testing.T, now func() time.Time, env ...string) *replica {
	t.Helper()
	cfg, err := app.Load(app.Sources{Env: append([]string{
		"PEGEL_LISTEN=127.0.0.1:0", "PEGEL_ADMIN_LISTEN=127.0.0.1:0", "PEGEL_ADMIN_TOKEN=" + adminToken, "PEGEL_DRAIN_PAUSE=0s",
		"PEGEL_LOG_LEVEL=debug",
	}, env...)})
	require.NoError(t, err)
	r := &replica{t: t, ended: make(chan error, 1), logs: &syncBuffer{}}
	r.app, err = app.New(t.Context(), cfg, app.Options{Log: slog.New(slog.NewTextHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelDebug})), Now: now, Version: "test"})
	require.NoError(t, err)
	scheme := "http://"
	if r.app.Secure() {
		scheme = "https://"
	}
	r.public, r.admin = scheme+r.app.Addr("public"), scheme+r.app.Addr("admin")
	if addr := r.app.Addr("proxy"); addr != "" {
		r.proxy = scheme + addr
	}
	// The context of a test ends before its clean-up, and a drain takes a while.
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	r.stop = stop
	go func() { r.ended <- r.app.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-r.ended:
			require.NoError(t, err, "the replica must end in order")
		case <-time.After(30 * time.Second):
			require.Fail(t, "the replica does not end")
		}
		if t.Failed() {
			t.Log(r.logs.String())
		}
	})
	return r
}

// ready waits until the replica takes traffic.
func (r *replica) ready() *replica {
	r.t.Helper()
	select {
	case <-r.app.Ready():
	case err := <-r.ended:
		r.ended <- err
		require.NoError(r.t, err)
		require.Fail(r.t, "the replica ended")
	case <-time.After(60 * time.Second):
		require.Fail(r.t, "the replica is not ready", r.logs.String())
	}
	return r
}

// answer is an HTTP answer with its body read.
type answer struct {
	status int
	header http.Header
	closes bool // the connection ends with it
	body   []byte
}

func (a answer) json(t *testing.T) map[string]any {
	t.Helper()
	m := map[string]any{}
	require.NoError(t, json.Unmarshal(a.body, &m), "%d %s", a.status, a.body)
	return m
}

// call sends one request; body is nil or marshalled to JSON.
func call(ctx context.Context, method, url, token string, body any) (answer, error) {
	var sent io.Reader = http.NoBody
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return answer{}, err
		}
		sent = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, sent)
	if err != nil {
		return answer{}, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return roundTrip(req)
}

func roundTrip(req *http.Request) (answer, error) {
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	return answer{status: res.StatusCode, header: res.Header, closes: res.Close, body: raw}, err
}

func (r *replica) send(req *http.Request) answer {
	r.t.Helper()
	a, err := roundTrip(req)
	require.NoError(r.t, err)
	return a
}

func (r *replica) call(method, url, token string, body any) answer {
	r.t.Helper()
	a, err := call(r.t.Context(), method, url, token, body)
	require.NoError(r.t, err)
	return a
}

// administer changes something and requires the status.
func (r *replica) administer(status int, method, path string, body any) map[string]any {
	r.t.Helper()
	a := r.call(method, r.admin+path, adminToken, body)
	require.Equal(r.t, status, a.status, "%s %s: %s", method, path, a.body)
	if len(a.body) == 0 {
		return nil
	}
	return a.json(r.t)
}

// tenant creates a plan with the limits, and a tenant on it with a random name. It returns the slug and an API key.
func (r *replica) tenant(limits ...map[string]any) (slug, key string) {
	r.t.Helper()
	plan := "plan-" + random(r.t)
	r.administer(http.StatusCreated, http.MethodPost, "/admin/plans", map[string]any{"name": plan, "limits": limits})
	return r.tenantOn(plan)
}

// tenantOn creates a tenant with a random name on a plan that exists. It returns the slug and an API key, which this replica knows: on a
// busy machine that may come later than the answer that made it.
func (r *replica) tenantOn(plan string) (slug, key string) {
	r.t.Helper()
	slug = "t-" + random(r.t)
	r.administer(http.StatusCreated, http.MethodPost, "/admin/tenants", map[string]any{"slug": slug, "name": "T", "plan": plan})
	created := r.administer(http.StatusCreated, http.MethodPost, "/admin/tenants/"+slug+"/keys", map[string]any{"name": "test"})
	key, ok := created["secret"].(string)
	require.True(r.t, ok, "%v", created)
	r.knows(key)
	return slug, key
}

// service creates a service token that may do everything.
func (r *replica) service() string {
	r.t.Helper()
	created := r.administer(http.StatusCreated, http.MethodPost, "/admin/service-tokens", map[string]any{
		"name": "svc-" + random(r.t), "exempt": []string{"address"}, "may": []string{"check", "status", "refund", "identify"},
	})
	secret, ok := created["secret"].(string)
	require.True(r.t, ok, "%v", created)
	return secret
}

// knows waits until a replica has loaded a credential that was made on another.
func (r *replica) knows(key string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		a, err := call(r.t.Context(), http.MethodGet, r.public+"/v1/status", key, nil)
		return err == nil && a.status == http.StatusOK
	}, 5*time.Second, 20*time.Millisecond, "a change must reach every replica")
}

// becomes waits until /readyz says so.
func (r *replica) becomes(limit time.Duration, status int, want map[string]any) {
	r.t.Helper()
	var got map[string]any
	require.Eventually(r.t, func() bool {
		a, err := call(r.t.Context(), http.MethodGet, r.public+"/readyz", "", nil)
		if err != nil || a.status != status {
			return false
		}
		got = nil
		if json.Unmarshal(a.body, &got) != nil {
			return false
		}
		for k, v := range want {
			if got[k] != v {
				return false
			}
		}
		return true
	}, limit, 20*time.Millisecond, "/readyz does not become %d %v", status, want)
}

func perMinute(quota int, more ...map[string]any) map[string]any {
	limit := map[string]any{"name": "requests-per-minute", "algorithm": "sliding_window_log", "limit": quota, "window": "1m"}
	for _, m := range more {
		for k, v := range m {
			limit[k] = v
		}
	}
	return limit
}

func jsonBody(t *testing.T, body any) io.Reader {
	t.Helper()
	raw, err := json.Marshal(body)
	require.NoError(t, err)
	return bytes.NewReader(raw)
}

func random(t *testing.T) string {
	t.Helper()
	var b [6]byte
	_, err := rand.Read(b[:])
	require.NoError(t, err)
	return hex.EncodeToString(b[:])
}

// syncBuffer collects logs from many goroutines.
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
