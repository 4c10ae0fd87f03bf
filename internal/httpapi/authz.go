package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// The headers by which a door of forward authentication tells its proxy more than a status can say.
const (
	// headerStatus is the status that the client should get: on every refusal, and on nothing else. An answer without it that is
	// no 200 is a failure, which a proxy may be configured to pass.
	headerStatus = "X-Pegel-Status"
	// headerProblem is the body that the client should get, from a proxy that throws ours away (nginx).
	headerProblem = "X-Pegel-Problem"
)

// authzDoor is one dialect of forward authentication: a proxy describes a request of its client in headers, asks whether it may
// pass, and answers itself when it may not. The client's own headers come along, its credentials with them.
type authzDoor struct {
	// method and uri are the headers that state the request; each must come once.
	method, uri string
	// hostFact states the host, among the facts of also; empty: the question's own Host does.
	hostFact string
	// also are facts that nothing is decided by, and which must come once all the same: a proxy that does not send them is not the
	// one that it is taken for. Each has its own rule.
	also []authzFact
	// rivals state the same in other dialects. A client can send them through the proxy, so they must agree.
	rivalMethods, rivalURIs []string
	// only403: the proxy knows 401 and 403 and takes any other status for a failure (nginx).
	only403 bool
}

type authzFact struct {
	header string
	valid  func(string) bool
}

// authzForward is what Traefik's ForwardAuth and Caddy's forward_auth ask.
func authzForward() *authzDoor {
	return &authzDoor{
		method: "X-Forwarded-Method", uri: "X-Forwarded-Uri", hostFact: "X-Forwarded-Host",
		also:         []authzFact{{"X-Forwarded-Proto", validScheme}, {"X-Forwarded-Host", validHost}},
		rivalMethods: []string{"X-Original-Method"}, rivalURIs: []string{"X-Original-Uri", "X-Original-Url"},
	}
}

// authzNginx is what nginx asks by auth_request, as deploy/nginx has it.
func authzNginx() *authzDoor {
	return &authzDoor{
		method: "X-Original-Method", uri: "X-Original-Uri",
		rivalMethods: []string{"X-Forwarded-Method"}, rivalURIs: []string{"X-Forwarded-Uri", "X-Original-Url"},
		only403: true,
	}
}

// authz is the handler of a door: one decision about the request that the proxy describes, held for its delay.
func (p *public) authz(door *authzDoor) gin.HandlerFunc {
	return func(c *gin.Context) {
		if !of(c).peerTrusted {
			p.refuseAuthz(c, door, refuse(problem.Forbidden, "only a proxy of PEGEL_TRUSTED_PROXIES may ask here"))
			return
		}
		method, uri, err := door.facts(c.Request.Header)
		if err != nil {
			p.refuseAuthz(c, door, err)
			return
		}
		caller, ctx := p.callerFor(c, door.host(c.Request)), c.Request.Context()
		caller.Door = decision.DoorAuthz
		d, err := p.engine.Admit(ctx, &caller, method, uri)
		if err == nil && d.Verdict != decision.Deny && d.Delay > 0 {
			hit := caller.Hit(method, uri)
			d, err = p.hold(ctx, &hit, d)
		}
		switch {
		case err != nil:
			p.refuseAuthz(c, door, err)
		case d.Verdict == decision.Deny:
			p.denyAuthz(c, door, d)
		default:
			decision.WriteHeaders(c.Writer.Header(), d)
			c.Header("Content-Length", "0")
			c.Writer.WriteHeader(http.StatusOK)
		}
	}
}

// host is the one that the request is for. What a client sends in another dialect's header says nothing.
func (a *authzDoor) host(r *http.Request) string {
	if a.hostFact == "" {
		return r.Host
	}
	return r.Header.Get(a.hostFact)
}

// facts reads the request that the proxy describes. What is missing, comes twice, says two things or can be read as two paths is
// refused: another rule's path, or none, would be a way around a limit.
func (a *authzDoor) facts(h http.Header) (method, uri string, err error) {
	if method, err = oneFact(h, a.method, validMethod); err != nil {
		return "", "", err
	}
	if uri, err = oneFact(h, a.uri, hasCanonicalPath); err != nil {
		return "", "", err
	}
	for _, fact := range a.also {
		if _, err = oneFact(h, fact.header, fact.valid); err != nil {
			return "", "", err
		}
	}
	for _, name := range a.rivalMethods {
		for _, rival := range h[name] {
			if !strings.EqualFold(rival, method) {
				return "", "", contradiction(name, a.method)
			}
		}
	}
	for _, name := range a.rivalURIs {
		for _, rival := range h[name] {
			if !samePath(rival, uri) {
				return "", "", contradiction(name, a.uri)
			}
		}
	}
	return method, uri, nil
}

