package decision

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// The response headers of a decided answer, spelled as the wire contract spells them, which is not Go's canonical form: read
// them back with Header.Get only after they went over a wire.
const (
	HeaderLimit      = "X-RateLimit-Limit"
	HeaderRemaining  = "X-RateLimit-Remaining"
	HeaderReset      = "X-RateLimit-Reset"
	HeaderSlowdown   = "X-RateLimit-Slowdown"
	HeaderPolicy     = "RateLimit-Policy"
	HeaderRateLimit  = "RateLimit"
	HeaderRetryAfter = "Retry-After"
	HeaderDecision   = "X-Pegel-Decision"
	HeaderSource     = "X-Pegel-Source"
)

// resetSlack keeps X-RateLimit-Reset from wobbling between two seconds when a window ends on a full second by the store's
// clock and this replica's clock is a few milliseconds ahead of it. Only on answers that let the hit through: a refused
// client is never told a moment that is too early.
const resetSlack = 50 * time.Millisecond

// WriteHeaders sets the headers of the wire contract for a decision. Those of the rate are absent when there are no
// numbers: no limit applies, or nobody decided.
func WriteHeaders(h http.Header, d *Decision) {
	h.Set(HeaderDecision, d.ID)
	if d.Source != ratelimit.SourceRedis {
		h.Set(HeaderSource, string(d.Source))
	}
	if wait, ok := d.RetryAfter(); ok {
		h.Set(HeaderRetryAfter, strconv.FormatInt(seconds(wait), 10))
	}
	t := d.tightest()
	if t == nil {
		return
	}
	h[HeaderLimit] = []string{strconv.FormatInt(t.Limit.Quota, 10)}
	h[HeaderRemaining] = []string{strconv.FormatInt(t.State.Remaining, 10)}
	h[HeaderReset] = []string{strconv.FormatInt(d.resetAt().Unix(), 10)}
	if d.Verdict == Slow {
		h[HeaderSlowdown] = []string{strconv.FormatInt(d.Delay.Milliseconds(), 10)}
	}

	name := quoted(t.Limit.Name)
	policy := name + ";q=" + strconv.FormatInt(t.Limit.Quota, 10)
	if w := ceilSeconds(t.Limit.Span()); w > 0 {
		policy += ";w=" + strconv.FormatInt(w, 10)
	}
	h[HeaderPolicy] = []string{policy}
	h[HeaderRateLimit] = []string{name + ";r=" + strconv.FormatInt(t.State.Remaining, 10) + ";t=" + strconv.FormatInt(d.secondsLeft(t), 10)}
}

// SpellHeaders gives the headers of a decision back their spelling after they were copied in Go's canonical form.
func SpellHeaders(h http.Header) {
	for _, name := range [...]string{HeaderLimit, HeaderRemaining, HeaderReset, HeaderSlowdown, HeaderPolicy, HeaderRateLimit} {
		canonical := http.CanonicalHeaderKey(name)
		if lines, ok := h[canonical]; ok {
			delete(h, canonical)
			h[name] = lines
		}
	}
}

// tightest is the limit that the top-level numbers come from, nil when there is none.
func (d *Decision) tightest() *LimitState {
	if d.Tightest < 0 || d.Tightest >= len(d.Limits) {
		return nil
	}
	return &d.Limits[d.Tightest]
}

// TightestLimit is the limit that the top-level numbers come from; ok is false when no limit applies or nobody decided.
func (d *Decision) TightestLimit() (s LimitState, ok bool) {
	if t := d.tightest(); t != nil {
		return *t, true
	}
	return LimitState{}, false
}

// RetryAfter is how long a refused client should wait. ok is false when the hit was let through, and when no waiting helps.
func (d *Decision) RetryAfter() (wait time.Duration, ok bool) {
	switch {
	case d.Verdict != Deny || d.CostExceeds:
		return 0, false
	case d.Held:
		return retryHeld, true
	}
	t := d.tightest()
	if t == nil || t.State.RetryAfter == ratelimit.Never {
		return 0, false
	}
	return t.State.RetryAfter, true
}

// resetAt is X-RateLimit-Reset in whole seconds, rounded up: when the budget is whole again, and on a refusal when the
// next hit fits.
func (d *Decision) resetAt() time.Time {
	if wait, ok := d.RetryAfter(); ok {
		return ceilTime(d.At.Add(wait))
	}
	t := d.tightest()
	if t == nil {
		return ceilTime(d.At)
	}
	return ceilTime(d.At.Add(t.State.ResetAfter - min(resetSlack, t.State.ResetAfter)))
}

// secondsLeft is the t of the RateLimit field.
func (d *Decision) secondsLeft(t *LimitState) int64 {
	if wait, ok := d.RetryAfter(); ok {
		return seconds(wait)
	}
	return ceilSeconds(t.State.ResetAfter)
}

// seconds is a wait as Retry-After counts it: whole seconds, rounded up, at least one.
func seconds(d time.Duration) int64 { return max(1, ceilSeconds(d)) }

func ceilSeconds(d time.Duration) int64 {
	if d > math.MaxInt64-time.Second {
		return int64(d / time.Second)
	}
	return int64((d + time.Second - 1) / time.Second)
}

func ceilTime(t time.Time) time.Time {
	if whole := t.Truncate(time.Second); !whole.Equal(t) {
		return whole.Add(time.Second).UTC()
	}
	return t.UTC()
}

// quoted is a structured field's string (RFC 9651): quotes and backslashes escaped, and anything beyond printable ASCII,
// which such a string cannot hold, percent-encoded.
func quoted(s string) string {
	const hex = "0123456789ABCDEF"
	b := make([]byte, 0, len(s)+2)
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c > '~':
			b = append(b, '%', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return string(append(b, '"'))
}
