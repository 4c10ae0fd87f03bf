// Package problem is the one form of a refusal on every front door: application/problem+json (RFC 9457) with the slugs of
// the wire contract. It knows nobody.
package problem

import (
	"encoding/json"
	"net/http"
	"strings"
)

// Slug names a problem; its type is BaseURI + slug.
type Slug string

// The problems of the wire contract.
const (
	RateLimitExceeded    Slug = "rate-limit-exceeded"
	CostExceedsLimit     Slug = "cost-exceeds-limit"
	TooManyHeld          Slug = "too-many-held"
	Unauthorized         Slug = "unauthorized"
	Forbidden            Slug = "forbidden"
	TenantSuspended      Slug = "tenant-suspended"
	NetworkDenied        Slug = "network-denied"
	NotFound             Slug = "not-found"
	MethodNotAllowed     Slug = "method-not-allowed"
	Conflict             Slug = "conflict"
	PreconditionFailed   Slug = "precondition-failed"
	PreconditionRequired Slug = "precondition-required"
	Validation           Slug = "validation"
	PayloadTooLarge      Slug = "payload-too-large"
	StoreUnavailable     Slug = "store-unavailable"
	Internal             Slug = "internal"
)

// BaseURI starts every problem's type.
const BaseURI = "https://pegel.dev/problems/"

// ContentType of every problem.
const ContentType = "application/problem+json"

// Status is the HTTP status that goes with a slug.
func (s Slug) Status() int {
	switch s {
	case RateLimitExceeded, CostExceedsLimit, TooManyHeld:
		return http.StatusTooManyRequests
	case Unauthorized:
		return http.StatusUnauthorized
	case Forbidden, TenantSuspended, NetworkDenied:
		return http.StatusForbidden
	case NotFound:
		return http.StatusNotFound
	case MethodNotAllowed:
		return http.StatusMethodNotAllowed
	case Conflict:
		return http.StatusConflict
	case PreconditionFailed:
		return http.StatusPreconditionFailed
	case PreconditionRequired:
		return http.StatusPreconditionRequired
	case Validation:
		return http.StatusBadRequest
	case PayloadTooLarge:
		return http.StatusRequestEntityTooLarge
	case StoreUnavailable:
		return http.StatusServiceUnavailable
	case Internal:
		return http.StatusInternalServerError
	}
	return http.StatusInternalServerError
}

// Title is the fixed, human-readable summary of a slug.
func (s Slug) Title() string {
	switch s {
	case RateLimitExceeded, CostExceedsLimit, TooManyHeld:
		return http.StatusText(http.StatusTooManyRequests)
	case TenantSuspended:
		return "Tenant Suspended"
	case NetworkDenied:
		return "Network Denied"
	case Validation:
		return "Invalid Request"
	case StoreUnavailable:
		return "Store Unavailable"
	case Unauthorized, Forbidden, NotFound, MethodNotAllowed, Conflict, PreconditionFailed, PreconditionRequired, PayloadTooLarge, Internal:
	}
	return http.StatusText(s.Status())
}

// Problem is the members every problem has. Problems with more embed it.
type Problem struct {
	Type      string       `json:"type"`
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Detail    string       `json:"detail"`
	Error     string       `json:"error"`
	RequestID string       `json:"request_id"`
	Errors    []FieldError `json:"errors,omitempty"`
}

// FieldError says what is wrong with one part of the input, by JSON pointer; it never repeats the submitted value.
type FieldError struct {
	Pointer string `json:"pointer"`
	Message string `json:"message"`
}

// New builds a problem.
func New(slug Slug, detail, requestID string) Problem {
	return Problem{
		Type: BaseURI + string(slug), Title: slug.Title(), Status: slug.Status(), Detail: detail,
		Error: strings.ReplaceAll(string(slug), "-", "_"), RequestID: requestID,
	}
}

// Write sends a body that is a Problem or embeds one, with its status.
func Write(w http.ResponseWriter, status int, body any) {
	raw, err := json.Marshal(body)
	if err != nil { // our own structs always marshal
		status, raw = http.StatusInternalServerError, []byte(`{"type":"`+BaseURI+`internal","title":"Internal Server Error","status":500,"detail":"","error":"internal","request_id":""}`)
	}
	h := w.Header()
	h.Set("Content-Type", ContentType)
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(raw)
}
