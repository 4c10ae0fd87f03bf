package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// retryStore is the Retry-After of a 503 of the configuration store, in seconds: about when it is worth asking again.
const retryStore = 2

// requestError is a refusal that a handler or the middleware already knows the problem of.
type requestError struct {
	slug   problem.Slug
	detail string
	fields []problem.FieldError
}

func (e *requestError) Error() string { return string(e.slug) + ": " + e.detail }

func refuse(slug problem.Slug, detail string) error { return &requestError{slug: slug, detail: detail} }

// invalid is a validation problem with one finding.
func invalid(pointer, message string) error {
	return invalidFields([]problem.FieldError{{Pointer: pointer, Message: message}})
}

func invalidFields(fields []problem.FieldError) error {
	return &requestError{slug: problem.Validation, detail: "the request is not valid; errors says where", fields: fields}
}

// invalidConfig is what internal/tenants found, as a validation problem; nil for nothing.
func invalidConfig(found []tenants.FieldError) error {
	if len(found) == 0 {
		return nil
	}
	fields := make([]problem.FieldError, len(found))
	for i, f := range found {
		fields[i] = problem.FieldError{Pointer: f.Pointer, Message: f.Message}
	}
	return invalidFields(fields)
}

// problemOf is the only mapping of errors to problems. known is false for what is nobody's mistake but ours.
func problemOf(err error, requestID string) (p problem.Problem, known bool) {
	var request *requestError
	var body *bodyError
	var conflict *tenants.ConflictError
	var faulty *tenants.InvalidError
	if slug, detail, ok := decision.ProblemOf(err); ok {
		return withErrors(problem.New(slug, detail, requestID)), true
	}
	switch {
	case errors.As(err, &request):
		p = problem.New(request.slug, request.detail, requestID)
		p.Errors = request.fields
		return p, true
	case errors.As(err, &body):
		return problemOf(invalid(body.pointer, body.message), requestID)
	case errors.As(err, &faulty):
		return problemOf(invalidConfig(faulty.Findings), requestID)
	case errors.Is(err, tenants.ErrNotFound):
		return problem.New(problem.NotFound, "there is no such object", requestID), true
	case errors.As(err, &conflict):
		return problem.New(problem.Conflict, conflict.Detail, requestID), true
	case errors.Is(err, tenants.ErrConflict):
		return problem.New(problem.Conflict, "the name is taken, or the object is in use", requestID), true
	case errors.Is(err, tenants.ErrVersion):
		return problem.New(problem.PreconditionFailed, "the object is not the one the precondition names: read it again", requestID), true
	case errors.Is(err, tenants.ErrCursor):
		return problemOf(invalid("/query/cursor", "must be the next_cursor of the page before, with the same filters"), requestID)
	case errors.Is(err, tenants.ErrUnavailable):
		return problem.New(problem.StoreUnavailable, "the configuration store did not answer in time", requestID), true
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return problem.New(problem.StoreUnavailable, "the request was given up before it was answered", requestID), true
	}
	return problem.New(problem.Internal, "something went wrong on our side; the request id finds it in the logs", requestID), false
}

// withErrors gives a validation problem that came without findings the one that the contract asks for.
func withErrors(p problem.Problem) problem.Problem {
	if p.Status == http.StatusBadRequest && len(p.Errors) == 0 {
		p.Errors = []problem.FieldError{{Pointer: "/header", Message: p.Detail}}
	}
	return p
}

// fail answers an error and ends the request.
func (s *surface) fail(c *gin.Context, err error) {
	p, known := problemOf(err, requestID(c))
	if !known {
		s.log.LogAttrs(c.Request.Context(), slog.LevelError, "request failed",
			slog.String("request_id", requestID(c)), slog.String("route", c.FullPath()), slog.Any("error", err))
	}
	s.writeProblem(c, p)
}

// writeProblem sends a problem with the headers that belong to its status.
func (s *surface) writeProblem(c *gin.Context, p problem.Problem) {
	c.Abort()
	if c.Writer.Written() {
		return // too late: the answer is on its way
	}
	switch p.Status {
	case http.StatusUnauthorized:
		c.Header("WWW-Authenticate", s.challenge)
	case http.StatusServiceUnavailable:
		c.Header("Retry-After", strconv.Itoa(max(retryStore, decision.RetryAfterClosed)))
	}
	problem.Write(c.Writer, p.Status, p)
}
