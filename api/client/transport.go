package client

import (
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

const (
	defaultAttempts = 4
	defaultMaxWait  = 30 * time.Second
	// drained is how much of a refusal's body is read so that its connection is used again.
	drained = 64 << 10
	// drainTime is how long that may take. A server that refuses and then hangs must not hold the client.
	drainTime = time.Second
)

// Transport is an http.RoundTripper that obeys Retry-After: a request that is refused with 429 is sent again after the time it
// was told to wait, and a little more, so that not all come back in the same instant. Put it into the http.Client that calls an
// API that is rate-limited, by Pegel or by anything else:
//
//	api := &http.Client{Transport: &client.Transport{}}
//
// 503 with Retry-After is treated alike for methods that may be repeated (GET, HEAD, OPTIONS, TRACE, PUT, DELETE, and anything with
// an Idempotency-Key). The last answer is returned as it is: when attempts or time are used up, when there is no Retry-After (waiting
// does not help), when the request's context would end before the wait does, and when the body cannot be sent again (no
// GetBody; http.NewRequest sets it for bytes.Reader, bytes.Buffer and strings.Reader).
//
// An http.Client's Timeout includes the waits. The zero value is ready; fields must not change while it is in use.
type Transport struct {
	// Base sends requests; nil: http.DefaultTransport.
	Base http.RoundTripper
	// MaxAttempts is how often a request is sent at most; 0: 4.
	MaxAttempts int
	// MaxWait is how long one request waits in all; an answer that asks for more is returned at once. 0: 30 s.
	MaxWait time.Duration
	// OnWait is told before each wait; it must not block.
	OnWait func(r *http.Request, attempt int, wait time.Duration)
}

// RoundTrip sends a request as often as it takes, within the bounds.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base, attempts, patience := t.Base, t.MaxAttempts, t.MaxWait
	if base == nil {
		base = http.DefaultTransport
	}
	if attempts <= 0 {
		attempts = defaultAttempts
	}
	if patience <= 0 {
		patience = defaultMaxWait
	}
	request := r
	for attempt := 1; ; attempt++ {
		res, err := base.RoundTrip(request)
		if err != nil || attempt >= attempts || !repeatable(r, res) {
			return res, err //nolint:wrapcheck // a RoundTripper's errors are its base's
		}
		wait, told := retryAfter(res.Header, time.Now())
		wait += jitter(wait)
		if deadline, ok := r.Context().Deadline(); !told || wait > patience || ok && time.Until(deadline) < wait {
			return res, nil
		}
		next, err := again(r)
		if err != nil {
			return res, nil //nolint:nilerr // the body cannot be had again: the answer is what there is
		}
		patience -= wait
		drain(res.Body)
		if t.OnWait != nil {
			t.OnWait(r, attempt, wait)
		}
		if err := pause(r, wait); err != nil {
			if next.Body != nil {
				_ = next.Body.Close()
			}
			return nil, err
		}
		request = next
	}
}

// drain reads the rest of a refusal, if it comes soon, and closes it.
func drain(body io.ReadCloser) {
	late := time.AfterFunc(drainTime, func() { _ = body.Close() })
	defer late.Stop()
	_, _ = io.Copy(io.Discard, io.LimitReader(body, drained))
	_ = body.Close()
}

// repeatable reports whether an answer may be followed by the same request: 429 says that nothing was done.
func repeatable(r *http.Request, res *http.Response) bool {
	if r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		return false
	}
	switch res.StatusCode {
	case http.StatusTooManyRequests:
		return true
	case http.StatusServiceUnavailable:
		switch r.Method {
		case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
			return true
		}
		return r.Header.Get("Idempotency-Key") != ""
	}
	return false
}

// again is the same request with its body from the start.
func again(r *http.Request) (*http.Request, error) {
	next := r.Clone(r.Context())
	if r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, err //nolint:wrapcheck // only asked whether there is one
		}
		next.Body = body
	}
	return next, nil
}

// retryAfter reads the header: seconds, or a date. ok is false when there is none that can be read.
func retryAfter(h http.Header, now time.Time) (wait time.Duration, ok bool) {
	value := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return max(0, at.Sub(now)), true
}

// jitter is up to a tenth of the wait, at least up to 100 ms: added, never taken off.
func jitter(wait time.Duration) time.Duration {
	return rand.N(max(wait/10, 100*time.Millisecond)) //nolint:gosec // no secret
}

// pause waits, or returns the context's error as soon as the caller has gone.
func pause(r *http.Request, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-r.Context().Done():
		return r.Context().Err() //nolint:wrapcheck // the caller's own
	}
}
