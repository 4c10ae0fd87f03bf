package decision

import (
	"fmt"
	"strconv"
	"time"

	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// Number is a member that is a number, null (nobody decided) or absent (the zero value, with omitzero).
type Number struct {
	value int64
	state uint8
}

const (
	numberAbsent uint8 = iota
	numberNull
	numberSet
)

func number(v int64) Number { return Number{value: v, state: numberSet} }

// IsZero makes omitzero leave it out.
func (n Number) IsZero() bool { return n.state == numberAbsent }

// MarshalJSON writes the number or null.
func (n Number) MarshalJSON() ([]byte, error) {
	if n.state != numberSet {
		return []byte("null"), nil
	}
	return strconv.AppendInt(nil, n.value, 10), nil
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (n *Number) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		*n = Number{state: numberNull}
		return nil
	}
	v, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return fmt.Errorf("read a number: %w", err)
	}
	*n = number(v)
	return nil
}

// Value is the number; ok is false for null and absent.
func (n Number) Value() (v int64, ok bool) { return n.value, n.state == numberSet }

// Answer is the body of a 200 answer of /v1/check and /v1/status, and half of a 429's.
type Answer struct {
	Decision     Verdict          `json:"decision"`
	Allowed      bool             `json:"allowed"`
	DecisionID   string           `json:"decision_id"`
	Tenant       *string          `json:"tenant"`
	Plan         *string          `json:"plan"`
	Source       ratelimit.Source `json:"source"`
	LimitName    *string          `json:"limit_name"`
	Limit        Number           `json:"limit"`
	Remaining    Number           `json:"remaining"`
	Used         Number           `json:"used"`
	Utilization  *float64         `json:"utilization"`
	DelayMS      int64            `json:"delay_ms"`
	ResetAfterMS Number           `json:"reset_after_ms"`
	// RetryAfterMS is absent when no waiting helps.
	RetryAfterMS Number      `json:"retry_after_ms,omitzero"`
	Limits       []LimitBody `json:"limits"`
}

// LimitBody is one limit in a Answer; its numbers are null when nobody decided it.
type LimitBody struct {
	Name               string               `json:"name"`
	Scope              ratelimit.Scope      `json:"scope"`
	Algorithm          ratelimit.Algorithm  `json:"algorithm"`
	EffectiveAlgorithm *ratelimit.Algorithm `json:"effective_algorithm"`
	WindowMS           int64                `json:"window_ms"`
	Limit              int64                `json:"limit"`
	Used               Number               `json:"used"`
	Remaining          Number               `json:"remaining"`
	DelayMS            int64                `json:"delay_ms"`
	ResetAfterMS       Number               `json:"reset_after_ms"`
	RetryAfterMS       Number               `json:"retry_after_ms,omitzero"`
	Mode               ratelimit.Mode       `json:"mode"`
}

// Refusal is the body of a 429: the union of the decision's members and of the problem's.
type Refusal struct {
	problem.Problem
	Answer

	WindowSeconds     *float64 `json:"window_seconds"`
	RetryAfterSeconds Number   `json:"retry_after_seconds,omitzero"`
	RetryAfterAt      string   `json:"retry_after_at,omitempty"`
}

