// Package backoff is the client code that docs/for-clients.md shows.
package backoff

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

const (
	base     = 500 * time.Millisecond
	longest  = time.Minute
	attempts = 6
)

// Wait is how long to wait before attempt n+1 (n counts from 0), and whether waiting helps at all.
func Wait(res *http.Response, n int) (time.Duration, bool) {
	if res != nil {
		if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s >= 0 {
			told := time.Duration(s) * time.Second
			return told + rand.N(max(told/10, time.Second)), true // never earlier than told
		}
		if res.StatusCode == http.StatusTooManyRequests {
			return 0, false // no Retry-After on a 429: this request never fits its limit
		}
	}
	return rand.N(min(longest, base<<min(n, 10))), true // nobody said how long: full jitter
}

// Do sends a request until it is answered by something else than 429 or 503. A body needs req.GetBody, which
// http.NewRequest sets for the usual readers.
func Do(ctx context.Context, client *http.Client, req *http.Request) (*http.Response, error) {
	for n := 0; ; n++ {
		attempt := req.Clone(ctx)
		if req.GetBody != nil {
			body, err := req.GetBody()
			if err != nil {
				return nil, fmt.Errorf("rewind the body: %w", err)
			}
			attempt.Body = body
		}
		res, err := client.Do(attempt)
		if err == nil && res.StatusCode != http.StatusTooManyRequests && res.StatusCode != http.StatusServiceUnavailable {
			return res, nil
		}
		wait, again := Wait(res, n)
		if !again || n+1 == attempts {
			return res, err
		}
		if res != nil {
			_ = res.Body.Close()
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
