// Package doors_test holds every front door to one verdict: the check API, the reverse proxy, forward authentication as it is
// asked and behind a real nginx and a real Caddy with the configurations of deploy/, and Envoy's rate-limit gRPC.
package doors_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/app"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// playEnv makes the test binary play `pegel serve`: a process that can be killed and stopped.
const playEnv = "PEGEL_TEST_PLAY_SERVE"

func TestMain(m *testing.M) {
	if os.Getenv(playEnv) != "" {
		if err := serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(testenv.Main(m))
}

// adminToken is the bootstrap administrator of every test replica.
const adminToken = "bootstrap-token-of-the-tests-0123456789"

func serve() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	a, err := newApp(ctx, slog.New(slog.NewTextHandler(os.Stderr, nil)), "PEGEL_LISTEN="+os.Getenv("LISTEN"), "PEGEL_DATABASE_URL="+os.Getenv("DATABASE"))
	if err != nil {
		return err
	}
	fmt.Println(a.Addr("admin")) // the first line is for the test
	return a.Run(ctx)
}

// newApp is a replica that believes this machine's proxies.
func newApp(ctx context.Context, log *slog.Logger, env ...string) (*app.App, error) {
	cfg, err := app.Load(app.Sources{Env: append([]string{
		"PEGEL_ADMIN_LISTEN=127.0.0.1:0", "PEGEL_ADMIN_TOKEN=" + adminToken, "PEGEL_DRAIN_PAUSE=0s", "PEGEL_TRUSTED_PROXIES=127.0.0.0/8",
		// A busy machine is no fault of the stores.
		"PEGEL_REDIS_TIMEOUT=5s", "PEGEL_DATABASE_DECISION_TIMEOUT=5s",
	}, env...)})
	if err != nil {
		return nil, err
	}
	return app.New(ctx, cfg, app.Options{Log: log, Now: time.Now, Version: "test"})
}

// replica is a real replica with the administration at hand.
type replica struct {
	t             *testing.T
	app           *app.App // nil when it is a process of its own
	public, admin string   // host:port
}

// startReplica starts one in this process, on ports of its own, and waits until it decides.
func startReplica(t *testing.T, env ...string) *replica {
	t.Helper()
	logs := &syncBuffer{}
	a, err := newApp(t.Context(), slog.New(slog.NewTextHandler(logs, nil)), append([]string{"PEGEL_LISTEN=127.0.0.1:0"}, env...)...)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended, "the replica must end in order")
		if t.Failed() {
			t.Log(logs.String())
		}
	})
	select {
	case <-a.Ready():
	case <-time.After(time.Minute):
		require.Fail(t, "the replica is not ready", logs.String())
	}
	return &replica{t: t, app: a, public: a.Addr("public"), admin: a.Addr("admin")}
}

// administer changes something and returns the answer's members.
func (r *replica) administer(method, path string, body any, header ...string) map[string]any {
	r.t.Helper()
	raw, err := json.Marshal(body)
	require.NoError(r.t, err)
	a := send(r.t, r.admin, question{method: method, target: path, body: raw, header: append([]string{"Authorization", "Bearer " + adminToken}, header...)})
	require.Less(r.t, a.status, 300, "%s %s: %s", method, path, a.body)
	out := map[string]any{}
	if len(a.body) > 0 {
		require.NoError(r.t, json.Unmarshal(a.body, &out))
	}
	return out
}

// tenant creates a plan with the limits, and a tenant on it with a random name. It returns the slug and an API key.
func (r *replica) tenant(limits ...map[string]any) (slug, key string) {
	r.t.Helper()
	if limits == nil {
		limits = []map[string]any{}
	}
	plan, slug := "plan-"+random(r.t), "t-"+random(r.t)
	r.administer(http.MethodPost, "/admin/plans", map[string]any{"name": plan, "limits": limits})
	r.administer(http.MethodPost, "/admin/tenants", map[string]any{"slug": slug, "name": "T", "plan": plan})
	return slug, r.secret(r.administer(http.MethodPost, "/admin/tenants/"+slug+"/keys", map[string]any{"name": "test"}))
}

