package client

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// askTimeout is how long a request of yours waits for a decision at most: Pegel's own deadlines, Redis' and then Postgres',
	// fit in it.
	askTimeout = 250 * time.Millisecond
	// defaultHeld caps the slowed requests that are held at one time.
	defaultHeld = 1000
	// logEvery keeps an outage from filling the log.
	logEvery = 10 * time.Second
)

// MiddlewareOption changes how Middleware works.
type MiddlewareOption func(*middleware)

// WithAskTimeout bounds how long a request waits for its decision. The default is 250 ms.
func WithAskTimeout(d time.Duration) MiddlewareOption {
	return func(m *middleware) {
		if d > 0 {
			m.timeout = d
		}
	}
}

// WithMaxHeld caps how many slowed requests are held at one time; beyond it the answer is 429 at once. The default is 1,000.
func WithMaxHeld(n int) MiddlewareOption { return func(m *middleware) { m.maxHeld = int64(n) } }

// WithOnError is told of every request that passed, or with WithFailClosed was refused, because Pegel gave no decision. The
// default writes to slog.Default, at most once in 10 s. It must not block.
func WithOnError(f func(r *http.Request, err error)) MiddlewareOption {
	return func(m *middleware) { m.onError = f }
}

// WithFailClosed answers 503 where Pegel gives no decision: for routes that are worse open than away, such as a login.
func WithFailClosed() MiddlewareOption { return func(m *middleware) { m.closed = true } }

// ErrNotAsked is what WithOnError is told while Pegel is left alone for a second, after several failures in a row.
var ErrNotAsked = errors.New("pegel: not asked, because it did not answer just now")

// Middleware decides on every request before next sees it. identify names who pays (see Check); ok false lets the request pass
// unasked, for health checks and the like. Believe only what was authenticated: a tenant from a header that anybody may send is a
// way to spend somebody else's budget.
//
//   - Allowed: next is called, and the answer has the rate-limit headers.
//   - Slowed: the same, after the delay. A client that leaves meanwhile is not served, and next is not called.
//   - Refused: 429 with Retry-After and Pegel's problem document.
//   - Suspended tenants, denied networks, unknown tenants, checks that are not valid, and closed limits that no store can decide
//     are refused with Pegel's own status and document.
//   - Pegel away, too slow, or at odds with this program (a wrong token, say): next is called without headers, and WithOnError's
//     function is told. After five failures in a row Pegel is asked again only after a second.
//
// It is plain net/http, so it fits chi and every router that takes func(http.Handler) http.Handler; the examples show gin and
// echo.
func Middleware(c *Client, identify func(*http.Request) (check Check, ok bool), options ...MiddlewareOption) func(next http.Handler) http.Handler {
	m := &middleware{client: c, identify: identify, timeout: askTimeout, maxHeld: defaultHeld}
	m.onError = m.log
	for _, option := range options {
		option(m)
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if m.admit(w, r) {
				next.ServeHTTP(w, r)
			}
		})
	}
}

type middleware struct {
	client   *Client
	identify func(*http.Request) (Check, bool)
	timeout  time.Duration
	maxHeld  int64
	closed   bool
	onError  func(*http.Request, error)

	held    atomic.Int64
	breaker breaker
	logged  atomic.Int64 // when the log was last written to, Unix nanoseconds
}

// admit reports whether the request goes on; otherwise it has been answered.
func (m *middleware) admit(w http.ResponseWriter, r *http.Request) bool {
	check, ok := m.identify(r)
	if !ok {
		return true
	}
	check.Wait = false // the delay is waited for here, where the client's leaving is seen
	d, err := m.ask(r.Context(), check)
	var refusal *RateLimitError
	var answer *Error
	switch {
	case err == nil:
		d.SetHeaders(w.Header(), time.Now())
		return d.Delay <= 0 || m.hold(w, r, d)
	case errors.As(err, &refusal):
		d.SetHeaders(w.Header(), time.Now())
		writeProblem(w, http.StatusTooManyRequests, refusal.Body)
		return false
	case errors.As(err, &answer) && answer.aboutRequest():
		if answer.Status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "2")
		}
		writeProblem(w, answer.Status, answer.Body)
		return false
	case r.Context().Err() != nil:
		m.gone(w)
		return false
	}
	m.onError(r, err)
	if m.closed {
		w.Header().Set("Retry-After", "2")
		writeProblem(w, http.StatusServiceUnavailable, problemBody("store-unavailable", http.StatusServiceUnavailable, "no decision can be made now"))
		return false
	}
	return true
}

// ask asks Pegel unless it has been failing. Whoever leaves meanwhile is no failure of Pegel's.
func (m *middleware) ask(ctx context.Context, check Check) (*Decision, error) {
	if !m.breaker.allow(time.Now()) {
		return nil, ErrNotAsked
	}
	limited, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	d, err := m.client.Check(limited, check)
	var answer *Error
	switch {
	case err == nil, IsRateLimited(err), errors.As(err, &answer) && answer.Status < http.StatusInternalServerError:
		m.breaker.succeeded()
	case errors.As(err, &answer) && answer.aboutRequest():
		m.breaker.succeeded()
	case ctx.Err() == nil:
		m.breaker.failed(time.Now())
	}
	return d, err
}

// aboutRequest reports whether an answer speaks of the request, and not of this program's token or of Pegel's own trouble.
func (e *Error) aboutRequest() bool {
	switch e.Code {
	case "tenant_suspended", "network_denied", "not_found", "validation", codeTooLarge:
		return true
	case "store_unavailable": // a closed limit; a Pegel that is starting is one that is away
		return !e.starting
	}
	return false
}

// hold waits for the delay. It reports false when the client has left, or was refused because too many are held.
func (m *middleware) hold(w http.ResponseWriter, r *http.Request, d *Decision) bool {
	defer m.held.Add(-1)
	if m.held.Add(1) > m.maxHeld {
		w.Header().Set("Retry-After", "1")
		writeProblem(w, http.StatusTooManyRequests, problemBody("too-many-held", http.StatusTooManyRequests, "too many requests are held in slow-down; retry in 1 s"))
		return false
	}
	timer := time.NewTimer(d.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		m.gone(w)
		return false
	}
}

// gone answers a request whose context has ended: nobody reads it, unless a deadline of this service's own ended it.
func (m *middleware) gone(w http.ResponseWriter) {
	writeProblem(w, http.StatusServiceUnavailable, problemBody("internal", http.StatusServiceUnavailable, "the request ended before it was decided"))
}

// log is the default of WithOnError.
func (m *middleware) log(r *http.Request, err error) {
	now := time.Now().UnixNano()
	last := m.logged.Load()
	if since := now - last; since >= 0 && since < int64(logEvery) || !m.logged.CompareAndSwap(last, now) {
		return
	}
	slog.Default().WarnContext(r.Context(), "pegel gives no decisions", slog.Bool("requests_pass", !m.closed), slog.Any("error", err))
}

func writeProblem(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has left misses its refusal
}

// problemBody is a problem document of this middleware's own, in the form of Pegel's.
func problemBody(slug string, status int, detail string) []byte {
	raw, _ := json.Marshal(struct { // texts and numbers always marshal
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
		Error  string `json:"error"`
	}{"https://pegel.dev/problems/" + slug, http.StatusText(status), status, detail, strings.ReplaceAll(slug, "-", "_")})
	return raw
}
