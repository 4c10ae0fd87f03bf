package envoyrls

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/problem"
)

// delayHeader makes Envoy's fault filter, behind the rate-limit filter, hold a slowed request for so many milliseconds
// (deploy/envoy). Without that filter it means nothing to anybody.
const delayHeader = "x-envoy-fault-delay-request"

// headerNames are the headers of a decided answer in the order they are sent. Envoy wants names in lower case.
var headerNames = [...]string{
	decision.HeaderLimit, decision.HeaderRemaining, decision.HeaderReset, decision.HeaderPolicy, decision.HeaderRateLimit,
	decision.HeaderRetryAfter, decision.HeaderDecision, decision.HeaderSource,
}

// letThrough answers n descriptors that no limit holds for.
func letThrough(n int) *ratelimitv3.RateLimitResponse {
	statuses := make([]*ratelimitv3.RateLimitResponse_DescriptorStatus, n)
	for i := range statuses {
		statuses[i] = &ratelimitv3.RateLimitResponse_DescriptorStatus{Code: ratelimitv3.RateLimitResponse_OK}
	}
	return &ratelimitv3.RateLimitResponse{OverallCode: ratelimitv3.RateLimitResponse_OK, Statuses: statuses}
}

// answer puts the statuses together. One refused descriptor refuses the request; the headers and the body are those of the
// descriptor that weighs most (heavier).
func answer(elements []element) *ratelimitv3.RateLimitResponse {
	r := letThrough(len(elements))
	var worst *element
	var delay time.Duration
	for i := range elements {
		e := &elements[i]
		if e.ignored {
			continue
		}
		e.status(r.GetStatuses()[i])
		switch {
		case e.refused():
			r.OverallCode = ratelimitv3.RateLimitResponse_OVER_LIMIT
		case e.refund: // its numbers are a status, not this request's
			continue
		default:
			delay = max(delay, e.decision.Delay)
		}
		if worst == nil || heavier(e, worst) {
			worst = e
		}
	}
	if worst == nil {
		return r
	}
	r.ResponseHeadersToAdd = worst.headers()
	switch {
	case r.GetOverallCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT:
		r.RawBody = worst.body()
		r.ResponseHeadersToAdd = append(r.ResponseHeadersToAdd, header("content-type", problem.ContentType), header("cache-control", "no-store"))
	case delay > 0:
		text := strconv.FormatInt(delay.Milliseconds(), 10)
		r.ResponseHeadersToAdd = append(r.ResponseHeadersToAdd, header(decision.HeaderSlowdown, text))
		r.RequestHeadersToAdd = []*corev3.HeaderValue{header(delayHeader, text)}
	}
	return r
}

// refused reports whether the descriptor refuses the request. The answer to a refund is a status and refuses nothing.
func (e *element) refused() bool {
	return e.err != nil || !e.refund && e.decision.Verdict == decision.Deny
}

// heavier orders answers: a refusal that no decision stands behind, then the refusal with the longest wait, then the highest
// utilization.
func heavier(a, b *element) bool {
	if a.refused() != b.refused() {
		return a.refused()
	}
	if (a.err != nil) != (b.err != nil) {
		return a.err != nil
	}
	if a.err != nil {
		return false
	}
	if a.refused() {
		return a.wait() > b.wait()
	}
	la, ok := a.decision.TightestLimit()
	if !ok {
		return false
	}
	lb, ok := b.decision.TightestLimit()
	return !ok || la.Utilization() > lb.Utilization()
}

// wait is how long a refused client has to, the longest there is when no waiting helps.
func (e *element) wait() time.Duration {
	if wait, ok := e.decision.RetryAfter(); ok {
		return wait
	}
	return math.MaxInt64
}

// status fills in one descriptor's numbers.
func (e *element) status(s *ratelimitv3.RateLimitResponse_DescriptorStatus) {
	if e.refused() {
		s.Code = ratelimitv3.RateLimitResponse_OVER_LIMIT
		s.DurationUntilReset = &durationpb.Duration{} // always set when over, also where no waiting helps
	}
	if e.err != nil {
		return
	}
	t, ok := e.decision.TightestLimit()
	if !ok {
		return
	}
	s.CurrentLimit = &ratelimitv3.RateLimitResponse_RateLimit{Name: t.Limit.Name, RequestsPerUnit: clamp(t.Limit.Quota), Unit: unit(t.Limit.Span())}
	s.LimitRemaining = clamp(t.State.Remaining)
	left := t.State.ResetAfter
	if wait, ok := e.decision.RetryAfter(); ok && e.refused() {
		left = wait
	}
	s.DurationUntilReset = durationpb.New(left)
}

// clamp fits a number into the protocol's.
func clamp(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }

// unit is a window in the protocol's words; UNKNOWN for a window that it has no word for.
func unit(window time.Duration) ratelimitv3.RateLimitResponse_RateLimit_Unit {
	const day = 24 * time.Hour
	for _, known := range [...]struct {
		window time.Duration
		unit   ratelimitv3.RateLimitResponse_RateLimit_Unit
	}{
		{time.Second, ratelimitv3.RateLimitResponse_RateLimit_SECOND},
		{time.Minute, ratelimitv3.RateLimitResponse_RateLimit_MINUTE},
		{time.Hour, ratelimitv3.RateLimitResponse_RateLimit_HOUR},
		{day, ratelimitv3.RateLimitResponse_RateLimit_DAY},
		{7 * day, ratelimitv3.RateLimitResponse_RateLimit_WEEK},
	} {
		if known.window == window {
			return known.unit
		}
	}
	return ratelimitv3.RateLimitResponse_RateLimit_UNKNOWN
}

// headers are what the client sees of the decision; the slow-down is the call's and added by answer.
func (e *element) headers() []*corev3.HeaderValue {
	if e.err != nil {
		if errors.Is(e.err, decision.ErrClosed) {
			return []*corev3.HeaderValue{header(decision.HeaderRetryAfter, strconv.Itoa(decision.RetryAfterClosed))}
		}
		return nil
	}
	lines := make(http.Header, len(headerNames))
	decision.WriteHeaders(lines, e.decision)
	headers := make([]*corev3.HeaderValue, 0, len(headerNames)+2)
	for _, name := range headerNames {
		if values := lines[name]; len(values) > 0 {
			headers = append(headers, header(name, values[0]))
		}
	}
	return headers
}

func header(name, value string) *corev3.HeaderValue {
	return &corev3.HeaderValue{Key: strings.ToLower(name), Value: value}
}

// body is what the client reads of a refusal: what the other front doors write. Envoy sends one status for all refusals
// (rate_limited_status, 429), so the problem says that one.
func (e *element) body() []byte {
	id := uuid.NewString()
	if e.err == nil {
		return decision.Denied(e.decision, id).AppendJSON(nil)
	}
	slug, detail, ok := decision.ProblemOf(e.err)
	var known *refusal
	if !ok && errors.As(e.err, &known) {
		slug, detail = known.slug, known.detail
	}
	p := problem.New(slug, detail, id)
	p.Status = http.StatusTooManyRequests
	raw, _ := json.Marshal(p) // our own structs always marshal
	return raw
}
