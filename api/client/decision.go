package client

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The verdicts of a Decision.
const (
	Allow = "allow"
	Slow  = "slow" // allowed after Decision.Delay
	Deny  = "deny"
)

// Decision is the verdict on a hit and the numbers behind it.
type Decision struct {
	// Verdict is Allow, Slow or Deny; Allowed is false for Deny alone.
	Verdict string
	Allowed bool
	// ID finds the decision in Pegel's records.
	ID string
	// Tenant and Plan are empty when only an address was decided on.
	Tenant, Plan string
	// Source is what counted: "redis", "postgres", "memory" (one replica alone) or "none" (nobody: the limit is open).
	Source string
	// LimitName is the tightest limit, which Limit, Remaining, Used and Utilization are about. It is empty, and they are 0, when
	// no limit applies or nobody could count.
	LimitName              string
	Limit, Remaining, Used int64   // units
	Utilization            float64 // 0…1
	// Delay is how long to hold a slowed hit, in whole milliseconds.
	Delay time.Duration
	// ResetAfter is when the budget is whole again if nothing more comes.
	ResetAfter time.Duration
	// RetryAfter is how long a refused hit should wait; 0 on one that was let through, and where no waiting helps (see
	// RateLimitError.Retryable).
	RetryAfter time.Duration
	// Limits are all limits that hold.
	Limits []Limit
}

// Limit is one limit in a Decision. Its numbers are 0 when nobody could count it.
type Limit struct {
	Name      string
	Scope     string // "tenant", "user", "key" or "address"
	Algorithm string
	// EffectiveAlgorithm is what really decided; empty when nobody did.
	EffectiveAlgorithm     string
	Window                 time.Duration
	Limit, Used, Remaining int64
	Delay                  time.Duration
	ResetAfter, RetryAfter time.Duration
	Mode                   string // "enforce", or "shadow": it only watches
}

// wireDecision is a Decision as Pegel writes it; null and absent numbers read as 0.
type wireDecision struct {
	Decision     string      `json:"decision"`
	Allowed      bool        `json:"allowed"`
	DecisionID   string      `json:"decision_id"`
	Tenant       string      `json:"tenant"`
	Plan         string      `json:"plan"`
	Source       string      `json:"source"`
	LimitName    string      `json:"limit_name"`
	Limit        int64       `json:"limit"`
	Remaining    int64       `json:"remaining"`
	Used         int64       `json:"used"`
	Utilization  float64     `json:"utilization"`
	DelayMS      int64       `json:"delay_ms"`
	ResetAfterMS int64       `json:"reset_after_ms"`
	RetryAfterMS *int64      `json:"retry_after_ms"`
	Limits       []wireLimit `json:"limits"`
}

type wireLimit struct {
	Name               string `json:"name"`
	Scope              string `json:"scope"`
	Algorithm          string `json:"algorithm"`
	EffectiveAlgorithm string `json:"effective_algorithm"`
	WindowMS           int64  `json:"window_ms"`
	Limit              int64  `json:"limit"`
	Used               int64  `json:"used"`
	Remaining          int64  `json:"remaining"`
	DelayMS            int64  `json:"delay_ms"`
	ResetAfterMS       int64  `json:"reset_after_ms"`
	RetryAfterMS       int64  `json:"retry_after_ms"`
	Mode               string `json:"mode"`
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func (w *wireDecision) decision() *Decision {
	d := &Decision{
		Verdict: w.Decision, Allowed: w.Allowed, ID: w.DecisionID, Tenant: w.Tenant, Plan: w.Plan, Source: w.Source,
		LimitName: w.LimitName, Limit: w.Limit, Remaining: w.Remaining, Used: w.Used, Utilization: w.Utilization,
		Delay: millis(w.DelayMS), ResetAfter: millis(w.ResetAfterMS), Limits: make([]Limit, len(w.Limits)),
	}
	if w.RetryAfterMS != nil {
		d.RetryAfter = millis(*w.RetryAfterMS)
	}
	for i, l := range w.Limits {
		d.Limits[i] = Limit{
			Name: l.Name, Scope: l.Scope, Algorithm: l.Algorithm, EffectiveAlgorithm: l.EffectiveAlgorithm, Window: millis(l.WindowMS),
			Limit: l.Limit, Used: l.Used, Remaining: l.Remaining, Delay: millis(l.DelayMS),
			ResetAfter: millis(l.ResetAfterMS), RetryAfter: millis(l.RetryAfterMS), Mode: l.Mode,
		}
	}
	return d
}

// readDecision reads the body of a 200.
func readDecision(raw []byte, status int) (*Decision, error) {
	var w wireDecision
	if err := json.Unmarshal(raw, &w); err != nil || w.DecisionID == "" {
		return nil, errGarbage(status)
	}
	switch w.Decision {
	case Allow, Slow, Deny:
		return w.decision(), nil
	}
	return nil, errGarbage(status)
}

// resetSlack keeps X-RateLimit-Reset from wobbling between two seconds; Pegel's own front doors have the same.
const resetSlack = 50 * time.Millisecond

// SetHeaders writes the rate-limit headers of the decision for the client of your own service, as Pegel's front doors do. now is
// the time of the answer.
func (d *Decision) SetHeaders(h http.Header, now time.Time) {
	set := h.Set // Go's spelling of names, so that what a handler sets or deletes under the same name is the same line
	if d.ID != "" {
		set("X-Pegel-Decision", d.ID)
	}
	if d.Source != "" && d.Source != "redis" {
		set("X-Pegel-Source", d.Source)
	}
	wait := d.RetryAfter
	if !d.Allowed && wait > 0 {
		set("Retry-After", strconv.FormatInt(wholeSeconds(wait), 10))
	}
	if d.LimitName == "" {
		return
	}
	left, reset := d.ResetAfter, now.Add(max(0, d.ResetAfter-resetSlack))
	if !d.Allowed && wait > 0 {
		left, reset = wait, now.Add(wait)
	}
	if whole := reset.Truncate(time.Second); !whole.Equal(reset) {
		reset = whole.Add(time.Second)
	}
	limit, remaining, name := strconv.FormatInt(d.Limit, 10), strconv.FormatInt(d.Remaining, 10), quoted(d.LimitName)
	set("X-RateLimit-Limit", limit)
	set("X-RateLimit-Remaining", remaining)
	set("X-RateLimit-Reset", strconv.FormatInt(reset.Unix(), 10))
	policy := name + ";q=" + limit
	if window := wholeSeconds(d.window()); window > 0 {
		policy += ";w=" + strconv.FormatInt(window, 10)
	}
	set("RateLimit-Policy", policy)
	set("RateLimit", name+";r="+remaining+";t="+strconv.FormatInt(wholeSeconds(left), 10))
	if d.Verdict == Slow {
		set("X-RateLimit-Slowdown", strconv.FormatInt(d.Delay.Milliseconds(), 10))
	}
}

// window is the tightest limit's.
func (d *Decision) window() time.Duration {
	for i := range d.Limits {
		if d.Limits[i].Name == d.LimitName && d.Limits[i].Limit == d.Limit {
			return d.Limits[i].Window
		}
	}
	return 0
}

// wholeSeconds rounds up.
func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// quoted is a structured field's string. Pegel's limit names hold nothing that would need escaping; a broken answer must not
// break a header either.
func quoted(name string) string {
	return `"` + strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return -1
		}
		return r
	}, name) + `"`
}
