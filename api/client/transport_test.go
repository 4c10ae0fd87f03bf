package client_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/api/client"
)

// upstream answers what it is told, one answer after the other, and keeps what it was sent.
type upstream struct {
	*httptest.Server

	mu     sync.Mutex
	bodies []string
	times  []time.Time
}

type step struct {
	status     int
	retryAfter string
}

func newUpstream(t *testing.T, steps ...step) *upstream {
	t.Helper()
	u := &upstream{}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		u.mu.Lock()
		u.bodies, u.times = append(u.bodies, string(body)), append(u.times, time.Now())
		next := steps[min(len(u.bodies), len(steps))-1]
		u.mu.Unlock()
		if next.retryAfter != "" {
			w.Header().Set("Retry-After", next.retryAfter)
		}
		w.WriteHeader(next.status)
		_, _ = io.WriteString(w, http.StatusText(next.status))
	}))
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) seen() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]string(nil), u.bodies...)
}

// Guarantee: a refused request is sent again after the time it was told to wait, never before, with the same body.
func TestTransportWaitsAndRepeats(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, step{429, "0"}, step{429, "1"}, step{200, ""})
	var waits []time.Duration
	api := &http.Client{Transport: &client.Transport{OnWait: func(_ *http.Request, attempt int, wait time.Duration) {
		require.Equal(t, len(waits)+1, attempt)
		waits = append(waits, wait)
	}}}
	res, err := api.Post(u.URL, "text/plain", strings.NewReader("the body"))
	require.NoError(t, err)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, "OK", string(body))
	require.Equal(t, []string{"the body", "the body", "the body"}, u.seen())
	require.Len(t, waits, 2)
	require.GreaterOrEqual(t, waits[1], time.Second)
	require.GreaterOrEqual(t, u.times[2].Sub(u.times[1]), time.Second)
}

// Guarantee: it never waits where that cannot help or is not safe, and returns the answer as it came.
func TestTransportGivesUp(t *testing.T) {
	t.Parallel()
	post := func(body io.Reader) func(url string) *http.Request {
		return func(url string) *http.Request {
			req, err := http.NewRequest(http.MethodPost, url, body)
			require.NoError(t, err)
			return req
		}
	}
	get := func(url string) *http.Request {
		req, err := http.NewRequest(http.MethodGet, url, http.NoBody)
		require.NoError(t, err)
		return req
	}
	idempotent := func(url string) *http.Request {
		req := post(strings.NewReader("x"))(url)
		req.Header.Set("Idempotency-Key", "1")
		return req
	}
	for name, c := range map[string]struct {
		steps   []step
		request func(url string) *http.Request
		sent    int
		status  int
	}{
		"no Retry-After":            {[]step{{429, ""}}, get, 1, 429},
		"unreadable":                {[]step{{429, "soon"}}, get, 1, 429},
		"negative":                  {[]step{{429, "-1"}}, get, 1, 429},
		"longer than it waits":      {[]step{{429, "3600"}}, get, 1, 429},
		"a date in a year":          {[]step{{429, time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat)}}, get, 1, 429},
		"a date in the past":        {[]step{{429, time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)}, {200, ""}}, get, 2, 200},
		"attempts used up":          {[]step{{429, "0"}}, get, 4, 429},
		"a body only once":          {[]step{{429, "0"}}, post(io.MultiReader(strings.NewReader("x"))), 1, 429},
		"503 to GET":                {[]step{{503, "0"}, {200, ""}}, get, 2, 200},
		"503 to POST":               {[]step{{503, "0"}}, post(strings.NewReader("x")), 1, 503},
		"503 to POST, idempotent":   {[]step{{503, "0"}, {201, ""}}, idempotent, 2, 201},
		"503 without Retry-After":   {[]step{{503, ""}}, get, 1, 503},
		"another error":             {[]step{{500, "0"}}, get, 1, 500},
		"429 to POST without body":  {[]step{{429, "0"}, {200, ""}}, post(nil), 2, 200},
		"429 to POST, body rewinds": {[]step{{429, "0"}, {200, ""}}, post(strings.NewReader("x")), 2, 200},
	} {
		u := newUpstream(t, c.steps...)
		res, err := (&http.Client{Transport: &client.Transport{}}).Do(c.request(u.URL))
		require.NoError(t, err, name)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err, name)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusText(c.status), string(body), "%s: the last answer can be read", name)
		require.Equal(t, c.status, res.StatusCode, name)
		require.Len(t, u.seen(), c.sent, name)
	}
}

// Guarantee: waits end with the request's context, and none begins that the context would end.
func TestTransportContext(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, step{429, "20"})
	ctx, leave := context.WithCancel(t.Context())
	api := &http.Client{Transport: &client.Transport{OnWait: func(*http.Request, int, time.Duration) { leave() }}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.URL, http.NoBody)
	require.NoError(t, err)
	res, err := api.Do(req)
	if err == nil {
		_ = res.Body.Close()
	}
	require.ErrorIs(t, err, context.Canceled)

	limited, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err = http.NewRequestWithContext(limited, http.MethodGet, u.URL, http.NoBody)
	require.NoError(t, err)
	res, err = (&http.Client{Transport: &client.Transport{}}).Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, 429, res.StatusCode, "an answer is worth more than a deadline that was waited for")

	failing := roundTrip(func(*http.Request) (*http.Response, error) { return nil, errors.New("broken") })
	res, err = (&http.Client{Transport: &client.Transport{Base: failing}}).Get("http://nowhere.invalid")
	if err == nil {
		_ = res.Body.Close()
	}
	require.ErrorContains(t, err, "broken")
}

// Guarantee: a server that refuses and then hangs in the middle of its body does not hold the client.
func TestTransportHangingRefusal(t *testing.T) {
	t.Parallel()
	end, asked := make(chan struct{}), 0
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked > 1 {
			_, _ = io.WriteString(w, "served")
			return
		}
		w.Header().Set("Retry-After", "0")
		w.Header().Set("Content-Length", "1000")
		w.WriteHeader(http.StatusTooManyRequests)
		_ = http.NewResponseController(w).Flush()
		<-end
	}))
	t.Cleanup(api.Close)
	t.Cleanup(func() { close(end) })
	req, err := http.NewRequest(http.MethodGet, api.URL, http.NoBody) // no deadline
	require.NoError(t, err)
	answered := make(chan error, 1)
	go func() {
		res, err := (&http.Client{Transport: &client.Transport{}}).Do(req)
		if err == nil {
			err = res.Body.Close()
		}
		answered <- err
	}()
	select {
	case err := <-answered:
		require.NoError(t, err)
	case <-time.After(30 * time.Second):
		require.Fail(t, "held by a body that never comes")
	}
	require.Equal(t, 2, asked)
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Guarantee: against a real Pegel, a client with the transport gets every request through a limit that refuses half of them.
func TestTransportAgainstPegel(t *testing.T) {
	t.Parallel()
	s := shared(t)
	key := s.tenant("school-17", map[string]any{"name": "per-second", "limit": 2, "window": "1s"})
	refused := 0
	api := &http.Client{Transport: &client.Transport{OnWait: func(*http.Request, int, time.Duration) { refused++ }}}
	for range 5 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/v1/ping", http.NoBody)
		require.NoError(t, err)
		req.Header.Set("X-Api-Key", key)
		res, err := api.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, 200, res.StatusCode)
	}
	require.Positive(t, refused)
}
