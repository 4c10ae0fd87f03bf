package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// codeTooLarge is the Code of a check that is larger than Pegel reads.
const codeTooLarge = "payload_too_large"

// RateLimitError is a hit that was refused.
type RateLimitError struct {
	// RetryAfter is how long to wait before the same hit fits. It is 0 when no waiting helps: see Retryable.
	RetryAfter time.Duration
	// Retryable is false when the hit costs more than its limit ever holds.
	Retryable bool
	// Code is "rate_limit_exceeded", "cost_exceeds_limit" or "too_many_held".
	Code string
	// Detail says it in words.
	Detail string
	// Decision has the numbers.
	Decision *Decision
	// Body is Pegel's answer, a problem document (application/problem+json) that may be handed to the client as it is.
	Body []byte
}

func (e *RateLimitError) Error() string {
	if e.Detail == "" {
		return "pegel: rate limit exceeded"
	}
	return "pegel: " + e.Detail
}

// Error is any other answer of Pegel's than a decision: a wrong token, an unknown tenant, a closed limit that no store can
// decide.
type Error struct {
	// Status is the HTTP status.
	Status int
	// Code is the problem's name: "unauthorized", "forbidden", "not_found", "tenant_suspended", "network_denied", "validation",
	// "payload_too_large", "store_unavailable", "internal". Empty when the answer was no problem document.
	Code string
	// Detail says it in words; RequestID finds it in Pegel's log.
	Detail, RequestID string
	// Fields are what is wrong with a request that is not valid.
	Fields []FieldError
	// Body is Pegel's answer.
	Body []byte

	starting bool // Pegel has not loaded its configuration yet
}

// FieldError is one mistake in a request.
type FieldError struct {
	Pointer string `json:"pointer"` // JSON pointer into the check
	Message string `json:"message"`
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "pegel: %d %s", e.Status, http.StatusText(e.Status))
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	for _, f := range e.Fields {
		b.WriteString("; " + f.Pointer + " " + f.Message)
	}
	if e.RequestID != "" {
		b.WriteString(" (request " + e.RequestID + ")")
	}
	return b.String()
}

// IsRateLimited reports whether err is a refusal.
func IsRateLimited(err error) bool {
	var refusal *RateLimitError
	return errors.As(err, &refusal)
}

// RetryAfter is how long a refused hit has to wait. ok is false when err is no refusal, and when no waiting helps.
func RetryAfter(err error) (wait time.Duration, ok bool) {
	var refusal *RateLimitError
	if !errors.As(err, &refusal) || !refusal.Retryable {
		return 0, false
	}
	return refusal.RetryAfter, true
}

// wireProblem is a problem document.
type wireProblem struct {
	Status    int          `json:"status"`
	Error     string       `json:"error"`
	Detail    string       `json:"detail"`
	RequestID string       `json:"request_id"`
	Errors    []FieldError `json:"errors"`
}

// ErrBadAnswer is what an answer's error wraps that is not Pegel's: something else listens there, or stands in between.
var ErrBadAnswer = errors.New("the answer is not one of Pegel's")

func errGarbage(status int) error { return fmt.Errorf("pegel: status %d: %w", status, ErrBadAnswer) }

// refused reads the body of a 429: always with an error.
func refused(raw []byte, status int) (*Decision, error) {
	var w wireDecision
	var p wireProblem
	if json.Unmarshal(raw, &w) != nil || json.Unmarshal(raw, &p) != nil || w.Decision != Deny {
		return nil, errGarbage(status)
	}
	d := w.decision()
	return d, &RateLimitError{
		RetryAfter: d.RetryAfter, Retryable: w.RetryAfterMS != nil, Code: p.Error, Detail: p.Detail, Decision: d, Body: raw,
	}
}

// problemOf reads any other body.
func problemOf(status int, raw []byte) error {
	var p wireProblem
	if json.Unmarshal(raw, &p) != nil || p.Error == "" {
		return errGarbage(status)
	}
	return &Error{Status: status, Code: p.Error, Detail: p.Detail, RequestID: p.RequestID, Fields: p.Errors, Body: raw}
}

// readElement reads one element of a batch: a decision, a refusal or a problem.
func readElement(raw []byte) (*Decision, error) {
	var p wireProblem
	if json.Unmarshal(raw, &p) != nil {
		return nil, errGarbage(http.StatusOK)
	}
	switch {
	case p.Error == "":
		return readDecision(raw, http.StatusOK)
	case p.Status == http.StatusTooManyRequests:
		return refused(raw, p.Status)
	}
	return nil, problemOf(p.Status, raw)
}
