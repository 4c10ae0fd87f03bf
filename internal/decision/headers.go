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
	var w headerLines
	w.text = w.scratch[:0]
	w.text = append(w.text, d.ID...)
	w.end(HeaderDecision)
	if d.Source != ratelimit.SourceRedis {
		w.text = append(w.text, d.Source...)
		w.end(HeaderSource)
	}
	if wait, ok := d.RetryAfter(); ok {
		w.number(HeaderRetryAfter, seconds(wait))
	}
	if t := d.tightest(); t != nil {
		w.rate(d, t)
	}
	w.set(h)
}

// headerLines collects the lines of one answer in one piece of memory: they are written for every decision.
type headerLines struct {
	names   [9]string
	ends    [9]int // where in text the value of each ends
	n       int
	text    []byte
	scratch [256]byte
}

// rate writes the lines about the tightest limit.
func (w *headerLines) rate(d *Decision, t *LimitState) {
	w.number(HeaderLimit, t.Limit.Quota)
	w.number(HeaderRemaining, t.State.Remaining)
	w.number(HeaderReset, d.resetAt().Unix())
	if d.Verdict == Slow {
		w.number(HeaderSlowdown, d.Delay.Milliseconds())
	}
	w.text = strconv.AppendInt(append(appendQuoted(w.text, t.Limit.Name), ";q="...), t.Limit.Quota, 10)
	if span := ceilSeconds(t.Limit.Span()); span > 0 {
		w.text = strconv.AppendInt(append(w.text, ";w="...), span, 10)
	}
	w.end(HeaderPolicy)
	w.text = strconv.AppendInt(append(appendQuoted(w.text, t.Limit.Name), ";r="...), t.State.Remaining, 10)
	w.text = strconv.AppendInt(append(w.text, ";t="...), d.secondsLeft(t), 10)
	w.end(HeaderRateLimit)
}

func (w *headerLines) number(name string, v int64) {
	w.text = strconv.AppendInt(w.text, v, 10)
	w.end(name)
}

// end says that what was appended since the last end is the value of a header.
func (w *headerLines) end(name string) {
	w.names[w.n], w.ends[w.n] = name, len(w.text)
	w.n++
}

func (w *headerLines) set(h http.Header) {
	text, values, from := string(w.text), make([]string, w.n), 0
	for i := range values {
		values[i] = text[from:w.ends[i]]
		h[w.names[i]] = values[i : i+1 : i+1]
		from = w.ends[i]
	}
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

// appendQuoted appends a structured field's string (RFC 9651): quotes and backslashes escaped, and anything beyond printable
// ASCII, which such a string cannot hold, percent-encoded.
func appendQuoted(b []byte, s string) []byte {
	const hex = "0123456789ABCDEF"
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
	return append(b, '"')
}