// Body is the answer to a hit that was let through.
func Body(d *Decision) *Answer {
	b := &Answer{
		Decision: d.Verdict, Allowed: d.Verdict != Deny, DecisionID: d.ID, Source: d.Source,
		DelayMS: d.Delay.Milliseconds(), Limits: make([]LimitBody, len(d.Limits)),
	}
	if d.Tenant != "" {
		b.Tenant, b.Plan = &d.Tenant, &d.Plan
	}
	for i := range d.Limits {
		b.Limits[i] = limitBody(&d.Limits[i])
	}
	null := Number{state: numberNull}
	t := d.tightest()
	if t == nil {
		b.Limit, b.Remaining, b.Used, b.ResetAfterMS, b.RetryAfterMS = null, null, null, null, null
	} else {
		utilization := t.Utilization()
		b.LimitName, b.Utilization = &t.Limit.Name, &utilization
		b.Limit, b.Used, b.Remaining = number(t.Limit.Quota), number(t.State.Used), number(t.State.Remaining)
		b.ResetAfterMS = number(ceilMS(t.State.ResetAfter))
		b.RetryAfterMS = retryMS(t)
	}
	switch {
	case d.Held:
		b.RetryAfterMS = number(retryHeld.Milliseconds())
	case d.CostExceeds:
		b.RetryAfterMS = Number{}
	case t != nil && d.Verdict != Deny:
		b.RetryAfterMS = number(0)
	}
	return b
}

// Denied is the answer to a hit that was refused.
func Denied(d *Decision, requestID string) *Refusal {
	b := &Refusal{Answer: *Body(d)}
	slug, detail := refusalText(d)
	b.Problem = problem.New(slug, detail, requestID)
	if t := d.tightest(); t != nil {
		span := t.Limit.Span().Seconds()
		b.WindowSeconds = &span
	}
	if wait, ok := d.RetryAfter(); ok {
		b.RetryAfterSeconds = number(seconds(wait))
		b.RetryAfterAt = d.resetAt().Format(time.RFC3339)
	}
	return b
}

// refusalText names the problem and says it in words that a client developer can act on.
func refusalText(d *Decision) (slug problem.Slug, detail string) {
	t := d.tightest()
	switch {
	case d.Held:
		return problem.TooManyHeld, "too many requests of this caller are held in slow-down; retry in " + strconv.FormatInt(seconds(retryHeld), 10) + " s"
	case t == nil:
		return problem.RateLimitExceeded, "refused"
	case d.CostExceeds && t.Limit.Quota == 0:
		return problem.CostExceedsLimit, t.Limit.Name + ": nothing is allowed by this limit"
	case d.CostExceeds:
		return problem.CostExceedsLimit, fmt.Sprintf("%s: a cost of %d is above the limit of %d", t.Limit.Name, t.Limit.UnitsPerHit(d.Cost), t.Limit.Quota)
	}
	return problem.RateLimitExceeded, fmt.Sprintf("%s: %d requests per %s s exceeded; retry in %d s",
		t.Limit.Name, t.Limit.Quota, strconv.FormatFloat(t.Limit.Span().Seconds(), 'f', -1, 64), seconds(t.State.RetryAfter))
}

func limitBody(s *LimitState) LimitBody {
	b := LimitBody{
		Name: s.Limit.Name, Scope: s.Limit.Scope, Algorithm: s.Limit.Algorithm, WindowMS: ceilMS(s.Limit.Span()),
		Limit: s.Limit.Quota, DelayMS: s.Delay.Milliseconds(), Mode: s.Limit.Mode,
	}
	if b.Mode == "" {
		b.Mode = ratelimit.Enforce
	}
	if s.Source == ratelimit.SourceNone {
		null := Number{state: numberNull}
		b.Used, b.Remaining, b.ResetAfterMS, b.RetryAfterMS = null, null, null, null
		return b
	}
	b.EffectiveAlgorithm = &s.State.Effective
	b.Used, b.Remaining = number(s.State.Used), number(s.State.Remaining)
	b.ResetAfterMS, b.RetryAfterMS = number(ceilMS(s.State.ResetAfter)), retryMS(s)
	return b
}

// retryMS is a limit's own wait: 0 when it let the hit through, absent when no waiting helps.
func retryMS(s *LimitState) Number {
	switch {
	case !s.Refused:
		return number(0)
	case s.State.RetryAfter == ratelimit.Never:
		return Number{}
	}
	return number(ceilMS(s.State.RetryAfter))
}

// ceilMS never tells a client to come a fraction of a millisecond too early.
func ceilMS(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }
