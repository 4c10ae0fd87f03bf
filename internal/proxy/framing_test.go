package proxy_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// wire is an upstream that keeps every byte that reaches it and answers the first request of a connection.
type wire struct {
	mu    sync.Mutex
	bytes bytes.Buffer
	url   *url.URL
}

func newWire(t *testing.T) *wire {
	t.Helper()
	w := &wire{}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w.url = &url.URL{Scheme: "http", Host: listener.Addr().String()}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { w.serve(conn) })
		}
	})
	t.Cleanup(func() { _ = listener.Close(); all.Wait() })
	return w
}

func (w *wire) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	req, err := http.ReadRequest(bufio.NewReader(io.TeeReader(conn, w)))
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, req.Body)
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bytes.Write(p)
}

func (w *wire) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bytes.String()
}

// B063: what the upstream gets reads one way only: one length, no line folded, no bare line feed, and nothing behind the body.
func TestTheUpstreamSeesOneFraming(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ request, body, framing string }{
		"chunks":              {"POST / HTTP/1.1\r\nHost: x\r\ntransfer-encoding: Chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n", "Transfer-Encoding: chunked"},
		"chunk extensions":    {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0;c\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n", "Transfer-Encoding: chunked"},
		"a length":            {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length:\t3 \r\n\r\nabc", "\r\n\r\nabc", "Content-Length: 3"},
		"named in Connection": {"POST / HTTP/1.1\r\nHost: x\r\nConnection: Content-Length, Transfer-Encoding\r\nContent-Length: 3\r\n\r\nabc", "\r\n\r\nabc", "Content-Length: 3"},
		"HTTP/1.0":            {"POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", "\r\n\r\nabc", "Content-Length: 3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			upstream := newWire(t)
			g := newGate(t, gateOptions{upstream: upstream.url})
			res, err := http.ReadResponse(bufio.NewReader(g.raw(t, c.request)), nil)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			require.Equal(t, http.StatusOK, res.StatusCode)
			seen := upstream.text()
			require.True(t, strings.HasSuffix(seen, c.body), "%q", seen)
			require.NotContains(t, strings.ReplaceAll(seen, "\r\n", ""), "\n", "%q", seen)
			require.NotContains(t, seen, "\r\n ", "%q", seen)
			head, _, _ := strings.Cut(seen, "\r\n\r\n")
			require.Equal(t, 1, strings.Count(strings.ToLower(head), "content-length:")+strings.Count(strings.ToLower(head), "transfer-encoding:"), "%q", head)
			require.Contains(t, head, c.framing)
		})
	}
}
