package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/api/client"
	"github.com/pegel-dev/pegel/internal/app"
	"github.com/pegel-dev/pegel/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const adminToken = "bootstrap-token-of-the-tests-0123456789"

// service is a real Pegel in this process.
type service struct {
	t     *testing.T
	url   string
	admin string
	token string // a service token that may do everything
}

func startService(t *testing.T, env ...string) *service {
	t.Helper()
	cfg, err := app.Load(app.Sources{Env: append([]string{
		"PEGEL_LISTEN=127.0.0.1:0", "PEGEL_ADMIN_LISTEN=127.0.0.1:0", "PEGEL_ADMIN_TOKEN=" + adminToken, "PEGEL_DRAIN_PAUSE=0s",
	}, env...)})
	require.NoError(t, err)
	a, err := app.New(t.Context(), cfg, app.Options{Log: slog.New(slog.DiscardHandler), Now: time.Now, Version: "test"})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	select {
	case <-a.Ready():
	case <-time.After(time.Minute):
		require.Fail(t, "the service is not ready")
	}
	s := &service{t: t, url: "http://" + a.Addr("public"), admin: "http://" + a.Addr("admin")}
	s.token = s.serviceToken("check", "status", "refund", "identify")
	return s
}

// shared is a service on Redis and Postgres with deadlines that a busy machine keeps.
func shared(t *testing.T) *service {
	t.Helper()
	return startService(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_REDIS_URL="+testenv.RedisServer(t).URL(),
		"PEGEL_REDIS_TIMEOUT=5s", "PEGEL_DATABASE_DECISION_TIMEOUT=5s")
}

// administer changes something and returns what was created.
func (s *service) administer(method, path string, body any) map[string]any {
	s.t.Helper()
	raw, err := json.Marshal(body)
	require.NoError(s.t, err)
	req, err := http.NewRequest(method, s.admin+path, bytes.NewReader(raw))
	require.NoError(s.t, err)
	req.Header.Set("Authorization", "Bearer "+adminToken)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	defer func() { require.NoError(s.t, res.Body.Close()) }()
	answer, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	require.Less(s.t, res.StatusCode, 300, "%s %s: %s", method, path, answer)
	var created map[string]any
	require.NoError(s.t, json.Unmarshal(answer, &created))
	return created
}

func (s *service) serviceToken(may ...string) string {
	s.t.Helper()
	created := s.administer(http.MethodPost, "/admin/service-tokens", map[string]any{"name": "svc", "exempt": []string{"address"}, "may": may})
	return secretIn(s.t, created)
}

func secretIn(t *testing.T, created map[string]any) string {
	t.Helper()
	secret, ok := created["secret"].(string)
	require.True(t, ok, "%v", created)
	return secret
}

// tenant creates a tenant on a plan of its own and returns an API key of it.
func (s *service) tenant(slug string, limits ...map[string]any) (key string) {
	s.t.Helper()
	if limits == nil {
		limits = []map[string]any{}
	}
	s.administer(http.MethodPost, "/admin/plans", map[string]any{"name": "of-" + slug, "limits": limits})
	s.administer(http.MethodPost, "/admin/tenants", map[string]any{"slug": slug, "name": "T", "plan": "of-" + slug})
	return secretIn(s.t, s.administer(http.MethodPost, "/admin/tenants/"+slug+"/keys", map[string]any{"name": "test"}))
}

func (s *service) client(options ...client.Option) *client.Client {
	s.t.Helper()
	return newClient(s.t, s.url, s.token, options...)
}

func newClient(t *testing.T, url, token string, options ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(url, token, append([]client.Option{client.WithTimeout(20 * time.Second)}, options...)...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
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

var slowdown = map[string]any{"slowdown": map[string]any{"from": 0.8, "max_delay": "2s"}}

// recorder keeps the answers that pass through it.
type recorder struct {
	mu      sync.Mutex
	paths   []string
	headers []http.Header
}

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(req)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.paths, r.headers = append(r.paths, req.URL.Path), append(r.headers, res.Header)
	}
	return res, err
}

func (r *recorder) last() http.Header {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.headers[len(r.headers)-1]
}

func (r *recorder) count(path string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.paths {
		if p == path {
			n++
		}
	}
	return n
}
