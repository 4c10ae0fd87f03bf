package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/api/client"
)

func asError[T error](err error, into *T) bool { return errors.As(err, into) }

// hung accepts connections and never answers, the harder way of being away.
func hung(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return "http://" + l.Addr().String()
}

// dead refuses connections.
func dead(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return "http://" + l.Addr().String()
}

// answering answers everything alike.
func answering(t *testing.T, status int, contentType, body string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

const token = "pgs_AAAAAAAAAAAA_whatever"

// Guarantee: a Pegel that is away costs the timeout at most, also with batching, and is an error that is no verdict.
func TestAway(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{"hung": hung(t), "dead": dead(t)} {
		for _, options := range [][]client.Option{nil, {client.WithBatching()}} {
			c := newClient(t, url, token, append(options, client.WithTimeout(100*time.Millisecond))...)
			begun := time.Now()
			_, err := c.Check(t.Context(), client.Check{Tenant: "canary-tenant"})
			require.Error(t, err, name)
			require.Less(t, time.Since(begun), 10*time.Second, name)
			require.False(t, client.IsRateLimited(err), name)
			var problem *client.Error
			require.NotErrorAs(t, err, &problem, name)
			require.NotContains(t, err.Error(), token)
			_, err = c.Status(t.Context(), client.Query{Tenant: "canary-tenant"})
			require.Error(t, err)
			require.NotContains(t, err.Error(), "canary", "who was asked about is in no error")
			_, err = c.CheckBatch(t.Context(), []client.Check{{Tenant: "school-17"}})
			require.Error(t, err, name)

			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err = c.Check(ctx, client.Check{Tenant: "school-17"})
			require.ErrorIs(t, err, context.Canceled, name)
		}
	}
}

// Guarantee: a Pegel that stops in the middle of its answer costs the timeout at most.
func TestHangingAnswer(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"decision":"allow","allowed":true,`)
		_ = http.NewResponseController(w).Flush()
		<-end
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(end) })
	for _, options := range [][]client.Option{nil, {client.WithBatching()}} {
		c := newClient(t, s.URL, token, append(options, client.WithTimeout(100*time.Millisecond))...)
		_, err := c.Check(t.Context(), client.Check{Tenant: "school-17"})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = c.CheckBatch(t.Context(), []client.Check{{Tenant: "school-17"}})
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
}

// Guarantee: a caller that leaves a shared request is answered at once, and the others are not harmed.
func TestBatchingCallerLeaves(t *testing.T) {
	t.Parallel()
	let := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		<-let
		answer := `{"decision":"allow","allowed":true,"decision_id":"1","source":"redis","limits":[]}`
		if r.URL.Path == "/v1/check/batch" { // both came before the request went
			answer = `{"results":[` + strings.Join(slices.Repeat([]string{answer}, strings.Count(string(body), `"tenant"`)), ",") + `]}`
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(s.Close)
	c := newClient(t, s.URL, token, client.WithBatching())
	first := make(chan error, 1)
	go func() {
		_, err := c.Check(t.Context(), client.Check{Tenant: "school-17"})
		first <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := c.Check(ctx, client.Check{Tenant: "school-17"})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	close(let)
	require.NoError(t, <-first)
}

// Guarantee: whatever else answers on Pegel's address is never taken for a verdict.
func TestGarbage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status            int
		contentType, body string
	}{
		"a web page":         {200, "text/html", "<html>welcome</html>"},
		"nothing":            {204, "", ""},
		"empty JSON":         {200, "application/json", "{}"},
		"another API":        {200, "application/json", `{"allowed":true}`},
		"unknown verdict":    {200, "application/json", `{"decision":"maybe","allowed":true,"decision_id":"1"}`},
		"a wrong type":       {200, "application/json", `{"decision":"allow","allowed":"yes","decision_id":"1"}`},
		"cut short":          {200, "application/json", `{"decision":"allow","allo`},
		"somebody's 429":     {429, "text/html", "slow down"},
		"a gateway's 502":    {502, "text/html", "<html>bad gateway</html>"},
		"a redirect":         {302, "text/html", ""},
		"more than any body": {200, "application/json", `{"x":"` + strings.Repeat("x", 33<<20) + `"}`},
	} {
		url := answering(t, c.status, c.contentType, c.body)
		pegel := newClient(t, url, token)
		_, err := pegel.Check(t.Context(), client.Check{Tenant: "school-17"})
		require.ErrorIs(t, err, client.ErrBadAnswer, name)
		require.False(t, client.IsRateLimited(err), name)
		_, err = pegel.CheckBatch(t.Context(), []client.Check{{Tenant: "school-17"}})
		require.ErrorIs(t, err, client.ErrBadAnswer, name)
	}
	results, err := newClient(t, answering(t, 200, "application/json", `{"results":[7]}`), token).CheckBatch(t.Context(), []client.Check{{Tenant: "school-17"}})
	require.NoError(t, err)
	require.ErrorIs(t, results[0].Err, client.ErrBadAnswer)
}
