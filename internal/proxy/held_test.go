package proxy_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// slowGate holds every request until the test lets it go.
func slowGate(t *testing.T, o gateOptions) *gate {
	t.Helper()
	rule := perMinute(1000)
	rule.Slowdown.From = 0
	o.limits = []tenants.Rule{rule}
	g := newGate(t, o)
	g.timer.holds = true
	return g
}

func (g *gate) waitHeld(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return g.holder.Held() == n }, 10*time.Second, time.Millisecond)
}

// A client that leaves while it is held frees its slot within a second, and the upstream is not called: with no body, with a
// body that has arrived, and with one that has not.
func TestALeavingClientIsNotForwarded(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]string{
		"no body":       "GET / HTTP/1.1\r\nHost: x\r\n",
		"whole body":    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n",
		"half a body":   "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n",
		"chunked body":  "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n",
		"awaited body":  "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n",
		"HEAD for once": "HEAD / HTTP/1.1\r\nHost: x\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := slowGate(t, gateOptions{})
			text := request + "X-API-Key: " + g.key + "\r\n\r\n"
			if strings.Contains(request, "POST") && !strings.Contains(request, "Expect") && !strings.Contains(request, "chunked") {
				text += "data"
			}
			conn := g.raw(t, text)
			g.waitHeld(t, 1)
			left := time.Now()
			require.NoError(t, conn.Close())
			g.waitHeld(t, 0)
			require.Less(t, time.Since(left), time.Second)
			g.server.Close() // waits for the handler
			require.Zero(t, g.calls.Load())
		})
	}
}

func TestAHeldRequestKeepsItsBody(t *testing.T) {
	t.Parallel()
	g := slowGate(t, gateOptions{answer: func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	}})
	for _, size := range []int{1, 4 << 10, 16 << 10, 16<<10 + 1, 1 << 20} {
		body := strings.Repeat("x", size-1) + "."
		done := make(chan string, 1)
		go func() { done <- g.do(t, "POST", "/", strings.NewReader(body), "X-API-Key", g.key).body }()
		g.waitHeld(t, 1)
		g.timer.fire <- time.Time{}
		require.Zero(t, strings.Compare(body, <-done), "%d bytes", size)
	}
}

// A body that is still on its way when the delay is over flows on as it comes.
func TestAHeldRequestStreamsOn(t *testing.T) {
	t.Parallel()
	arrived := make(chan string, 2)
	g := slowGate(t, gateOptions{answer: func(_ http.ResponseWriter, r *http.Request) {
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			arrived <- lines.Text()
		}
	}})
	conn := g.raw(t, "POST / HTTP/1.1\r\nHost: x\r\nX-API-Key: "+g.key+"\r\nContent-Length: 12\r\n\r\nfirst\n")
	g.waitHeld(t, 1)
	g.timer.fire <- time.Time{}
	require.Equal(t, "first", <-arrived)
	_, err := io.WriteString(conn, "second")
	require.NoError(t, err)
	require.Equal(t, "second", <-arrived)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)
}

// An upstream that answers without reading the body does not leave the request's reader behind.
func TestAnEarlyAnswerEndsTheReader(t *testing.T) {
	t.Parallel()
	g := slowGate(t, gateOptions{answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusConflict)
		_ = http.NewResponseController(w).Flush()
	}})
	conn := g.raw(t, "POST / HTTP/1.1\r\nHost: x\r\nX-API-Key: "+g.key+"\r\nContent-Length: 12\r\n\r\nfirst\n")
	g.waitHeld(t, 1)
	g.timer.fire <- time.Time{}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusConflict, res.StatusCode)
	g.server.Close() // waits for the handler
}

func TestBeyondTheCapRefusesAtOnce(t *testing.T) {
	t.Parallel()
	g := slowGate(t, gateOptions{perTenant: 2})
	done := make(chan *got, 2)
	for range 2 {
		go func() { done <- g.do(t, "GET", "/", nil, "X-API-Key", g.key) }()
	}
	g.waitHeld(t, 2)
	res := g.do(t, "GET", "/", nil, "X-API-Key", g.key)
	require.Equal(t, http.StatusTooManyRequests, res.StatusCode)
	require.Equal(t, "too_many_held", res.problem(t)["error"])
	require.Equal(t, "1", res.Header.Get("Retry-After"))
	require.Equal(t, "997", res.Header.Get("X-RateLimit-Remaining"), "the unit stays charged")
	for range 2 {
		g.timer.fire <- time.Time{}
	}
	for range 2 {
		held := <-done
		require.Equal(t, http.StatusOK, held.StatusCode)
		require.NotEmpty(t, held.Header.Get("X-RateLimit-Slowdown"))
	}
	require.EqualValues(t, 2, g.calls.Load())
}
