package proxy_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pegel-dev/pegel/internal/proxy"
)

// listening is a server that writes down what it handles. A request whose path says so is answered with its body unread.
type listening struct {
	server *httptest.Server

	mu      sync.Mutex
	handled []string
}

func newListening(tb testing.TB, guarded bool) *listening {
	tb.Helper()
	l := &listening{}
	l.server = httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		what := fmt.Sprintf("%s %s %s %v %d %q", r.Method, r.RequestURI, r.Host, r.TransferEncoding, r.ContentLength, r.Header)
		if !strings.HasPrefix(r.URL.Path, "/unread") {
			body, err := io.ReadAll(r.Body)
			what += fmt.Sprintf(" %q", body)
			if err != nil {
				what = "broken"
			}
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.handled = append(l.handled, what)
	}))
	if guarded {
		l.server.Listener = proxy.Guard(l.server.Listener, l.server.Config)
	}
	l.server.Start()
	tb.Cleanup(l.server.Close)
	return l
}

// send sends a connection's bytes and returns what was handled of them and answered.
func (l *listening) send(t *rapid.T, text []byte) (handled []string, answers []byte) {
	conn, err := net.DialTCP("tcp", nil, l.server.Listener.Addr().(*net.TCPAddr)) //nolint:forcetypeassert,errcheck // it listens on TCP
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, _ = conn.Write(text) // one that is refused half-way
	_ = conn.CloseWrite()
	answers, _ = io.ReadAll(conn)
	l.mu.Lock()
	defer l.mu.Unlock()
	handled, l.handled = l.handled, nil
	return handled, answers
}

// fragments are what requests are put together from, good and bad.
var fragments = []string{
	"GET / HTTP/1.1\r\nHost: x\r\n", "POST / HTTP/1.1\r\nHost: x\r\n", "POST /unread HTTP/1.1\r\nHost: x\r\n", "PUT /unread HTTP/1.0\r\nConnection: keep-alive\r\n",
	"POST / HTTP/1.0\r\nConnection: keep-alive\r\n", "HEAD / HTTP/1.1\r\nHost: x\r\n", "OPTIONS * HTTP/1.1\r\nHost: x\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	"Content-Length: 3\r\n", "Content-Length: 0\r\n", "content-length:3\r\n", "Content-Length: 3 \r\n", "Content-Length : 3\r\n", "Content-Length: 03\r\n", "Content-Length:\r\n", "Content-Length\r\n",
	"Content-Length: 300000\r\n", "Transfer-Encoding: chunked\r\n", "transfer-encoding:chunked\r\n", "Transfer-Encoding: identity\r\n", "Transfer-Encoding:\r\n", "Transfer-Encoding\r\n", "Transfer_Encoding: chunked\r\n",
	"Tran\u017ffer-Encoding: chunked\r\n", "X: Transfer-Encoding: chunked\r\n", "X: " + strings.Repeat("a", 80) + "\r\n", "Expect: 100-continue\r\n", "Connection: close\r\n", "Upgrade: h2c\r\nConnection: Upgrade\r\n",
	"\r\n", "\r\n", "\r\n", "\n", "\r", " ", "\t", "\x00", ":", ";", "abc", "abc\r\n", "0\r\n\r\n", "3\r\nabc\r\n", "3;a=b\r\nabc\r\n", "0\r\nA: b\r\n\r\n", "0\r\nContent-Length: 3\r\n\r\n", "ffffffffffffffff\r\n", "3 \r\nabc\r\n",
	"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
	"POST /unread HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + strings.Repeat("\r\n", 150_000),
}

// Property: behind a guard a server handles the first of the requests that it handles without one, and each of them is the same. At most
// the last one differs, where its body broke off; then it is one that was refused. No answer is of two pieces.
func TestGuardOnlyTakesAway(t *testing.T) {
	t.Parallel()
	plain, guarded := newListening(t, false), newListening(t, true)
	rapid.Check(t, func(t *rapid.T) {
		text := []byte(strings.Join(rapid.SliceOfN(rapid.SampledFrom(fragments), 1, 12).Draw(t, "fragments"), ""))
		all, _ := plain.send(t, text)
		some, answers := guarded.send(t, text)
		broken := len(some) > 0 && some[len(some)-1] == "broken"
		if broken {
			some = some[:len(some)-1]
		}
		require.LessOrEqual(t, len(some), len(all), "%q", text)
		require.True(t, slices.Equal(all[:len(some)], some), "%q\n%q\n%q", text, all, some)
		refused := bytes.Index(answers, []byte("/problems/validation"))
		require.True(t, len(some) == len(all) || broken || refused >= 0, "one is missing and was not refused: %q\n%q\n%q", text, all, answers)
		if refused >= 0 {
			require.NotContains(t, string(answers[refused:]), "}HTTP/1.", "%q", text)
		}
	})
}
