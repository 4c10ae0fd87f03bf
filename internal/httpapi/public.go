package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// public answers the routes under /v1.
type public struct {
	surface

	engine        Engine
	directory     *tenants.Directory
	holder        Holder
	trustIdentity bool
}

// loaded refuses decisions before the first configuration is there: everybody would be a stranger.
func (p *public) loaded(c *gin.Context) {
	if p.directory.Snapshot().Version == 0 {
		c.Header("X-Pegel-Starting", "1") // tells it from a closed limit: clients may open for it
		p.fail(c, refuse(problem.StoreUnavailable, "the configuration has not been loaded yet"))
	}
}

// caller is who is asking.
func (p *public) caller(c *gin.Context) decision.Caller {
	return p.callerFor(c, "")
}

// callerFor is who is asking, on behalf of a request for a host; empty: the request is for Pegel itself.
func (p *public) callerFor(c *gin.Context, host string) decision.Caller {
	x := of(c)
	credentials := decision.ReadCredentials(c.Request.Header, p.trustIdentity && x.peerTrusted)
	credentials.Host = host
	caller := p.engine.Identify(credentials, x.address)
	caller.Door = decision.DoorCheck
	return caller
}

// authenticate is for routes where a credential is needed: a wrong one, or none, is counted against the address and refused.
// A valid credential beside a wrong one does not help.
func (p *public) authenticate(c *gin.Context) (decision.Caller, bool) {
	caller := p.caller(c)
	switch {
	case caller.Wrong() || caller.APIKey == nil && caller.Service == nil:
		p.unauthorized(c, &caller)
	case caller.BadIdentity:
		p.fail(c, decision.ErrBadIdentity)
	default:
		return caller, true
	}
	return caller, false
}

// unauthorized counts the attempt and refuses it.
func (p *public) unauthorized(c *gin.Context, caller *decision.Caller) {
	p.fail(c, p.engine.Unauthorized(c.Request.Context(), caller, c.Request.Method, c.Request.URL.EscapedPath()))
}

// answer sends a decision: 200 with its body, or 429 with the union of body and problem.
func (p *public) answer(c *gin.Context, d *decision.Decision) {
	decision.WriteHeaders(c.Writer.Header(), d)
	if d.Verdict == decision.Deny {
		denied := decision.Denied(d, requestID(c))
		c.Abort()
		p.writeAppended(c, denied.Status, problem.ContentType, denied.AppendJSON)
		return
	}
	p.writeAppended(c, http.StatusOK, mediaJSON, decision.Body(d).AppendJSON)
}

// mediaJSON is the media type of every body that is no problem.
const mediaJSON = "application/json"

// bufferKept is up to what size the memory of a body is kept for the next one: a batch of some 400 checks.
const bufferKept = 256 << 10

// writeAppended sends a body that writes itself: what is answered most often.
func (s *surface) writeAppended(c *gin.Context, status int, contentType string, body func([]byte) []byte) {
	buffer, ok := s.buffers.Get().(*[]byte)
	if !ok {
		buffer = new([]byte)
	}
	*buffer = body((*buffer)[:0])
	s.writeRaw(c, status, contentType, *buffer)
	if cap(*buffer) <= bufferKept {
		s.buffers.Put(buffer)
	}
}

// writeJSON sends a body.
func (s *surface) writeJSON(c *gin.Context, status int, body any) {
	raw, err := json.Marshal(body)
	if err != nil {
		s.fail(c, err)
		return
	}
	s.writeRaw(c, status, mediaJSON, raw)
}

func (s *surface) writeRaw(c *gin.Context, status int, contentType string, raw []byte) {
	c.Header("Content-Type", contentType)
	c.Writer.WriteHeader(status)
	if _, err := c.Writer.Write(raw); err != nil {
		s.log.LogAttrs(c.Request.Context(), slog.LevelDebug, "client left before its answer", slog.String("request_id", requestID(c)))
	}
}

// check is POST /v1/check.
func (p *public) check(c *gin.Context) {
	caller, ok := p.authenticate(c)
	if !ok {
		return
	}
	raw, err := readBody(c)
	if err != nil {
		p.fail(c, err)
		return
	}
	request, err := decodeCheck(raw)
	if err != nil {
		p.fail(c, err)
		return
	}
	hit, err := p.hit(&caller, &request)
	if err != nil {
		p.fail(c, err)
		return
	}
	ctx := c.Request.Context()
	d, err := p.engine.Decide(ctx, hit)
	if err != nil {
		p.fail(c, err)
		return
	}
	if request.wait && d.Verdict != decision.Deny && d.Delay > 0 {
		if d, err = p.hold(ctx, &hit, d); err != nil {
			p.fail(c, err)
			return
		}
	}
	p.answer(c, d)
}

// hold waits for the decision's delay. Without a free slot the answer is a refusal at once; the unit stays charged. A client
// that leaves frees its slot at once.
func (p *public) hold(ctx context.Context, hit *decision.Hit, d *decision.Decision) (*decision.Decision, error) {
	err := p.holder.Wait(ctx, hit.HoldKey(), d.Delay)
	if errors.Is(err, decision.ErrTooManyHeld) {
		return p.engine.TooManyHeld(hit, d), nil
	}
	return d, err
}

// hit turns a check into what the engine decides on, within what the caller may name.
func (p *public) hit(caller *decision.Caller, r *checkRequest) (decision.Hit, error) {
	if caller.Service == nil {
		h := r.hit()
		return h, ownHit(&h, caller, r)
	}
	if !caller.May(tenants.MayCheck) {
		return decision.Hit{}, refuse(problem.Forbidden, "this service token may not check")
	}
	return p.serviceHit(caller, r)
}

