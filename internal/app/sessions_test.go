package app_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/app"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// login is an application that signs its users in.
type login struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	path string // of its key set
}

func newLogin(t *testing.T) *login {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	raw, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k1", Algorithm: "ES256", Use: "sig"}}})
	require.NoError(t, err)
	l := &login{t: t, key: key, path: filepath.Join(t.TempDir(), "keys.json")}
	require.NoError(t, os.WriteFile(l.path, raw, 0o600))
	return l
}

func (l *login) token(tenant, user string) string {
	l.t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: l.key, KeyID: "k1"}}, nil)
	require.NoError(l.t, err)
	payload, err := json.Marshal(map[string]any{"iss": "https://login.example", "aud": "api", "sub": user, "org": map[string]any{"slug": tenant}, "exp": time.Now().Add(time.Hour).Unix()})
	require.NoError(l.t, err)
	signed, err := signer.Sign(payload)
	require.NoError(l.t, err)
	text, err := signed.CompactSerialize()
	require.NoError(l.t, err)
	return text
}

// Guarantee: a session of the application reaches tenant and user limits through every door, its token goes to the upstream as it
// came, and it is never in a log, a metric, an audit entry or an answer. What needs a credential of ours still does.
func TestSessionsThroughEveryDoor(t *testing.T) {
	t.Parallel()
	l := newLogin(t)
	var mu sync.Mutex
	var seen []string
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, r.Header.Get("Authorization"))
	}))
	t.Cleanup(upstream.Close)
	r := startReplica(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_REDIS_URL="+testenv.Redis(t),
		"PEGEL_PROXY_LISTEN=127.0.0.1:0", "PEGEL_PROXY_UPSTREAM="+upstream.URL, "PEGEL_TRUSTED_PROXIES=127.0.0.1/32", "PEGEL_TENANT_HOSTS={tenant}.api.example",
		"PEGEL_JWT_JWKS_FILE="+l.path, "PEGEL_JWT_ISSUER=https://login.example", "PEGEL_JWT_AUDIENCE=api", "PEGEL_JWT_TENANT_CLAIM=org.slug").ready()
	slug, _ := r.tenant(perMinute(100), map[string]any{"name": "each", "scope": "user", "limit": 50, "window": "1m"})
	other, _ := r.tenant(perMinute(10)) // tighter than the address limits, which hold for strangers beside it

	token := l.token(slug, "u42")
	forward := []string{"X-Forwarded-Method", "GET", "X-Forwarded-Uri", "/a", "X-Forwarded-Proto", "https"}
	nginx := []string{"X-Original-Method", "GET", "X-Original-URI", "/a"}
	left := func(url string, header ...string) string {
		t.Helper()
		a := r.callWith(http.MethodGet, url, token, nil, header...)
		require.Equal(t, http.StatusOK, a.status, "%s: %s", url, a.body)
		return a.header.Get("X-RateLimit-Remaining") // the tightest: the user's
	}
	require.Equal(t, "49", left(r.proxy+"/a"))
	require.Equal(t, "48", left(r.public+"/authz/forward", append(forward, "X-Forwarded-Host", "www.example")...))
	require.Equal(t, "47", left(r.public+"/authz/nginx", nginx...))
	require.Equal(t, "46", left(r.public+"/v1/ping"))
	status := r.call(http.MethodGet, r.public+"/v1/status", token, nil).json(t)
	require.Equal(t, slug, status["tenant"])
	require.InDelta(t, 4, status["used"], 0)
	require.Equal(t, http.StatusForbidden, r.call(http.MethodGet, r.public+"/v1/status?user=u1", token, nil).status, "another user is none of its business")
	require.Equal(t, http.StatusUnauthorized, r.call(http.MethodPost, r.public+"/v1/check", token, map[string]any{}).status)
	require.Equal(t, http.StatusUnauthorized, r.call(http.MethodGet, r.admin+"/admin/plans", token, nil).status)

	// By host: the proxy's own, the trusted proxy's word at /authz/forward, nginx's own Host. A header of another dialect says nothing.
	require.Equal(t, "9", r.callWith(http.MethodGet, r.proxy+"/a", "", nil, "X-Forwarded-Host", other+".api.example:443").header.Get("X-RateLimit-Remaining"))
	require.Equal(t, "8", r.callWith(http.MethodGet, r.public+"/authz/forward", "", nil, append(forward, "X-Forwarded-Host", other+".api.example")...).header.Get("X-RateLimit-Remaining"))
	byHost := func(host string, header ...string) string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.public+"/authz/nginx", http.NoBody)
		require.NoError(t, err)
		req.Host = host
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		return r.send(req).header.Get("RateLimit-Policy")
	}
	require.Contains(t, byHost(other+".api.example", nginx...), "requests-per-minute\";q=10;")
	require.NotContains(t, byHost("www.example", append(nginx, "X-Forwarded-Host", other+".api.example")...), "requests-per-minute\";q=10;")

	mu.Lock()
	require.Equal(t, "Bearer "+token, seen[0])
	mu.Unlock()
	var all strings.Builder
	for _, path := range []string{"/metrics", "/admin/audit/export", "/admin/requests"} {
		all.Write(r.call(http.MethodGet, r.admin+path, adminToken, nil).body)
	}
	for name, text := range map[string]string{"the log": r.logs.String(), "what is shown": all.String()} {
		require.NotContains(t, text, token, name)
		require.NotContains(t, text, token[strings.LastIndex(token, ".")+1:], name)
	}
	require.Contains(t, all.String(), `pegel_jwt_tokens_total{result="verified"} 1`)
	require.Contains(t, all.String(), "pegel_jwt_keys 1")
}

