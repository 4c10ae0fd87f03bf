package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

func mustPrefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

// away is a store that cannot decide.
type away struct{}

func (away) Source() ratelimit.Source { return ratelimit.SourceRedis }

func (away) Decide(context.Context, []ratelimit.Charge, []ratelimit.Outcome) error {
	return ratelimit.ErrUnavailable
}

// B064: each event arrives when it is sent.
func TestEventStream(t *testing.T) {
	t.Parallel()
	next := make(chan struct{})
	g := newGate(t, gateOptions{answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for n := range 3 {
			_, _ = fmt.Fprintf(w, "data: %d\n", n)
			_ = http.NewResponseController(w).Flush()
			<-next
		}
	}})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, g.server.URL, nil)
	require.NoError(t, err)
	res, err := g.client.Do(req)
	require.NoError(t, err)
	defer func() { require.NoError(t, res.Body.Close()) }()
	lines := bufio.NewScanner(res.Body)
	for n := range 3 {
		require.True(t, lines.Scan())
		require.Equal(t, fmt.Sprint("data: ", n), lines.Text())
		next <- struct{}{}
	}
}

func TestWebSocketsAreTunnelledNothingElseIs(t *testing.T) {
	t.Parallel()
	g := newGate(t, gateOptions{limits: []tenants.Rule{perMinute(10)}, answer: func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			_, _ = io.WriteString(w, "plain")
			return
		}
		conn, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = fmt.Fprintf(both, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		_ = both.Flush()
		line, _ := both.ReadString('\n')
		_, _ = both.WriteString("echo " + line)
		_ = both.Flush()
	}})
	ask := func(upgrade string) (*http.Response, *bufio.Reader, io.Writer) {
		conn := g.raw(t, "GET / HTTP/1.1\r\nHost: x\r\nX-API-Key: "+g.key+"\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: "+upgrade+"\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n")
		reader := bufio.NewReader(conn)
		res, err := http.ReadResponse(reader, nil)
		require.NoError(t, err)
		return res, reader, conn
	}
	res, reader, conn := ask("WebSocket")
	require.Equal(t, http.StatusSwitchingProtocols, res.StatusCode)
	require.Equal(t, "9", res.Header.Get("X-RateLimit-Remaining"))
	_, err := io.WriteString(conn, "hello\n")
	require.NoError(t, err)
	line, err := reader.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "echo hello\n", line)
	require.NoError(t, res.Body.Close())

	for _, other := range []string{"h2c", "websocket, h2c", "TLS/1.0", "HTTP/2.0"} {
		res, _, _ = ask(other)
		require.Equal(t, http.StatusOK, res.StatusCode, other)
		require.NoError(t, res.Body.Close())
		h := (<-g.seen).Header
		require.Empty(t, h.Get("Upgrade"))
		require.Empty(t, h.Get("Http2-Settings"))
	}
}

// Early hints pass, and do not cost the answer its headers.
func TestInformationalResponses(t *testing.T) {
	t.Parallel()
	g := newGate(t, gateOptions{limits: []tenants.Rule{perMinute(10)}, answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</a.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "hello")
		w.Header().Set("X-Sum", "5")
	}})
	res := g.do(t, "GET", "/", nil, "X-API-Key", g.key)
	require.Equal(t, "9", res.Header.Get("X-RateLimit-Remaining"))
	require.NotEmpty(t, res.Header.Get("X-Request-Id"))
	require.Equal(t, "5", res.Trailer.Get("X-Sum"))
}

// B063: what could be read as two requests is refused, by net/http here, by Guard in TestAmbiguousFramingIsRefused.
func TestSmuggling(t *testing.T) {
	t.Parallel()
	g := newGate(t, gateOptions{answer: func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%d %q", r.ContentLength, body)
	}})
	status := func(text string) int {
		res, err := http.ReadResponse(bufio.NewReader(g.raw(t, text)), nil)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		return res.StatusCode
	}
	for _, text := range []string{
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +4\r\n\r\nabcd",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nBad Header: 1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\n\r\n",
		"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n",
	} {
		require.GreaterOrEqual(t, status(text), 400, "%q", text)
	}
	require.Equal(t, http.StatusOK, status("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"), "net/http answers for itself")
	require.Zero(t, g.calls.Load())

	// A body that cannot be read is the client's fault, not the upstream's.
	for _, body := range []string{"1\na\r\n0\r\n\r\n", "zz\r\na\r\n0\r\n\r\n", "1\r\nab\r\n0\r\n\r\n"} {
		res, err := http.ReadResponse(bufio.NewReader(g.raw(t, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"+body)), nil)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusBadRequest, res.StatusCode, "%q", body)
		require.True(t, res.Close, "%q", body)
	}
}

// An absolute-form target is its path; its host is the proxy's business.
func TestAbsoluteFormTarget(t *testing.T) {
	t.Parallel()
	g := newGate(t, gateOptions{})
	res, err := http.ReadResponse(bufio.NewReader(g.raw(t, "GET http://elsewhere.example/a HTTP/1.1\r\nHost: x\r\n\r\n")), nil)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)
	seen := <-g.seen
	require.Equal(t, "/a", seen.RequestURI)
	require.Equal(t, strings.TrimPrefix(g.upstream.URL, "http://"), seen.Host)
}

// The short forms of the soaks: an event stream in order and whole, and an upload larger than what it may take in memory.
func TestStreamsAreNotKept(t *testing.T) {
	g := newGate(t, gateOptions{answer: events(20, 10*time.Millisecond)})
	t.Logf("the latest of 20 events took %s", g.lateness(t, 20))
	g = newGate(t, gateOptions{answer: count})
	require.Less(t, g.upload(t, 128<<20), int64(64<<20))
}