// service creates a service token that may do everything.
func (r *replica) service() string {
	r.t.Helper()
	return r.secret(r.administer(http.MethodPost, "/admin/service-tokens", map[string]any{
		"name": "svc-" + random(r.t), "exempt": []string{"address"}, "may": []string{"check", "status", "refund", "identify"},
	}))
}

func (r *replica) secret(created map[string]any) string {
	r.t.Helper()
	secret, ok := created["secret"].(string)
	require.True(r.t, ok, "%v", created)
	return secret
}

// policy replaces the address policy.
func (r *replica) policy(limits ...map[string]any) {
	r.t.Helper()
	if limits == nil {
		limits = []map[string]any{}
	}
	a := send(r.t, r.admin, question{method: "GET", target: "/admin/address-policy", header: []string{"Authorization", "Bearer " + adminToken}})
	r.administer(http.MethodPut, "/admin/address-policy", map[string]any{"limits": limits}, "If-Match", a.header.Get("ETag"))
}

func perMinute(quota int, more ...map[string]any) map[string]any {
	limit := map[string]any{"name": "requests-per-minute", "limit": quota, "window": "1m"}
	for _, m := range more {
		for k, v := range m {
			limit[k] = v
		}
	}
	return limit
}

// question is one request on the wire, its target byte by byte.
type question struct {
	method, target string
	header         []string // name, value, name, value
	body           []byte
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
	took   time.Duration
}

// sent is how long an answer may take.
const sendLimit = 30 * time.Second

// send writes a request on a connection of its own: no client of ours tidies the target.
func send(t *testing.T, addr string, q question) answer {
	t.Helper()
	a, err := trySend(t.Context(), addr, q)
	require.NoError(t, err, "%s %s", q.method, q.target)
	return a
}

func trySend(ctx context.Context, addr string, q question) (answer, error) {
	begun := time.Now()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(begun.Add(sendLimit)); err != nil {
		return answer{}, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: api.example.org\r\nConnection: close\r\n", q.method, q.target)
	for i := 0; i+1 < len(q.header); i += 2 {
		fmt.Fprintf(&b, "%s: %s\r\n", q.header[i], q.header[i+1])
	}
	if q.body != nil {
		fmt.Fprintf(&b, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(q.body))
	}
	b.WriteString("\r\n")
	b.Write(q.body)
	if _, err := conn.Write(b.Bytes()); err != nil {
		return answer{}, err
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: q.method})
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return answer{status: res.StatusCode, header: res.Header, body: body, took: time.Since(begun)}, err
}

// application is the API behind the doors. It says what it got.
type application struct {
	addr string
}

// seen is a request as the application got it.
type seen struct {
	Method, URI string
	Header      http.Header
}

// startApplication answers everything, and WebSocket handshakes; a request with X-Custom gets a rate header of its own, which must
// not be taken for Pegel's.
func startApplication(t *testing.T) *application {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Header.Get("X-Custom") != "" {
			w.Header().Set("X-RateLimit-Limit", "7")
		}
		if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "websocket")
			w.WriteHeader(http.StatusSwitchingProtocols)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(seen{Method: r.Method, URI: r.RequestURI, Header: r.Header})
	}))
	t.Cleanup(server.Close)
	return &application{addr: server.Listener.Addr().String()}
}

// reached is the request that the application got.
func (a answer) reached(t *testing.T) seen {
	t.Helper()
	var s seen
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	require.NoError(t, json.Unmarshal(a.body, &s), "%s", a.body)
	return s
}

func random(t *testing.T) string {
	t.Helper()
	var b [6]byte
	_, err := rand.Read(b[:])
	require.NoError(t, err)
	return hex.EncodeToString(b[:])
}

// randomAddress is one that no other request of the tests comes from.
func randomAddress(t *testing.T) string {
	t.Helper()
	var b [3]byte
	_, err := rand.Read(b[:])
	require.NoError(t, err)
	return fmt.Sprintf("44.%d.%d.%d", b[0], b[1], b[2])
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
