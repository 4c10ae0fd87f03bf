package backoff_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/docs/examples/backoff"
)

func waitAfter(status int, retryAfter string, n int) (time.Duration, bool) {
	h := http.Header{}
	if retryAfter != "" {
		h.Set("Retry-After", retryAfter)
	}
	return backoff.Wait(&http.Response{StatusCode: status, Header: h, Body: http.NoBody}, n)
}

func TestWait(t *testing.T) {
	t.Parallel()
	for range 1000 {
		wait, again := waitAfter(429, "12", 0)
		require.True(t, again)
		require.GreaterOrEqual(t, wait, 12*time.Second, "never earlier than told")
		require.Less(t, wait, 14*time.Second)

		wait, again = waitAfter(503, "", 40)
		require.True(t, again)
		require.LessOrEqual(t, wait, time.Minute, "bounded however often it failed")
		require.GreaterOrEqual(t, wait, time.Duration(0))
	}
	_, again := waitAfter(429, "", 0)
	require.False(t, again, "a cost above the limit never fits")
}

// A refused request is repeated with its whole body, and the caller sees only the answer that counts.
func TestDoRepeatsWithTheBody(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != "hello" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if calls.Add(1) < 3 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	t.Cleanup(server.Close)
	req, err := http.NewRequest(http.MethodPost, server.URL, strings.NewReader("hello"))
	require.NoError(t, err)
	res, err := backoff.Do(t.Context(), server.Client(), req)
	require.NoError(t, err)
	t.Cleanup(func() { _ = res.Body.Close() })
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, int64(3), calls.Load())
}

func TestDoLeavesWithItsContext(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	t.Cleanup(server.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	t.Cleanup(cancel)
	req, err := http.NewRequest(http.MethodGet, server.URL, nil)
	require.NoError(t, err)
	res, err := backoff.Do(ctx, server.Client(), req)
	if res != nil {
		_ = res.Body.Close()
	}
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