// hit is what the body says by itself.
func (r *checkRequest) hit() decision.Hit {
	return decision.Hit{User: r.user, Key: r.key, Method: r.method, Path: r.path, Cost: r.cost, Peek: r.peek, Door: decision.DoorCheck}
}

// serviceHit is the hit that a service token names.
func (p *public) serviceHit(caller *decision.Caller, r *checkRequest) (decision.Hit, error) {
	h := r.hit()
	h.Service = caller.Service.Name
	if r.address != "" {
		address, ok := p.engine.AddressPrefix(r.address)
		if !ok {
			return h, invalid("/address", msgAddress)
		}
		h.Address, h.Standing = address, decision.NamedStanding(r.user, r.key)
	}
	switch {
	case r.tenant != "":
		tenant, ok := p.directory.Snapshot().Tenant(r.tenant)
		if !ok {
			return h, refuse(problem.NotFound, "the tenant does not exist")
		}
		h.Tenant = tenant
	case r.address != "":
	case caller.UnknownTenant:
		return h, decision.ErrUnknownTenant
	case caller.Tenant != nil: // forwarded with the tenant's own key, or named in a header
		return h, ownHit(&h, caller, r)
	default:
		return h, invalid("", "must name a tenant, an address or both")
	}
	return h, nil
}

// ownHit is a check of the caller's own tenant.
func ownHit(h *decision.Hit, caller *decision.Caller, r *checkRequest) error {
	switch {
	case r.tenant != "" && r.tenant != caller.Tenant.Slug:
		return refuse(problem.Forbidden, "an API key decides for its own tenant only")
	case caller.Session && caller.APIKey == nil && r.user != "" && r.user != caller.User:
		return refuse(problem.Forbidden, "a session asks for its own user only")
	case r.address != "":
		return refuse(problem.Forbidden, "only a service token may name an address")
	}
	h.Tenant = caller.Tenant
	if h.User == "" {
		h.User = caller.User
	}
	if h.Key == "" {
		h.Key = caller.Key
	}
	return nil
}

// checkBatch is POST /v1/check/batch.
func (p *public) checkBatch(c *gin.Context) {
	caller, ok := p.authenticate(c)
	if !ok {
		return
	}
	if caller.Service != nil && !caller.May(tenants.MayCheck) {
		p.fail(c, refuse(problem.Forbidden, "this service token may not check"))
		return
	}
	raw, err := readBody(c)
	if err != nil {
		p.fail(c, err)
		return
	}
	elements, err := decodeBatch(raw)
	if err != nil {
		p.fail(c, err)
		return
	}
	results := p.decideBatch(c, &caller, elements)
	p.writeAppended(c, http.StatusOK, mediaJSON, func(b []byte) []byte {
		b = append(b, `{"results":[`...)
		for i, result := range results {
			if i > 0 {
				b = append(b, ',')
			}
			b = result.AppendJSON(b)
		}
		return append(b, `]}`...)
	})
}

// appender is a body that writes itself.
type appender interface{ AppendJSON(b []byte) []byte }

// decideBatch decides the valid elements in one call and puts every answer where its check was.
func (p *public) decideBatch(c *gin.Context, caller *decision.Caller, elements []batchElement) []appender {
	results := make([]appender, len(elements))
	hits := make([]decision.Hit, 0, len(elements))
	places := make([]int, 0, len(elements))
	for i := range elements {
		hit, err := p.batchHit(caller, &elements[i])
		if err != nil {
			results[i] = p.elementProblem(c, err)
			continue
		}
		hits, places = append(hits, hit), append(places, i)
	}
	if len(hits) == 0 {
		return results
	}
	for i, result := range p.engine.DecideBatch(c.Request.Context(), hits) {
		switch {
		case result.Err != nil:
			results[places[i]] = p.elementProblem(c, result.Err)
		case result.Decision.Verdict == decision.Deny:
			results[places[i]] = decision.Denied(result.Decision, requestID(c))
		default:
			results[places[i]] = decision.Body(result.Decision)
		}
	}
	return results
}

func (p *public) batchHit(caller *decision.Caller, e *batchElement) (decision.Hit, error) {
	switch {
	case e.err != nil:
		return decision.Hit{}, e.err
	case e.check.wait:
		return decision.Hit{}, invalid("/wait", "is refused in a batch")
	}
	return p.hit(caller, &e.check)
}

// elementProblem is an error as an element's answer; pointers are within the element.
func (p *public) elementProblem(c *gin.Context, err error) appender {
	body, known := problemOf(err, requestID(c))
	if !known {
		p.log.LogAttrs(c.Request.Context(), slog.LevelError, "check of a batch failed",
			slog.String("request_id", requestID(c)), slog.Any("error", err))
	}
	return appendedProblem{body}
}

// appendedProblem is a problem as an element's answer.
type appendedProblem struct{ problem.Problem }

// AppendJSON leaves it to encoding/json: problems are seldom.
func (p appendedProblem) AppendJSON(b []byte) []byte {
	raw, _ := json.Marshal(p.Problem) // our own structs always marshal
	return append(b, raw...)
}

// ping is GET /v1/ping: it charges the caller as any API call would. The delay is told, not waited for.
func (p *public) ping(c *gin.Context) {
	caller := p.caller(c)
	caller.Door = decision.DoorPing
	d, err := p.engine.Admit(c.Request.Context(), &caller, c.Request.Method, c.Request.URL.EscapedPath())
	switch {
	case err != nil:
		p.fail(c, err)
	case d.Verdict == decision.Deny:
		p.answer(c, d)
	default:
		decision.WriteHeaders(c.Writer.Header(), d)
		p.writeRaw(c, http.StatusOK, "application/json", []byte(`{"pong":true}`))
	}
}
