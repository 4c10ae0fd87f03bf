package proxy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// echo answers a WebSocket's handshake and then every line with the same; to anything else it says no.
func echo(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" || r.URL.Path == "/no" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	conn, both, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	_, _ = io.Copy(conn, both)
}

// socket is a client's end of a tunnel.
type socket struct {
	net.Conn

	reader   *bufio.Reader
	response *http.Response
}

func (g *gate) socket(t *testing.T, path string, pairs ...string) *socket {
	t.Helper()
	text := "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
	for i := 0; i < len(pairs); i += 2 {
		text += pairs[i] + ": " + pairs[i+1] + "\r\n"
	}
	s := &socket{Conn: g.raw(t, text+"\r\n")}
	s.reader = bufio.NewReader(s.Conn)
	var err error
	s.response, err = http.ReadResponse(s.reader, nil) //nolint:bodyclose // the clean-up closes it
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.response.Body.Close() })
	return s
}

func (s *socket) says(t *testing.T, line string) {
	t.Helper()
	_, err := fmt.Fprintln(s, line)
	require.NoError(t, err)
	answer, err := s.reader.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, line+"\n", answer)
}

// isCut waits for the end of a tunnel that nobody asked for.
func (s *socket) isCut(t *testing.T) {
	t.Helper()
	_, err := s.reader.ReadByte()
	var slow net.Error
	require.False(t, errors.As(err, &slow) && slow.Timeout(), "it is still open")
	require.Error(t, err)
}

// The handshake is a hit like any other; a tenant's WebSockets are capped, and one that ends or is refused frees its place.
func TestWebSocketsOfATenantAreCapped(t *testing.T) {
	t.Parallel()
	places := decision.NewHolder(2, 3, nil)
	g := newGate(t, gateOptions{limits: []tenants.Rule{perMinute(10)}, answer: echo, sockets: places})
	free := func(n int) {
		require.Eventually(t, func() bool { return places.Held() == n }, 10*time.Second, time.Millisecond)
	}
	first, second := g.socket(t, "/", "X-API-Key", g.key), g.socket(t, "/", "X-API-Key", g.key)
	first.says(t, "a")
	second.says(t, "b")
	third := g.socket(t, "/", "X-API-Key", g.key)
	require.Equal(t, http.StatusTooManyRequests, third.response.StatusCode)
	require.Equal(t, "1", third.response.Header.Get("Retry-After"))
	require.Equal(t, "7", third.response.Header.Get("X-RateLimit-Remaining"), "the handshake stays charged")
	body, err := io.ReadAll(third.response.Body)
	require.NoError(t, err)
	require.Contains(t, string(body), "too many WebSockets of this caller are open")
	require.Contains(t, string(body), `"too_many_held"`)
	require.EqualValues(t, 2, g.calls.Load())

	g.socket(t, "/").says(t, "an address has places of its own")
	require.Equal(t, http.StatusTooManyRequests, g.socket(t, "/").response.StatusCode, "and there is a cap on all")
	require.NoError(t, first.Close())
	free(2)
	require.Equal(t, http.StatusForbidden, g.socket(t, "/no", "X-API-Key", g.key).response.StatusCode)
	free(2)
	g.socket(t, "/", "X-API-Key", g.key).says(t, "c")
}

func TestAWebSocketEndsWithItsLifetime(t *testing.T) {
	t.Parallel()
	places := decision.NewHolder(2, 2, nil)
	g := newGate(t, gateOptions{answer: echo, sockets: places, lifetime: 300 * time.Millisecond})
	s := g.socket(t, "/")
	require.Equal(t, http.StatusSwitchingProtocols, s.response.StatusCode)
	s.isCut(t)
	require.Eventually(t, func() bool { return places.Held() == 0 }, 10*time.Second, time.Millisecond)
}

// A drain cuts WebSockets and waits for their end; a handshake that comes later has no tunnel.
func TestADrainEndsWebSockets(t *testing.T) {
	t.Parallel()
	places := decision.NewHolder(5, 5, nil)
	g := newGate(t, gateOptions{answer: echo, sockets: places})
	s := g.socket(t, "/")
	s.says(t, "a")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, g.proxy.Shutdown(ctx))
	require.Zero(t, places.Held(), "it waited")
	s.isCut(t)
	require.NoError(t, g.proxy.Shutdown(ctx), "again does no harm")

	late := g.raw(t, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	if res, err := http.ReadResponse(bufio.NewReader(late), nil); err == nil {
		require.NotEqual(t, http.StatusSwitchingProtocols, res.StatusCode)
		require.NoError(t, res.Body.Close())
	}
	require.Eventually(t, func() bool { return places.Held() == 0 }, 10*time.Second, time.Millisecond)
}
