package adminclient

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// UnreachableError is a server that did not answer, or not to the end.
type UnreachableError struct {
	Server string
	Within time.Duration // how long it was waited for
	Began  bool          // the answer had begun
	Err    error
}

func (e *UnreachableError) Error() string {
	var request *url.Error
	cause := e.Err
	if errors.As(cause, &request) { // its text repeats the URL
		cause = request.Err
	}
	switch {
	case errors.Is(cause, context.Canceled):
		return "interrupted"
	case errors.Is(cause, context.DeadlineExceeded) && e.Began:
		return fmt.Sprintf("%s began an answer and fell silent for %s", e.Server, e.Within)
	case errors.Is(cause, context.DeadlineExceeded):
		return fmt.Sprintf("%s did not answer within %s", e.Server, e.Within)
	case e.Began:
		return fmt.Sprintf("the answer of %s broke off: %v", e.Server, cause)
	case errors.As(cause, new(x509.UnknownAuthorityError)):
		return fmt.Sprintf("%s cannot be trusted: %v; if the authority is your own, SSL_CERT_FILE names the file with its certificate", e.Server, cause)
	case errors.Is(cause, http.ErrSchemeMismatch):
		return fmt.Sprintf("%s is asked by https:// and speaks http://", e.Server)
	case errors.Is(cause, io.EOF), strings.Contains(cause.Error(), "malformed HTTP response"):
		return fmt.Sprintf("%s does not speak this protocol: http:// where it is https://, or the other way round?", e.Server)
	}
	return fmt.Sprintf("%s cannot be reached: %v", e.Server, cause)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// RefusedError is a refusal (RFC 9457).
type RefusedError struct {
	Server    string       `json:"-"`
	Status    int          `json:"status"`
	Title     string       `json:"title"`
	Detail    string       `json:"detail"`
	Code      string       `json:"error"`
	RequestID string       `json:"request_id"`
	Errors    []FieldError `json:"errors"`
	// RetryAfter is the header of that name, in seconds; empty: none.
	RetryAfter string `json:"-"`
	// Listener is X-Pegel-Listener: public or admin, when that one was asked for what the other one has; empty: the right one was.
	Listener string `json:"-"`
	// Challenge is WWW-Authenticate: each listener has a realm of its own.
	Challenge string `json:"-"`
}

func (e *RefusedError) Error() string {
	switch e.Status {
	case http.StatusBadRequest:
		if len(e.Errors) > 0 {
			return "not valid: " + joined(e.Errors)
		}
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		if e.RetryAfter != "" {
			return fmt.Sprintf("%s; try again in %s s", e.Detail, e.RetryAfter)
		}
	case http.StatusInternalServerError:
		return fmt.Sprintf("%s (request id %s)", e.Detail, e.RequestID)
	}
	return e.Detail
}

func joined(fields []FieldError) string {
	parts := make([]string, len(fields))
	for i, f := range fields {
		parts[i] = strings.TrimSpace(strings.TrimPrefix(f.Pointer, "/") + " " + f.Message)
	}
	return strings.Join(parts, "; ")
}

// problem reads a refusal; what does not have its form came from something in between.
func (c *Client) problem(response *http.Response, body []byte) error {
	p := &RefusedError{Server: c.base}
	err := json.Unmarshal(body, p)
	switch {
	case response.StatusCode < 400:
		return fmt.Errorf("%s sends elsewhere (%s): give the address that answers itself", c.base, response.Status)
	// What TLS listeners of Go and of nginx answer to plain HTTP.
	case p.Code == "" && response.StatusCode == http.StatusBadRequest && strings.HasPrefix(c.base, "http://") && bytes.Contains(body, []byte("HTTPS")):
		return fmt.Errorf("%s is asked by http:// and speaks https://", c.base)
	case err != nil || p.Code == "":
		return fmt.Errorf("%s answered %s, not as Pegel does: is it the right address?", c.base, response.Status)
	}
	p.Status, p.RetryAfter = response.StatusCode, response.Header.Get("Retry-After")
	p.Listener, p.Challenge = response.Header.Get("X-Pegel-Listener"), response.Header.Get("WWW-Authenticate")
	return p
}