func oneFact(h http.Header, name string, valid func(string) bool) (string, error) {
	switch lines := h[name]; {
	case len(lines) == 0:
		return "", refuse(problem.Forbidden, "the proxy did not send "+name)
	case len(lines) > 1:
		return "", refuse(problem.Forbidden, name+" came more than once")
	case !valid(lines[0]):
		return "", refuse(problem.Forbidden, name+" is not valid")
	default:
		return lines[0], nil
	}
}

func contradiction(one, other string) error {
	return refuse(problem.Forbidden, one+" and "+other+" contradict each other")
}

func hasCanonicalPath(uri string) bool {
	_, ok := tenants.CanonicalPath(uri)
	return ok
}

func samePath(a, b string) bool {
	one, okOne := tenants.CanonicalPath(a)
	other, okOther := tenants.CanonicalPath(b)
	return okOne && okOther && one == other
}

// validScheme is one scheme; Traefik names those of WebSockets too.
func validScheme(s string) bool {
	switch strings.ToLower(s) {
	case "http", "https", "ws", "wss":
		return true
	}
	return false
}

// maxHostLength is the longest name there is, with a port.
const maxHostLength = 253 + len(":65535")

func validHost(s string) bool {
	return s != "" && len(s) <= maxHostLength && !strings.ContainsAny(s, ", \t/?#@\\")
}

// denyAuthz answers a refusal by a limit.
func (p *public) denyAuthz(c *gin.Context, door *authzDoor, d *decision.Decision) {
	c.Abort()
	denied := decision.Denied(d, requestID(c))
	decision.WriteHeaders(c.Writer.Header(), d)
	p.writeAppended(c, door.status(c, denied.Status, shortProblem(denied)), problem.ContentType, denied.AppendJSON)
}

// refuseAuthz answers a request that is refused before there is a decision. What no proxy of this kind knows what to do with
// (400, 404) is a 403; our own failures go out as they are, and the proxy's configuration says what becomes of its client.
func (p *public) refuseAuthz(c *gin.Context, door *authzDoor, err error) {
	refused, known := problemOf(err, requestID(c))
	closed := errors.Is(err, decision.ErrClosed)
	switch {
	case !known || refused.Status >= http.StatusInternalServerError && !closed:
		p.fail(c, err)
		return
	case closed:
		c.Header(decision.HeaderRetryAfter, strconv.Itoa(decision.RetryAfterClosed))
	case refused.Status == http.StatusUnauthorized:
		c.Header("WWW-Authenticate", p.challenge)
	case refused.Status != http.StatusForbidden:
		refused = problem.New(problem.Forbidden, refused.Detail, refused.RequestID)
	}
	c.Abort()
	problem.Write(c.Writer, door.status(c, refused.Status, refused), refused)
}

// status is the one that goes to the proxy for a refusal, with the headers that say the rest.
func (a *authzDoor) status(c *gin.Context, client int, short any) int {
	h := c.Writer.Header()
	h[headerStatus] = []string{strconv.Itoa(client)}
	if !a.only403 {
		return client
	}
	if raw, err := json.Marshal(short); err == nil {
		h[headerProblem] = []string{string(raw)}
	}
	if client == http.StatusUnauthorized {
		return client
	}
	return http.StatusForbidden
}

// authzProblem is a 429 small enough for a header: the problem and what the contract adds to it, without the decision's own
// members.
type authzProblem struct {
	problem.Problem

	LimitName         *string         `json:"limit_name"`
	Limit             decision.Number `json:"limit"`
	WindowSeconds     *float64        `json:"window_seconds"`
	RetryAfterSeconds decision.Number `json:"retry_after_seconds,omitzero"`
	RetryAfterAt      string          `json:"retry_after_at,omitempty"`
	DecisionID        string          `json:"decision_id"`
}

func shortProblem(r *decision.Refusal) authzProblem {
	return authzProblem{
		Problem: r.Problem, LimitName: r.LimitName, Limit: r.Limit, WindowSeconds: r.WindowSeconds,
		RetryAfterSeconds: r.RetryAfterSeconds, RetryAfterAt: r.RetryAfterAt, DecisionID: r.DecisionID,
	}
}

// authzAsGet gives the doors of forward authentication one method: a proxy may ask with its client's (Traefik's
// preserveRequestMethod), which says nothing that its headers do not say.
func authzAsGet(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && strings.HasPrefix(r.URL.Path, "/authz/") {
			r = r.WithContext(r.Context()) // a copy: the server looks at its own when it sends
			r.Method = http.MethodGet
		}
		next.ServeHTTP(w, r)
	})
}