// Guarantee: a key set that cannot be used stops the start with one line; one whose URL is away does not.
func TestKeySetsAtAStart(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "bad.json")
	require.NoError(t, os.WriteFile(bad, []byte(`{"keys":[]}`), 0o600))
	cfg, err := app.Load(app.Sources{Env: []string{"PEGEL_DATABASE_URL=postgres://u@127.0.0.1:1/x", "PEGEL_LISTEN=127.0.0.1:0", "PEGEL_ADMIN_LISTEN=127.0.0.1:0", "PEGEL_JWT_JWKS_FILE=" + bad, "PEGEL_JWT_ISSUER=x"}})
	require.NoError(t, err)
	_, err = app.New(t.Context(), cfg, app.Options{Log: slog.New(slog.DiscardHandler), Now: time.Now})
	require.ErrorContains(t, err, "PEGEL_JWT_JWKS_FILE: the key set cannot be used")

	r := startReplica(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_JWT_JWKS_URL=http://127.0.0.1:1/keys", "PEGEL_JWT_ISSUER=x").ready()
	require.Equal(t, http.StatusOK, r.call(http.MethodGet, r.public+"/v1/ping", "a.b.c", nil).status)
	require.Contains(t, r.logs.String(), "the last keys hold")
}

// Guarantee: a drain cuts WebSockets at once, and the replica does not wait for its timeout to end.
func TestADrainCutsWebSockets(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(conn, both)
	}))
	t.Cleanup(upstream.Close)
	r := startReplica(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_PROXY_LISTEN=127.0.0.1:0", "PEGEL_PROXY_UPSTREAM="+upstream.URL, "PEGEL_DRAIN_TIMEOUT=1m").ready()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(r.proxy, "http://"))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(25*time.Second)))
	_, err = fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	require.NoError(t, err)
	reader := bufio.NewReader(conn)
	res, err := http.ReadResponse(reader, nil)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusSwitchingProtocols, res.StatusCode)
	_, err = fmt.Fprintln(conn, "hello")
	require.NoError(t, err)
	line, err := reader.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "hello\n", line)
	require.Equal(t, "1", r.metric("pegel_websockets"))

	r.stop()
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
	defer cancel()
	select {
	case err := <-r.ended:
		require.NoError(t, err)
		r.ended <- nil // for the clean-up
	case <-ctx.Done():
		require.Fail(t, "the replica waits for the WebSocket")
	}
	_, err = reader.ReadByte()
	require.Error(t, err)
}
