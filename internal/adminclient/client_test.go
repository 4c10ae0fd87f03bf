package adminclient

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const half = `{"items":[`

// hanging answers half of what it promises and is silent until the caller leaves.
func hanging(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, half)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	return server
}

func clientOf(t *testing.T, base string, within time.Duration) *Client {
	t.Helper()
	c, err := New(base, "pga_x", "test")
	require.NoError(t, err)
	require.Equal(t, callWithin, c.within)
	c.within = within
	return c
}

// Guarantee: a server that falls silent in the middle of an answer ends a call, and a stream, with an error after a bounded time.
func TestSilenceInAnAnswerEnds(t *testing.T) {
	t.Parallel()
	server := hanging(t)
	c := clientOf(t, server.URL, 100*time.Millisecond)
	want := server.URL + " began an answer and fell silent for 100ms"
	_, err := c.Do(t.Context(), Call{Path: "/admin/plans"})
	require.EqualError(t, err, want)
	var out bytes.Buffer
	require.EqualError(t, c.Stream(t.Context(), Call{Path: "/admin/audit/export"}, &out), want)
	require.Len(t, out.Bytes(), len(half), "what came is there")
}

// Guarantee: an interrupt ends both at once, whatever they wait for.
func TestAnInterruptEndsAtOnce(t *testing.T) {
	t.Parallel()
	c := clientOf(t, hanging(t).URL, time.Hour)
	for name, call := range map[string]func(ctx context.Context, began io.Writer) error{
		"stream": func(ctx context.Context, began io.Writer) error { return c.Stream(ctx, Call{Path: "/x"}, began) },
		"call": func(ctx context.Context, began io.Writer) error {
			_, _ = began.Write(nil)
			_, err := c.Do(ctx, Call{Path: "/x"})
			return err
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		require.EqualError(t, call(ctx, writer(cancel)), "interrupted", name)
	}
}

// writer calls a function when something is written.
type writer func()

func (w writer) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}

// Guarantee: a stream lasts as long as the server has something to say and its reader takes, not as long as one call may.
func TestAStreamMayBeLong(t *testing.T) {
	t.Parallel()
	const lines, within = 12, 1500 * time.Millisecond
	next := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for i := range lines {
			_, _ = fmt.Fprintln(w, i)
			_ = http.NewResponseController(w).Flush()
			<-next
		}
	}))
	defer server.Close()
	c := clientOf(t, server.URL, within)
	var out strings.Builder
	slow := time.NewTimer(within + 500*time.Millisecond)
	defer slow.Stop()
	first := true
	err := c.Stream(t.Context(), Call{Path: "/x"}, writerTo(func(p []byte) {
		if first { // a reader that takes longer than the server may be silent
			<-slow.C
			first = false
		}
		out.Write(p)
		for range bytes.Count(p, []byte("\n")) {
			next <- struct{}{}
		}
	}))
	require.NoError(t, err)
	require.Equal(t, lines, strings.Count(out.String(), "\n"))
}

type writerTo func(p []byte)

func (w writerTo) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

// Guarantee: a certificate nobody here trusts, and an answer that breaks off, are told as what they are.
func TestBrokenConnectionsAreNamed(t *testing.T) {
	t.Parallel()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	_, err := clientOf(t, secure.URL, time.Minute).Do(t.Context(), Call{Path: "/x"})
	require.ErrorContains(t, err, "cannot be trusted")
	require.ErrorContains(t, err, "SSL_CERT_FILE names the file with its certificate")

	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer broken.Close()
	_, err = clientOf(t, broken.URL, time.Minute).Do(t.Context(), Call{Path: "/x"})
	require.EqualError(t, err, "the answer of "+broken.URL+" broke off: unexpected EOF")
}
