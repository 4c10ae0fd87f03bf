package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/netip"
	"net/url"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/signin"
)

// maxBody is the largest body that is read, in bytes, where the contract's x-pegel-max-body names no other.
const maxBody = 1 << 20

// keyExchange is where gin's context keeps the exchange.
const keyExchange = "pegel.exchange"

// exchange is what the middleware found out about a request, for the middleware and handlers after it.
type exchange struct {
	requestID string
	// address is the client's with the prefix it is counted by; the zero Prefix when there is none (Unix socket).
	address netip.Prefix
	// peerTrusted: the request came through a trusted proxy.
	peerTrusted bool
	// who is the administrator that authenticate let through.
	who signin.Administrator
	// body is the JSON body that validate let through.
	body []byte
}

// of is the exchange of a request; identify, which runs first, made it.
func of(c *gin.Context) *exchange {
	x, ok := c.Value(keyExchange).(*exchange)
	if !ok {
		return &exchange{}
	}
	return x
}

// surface is what both listeners have in common.
type surface struct {
	addresses AddressResolver
	now       func() time.Time
	log       *slog.Logger
	ids       *decision.IDSource // of requests
	// buffers are the memory that bodies are written in: *[]byte.
	buffers *sync.Pool
	// challenge is the WWW-Authenticate of a 401.
	challenge string
	listener  string // listenerPublic or listenerAdmin
}

// The two listeners, by name.
const (
	listenerPublic = "public"
	listenerAdmin  = "admin"
)

// identify gives the request its id and its client address.
func (s *surface) identify(c *gin.Context) {
	id := c.GetHeader("X-Request-Id")
	if !saneRequestID(id) {
		id = s.ids.Next(s.now())
	}
	c.Header("X-Request-Id", id)
	address, trusted := s.addresses.Resolve(c.Request)
	c.Set(keyExchange, &exchange{requestID: id, address: address, peerTrusted: trusted})
}

// saneRequestID keeps ids fit for a header, a log line and a problem.
func saneRequestID(id string) bool {
	if id == "" || len(id) > 128 || decision.IsOurs(id) { // a credential in the wrong header must not reach a log
		return false
	}
	for i := range len(id) {
		c := id[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !isDigit(c) && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

func requestID(c *gin.Context) string { return of(c).requestID }

// addressText is the address as logs and the audit show it.
func addressText(c *gin.Context) string {
	if address := of(c).address; address.IsValid() {
		return address.Addr().String()
	}
	return ""
}

// accessLog writes a line per request at debug level: the route's pattern, never the path, the query or a header.
func (s *surface) accessLog(c *gin.Context) {
	ctx := c.Request.Context()
	if !s.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	start := s.now()
	c.Next()
	s.log.LogAttrs(ctx, slog.LevelDebug, "request",
		slog.String("request_id", requestID(c)), slog.String("method", c.Request.Method), slog.String("route", c.FullPath()),
		slog.Int("status", c.Writer.Status()), slog.Duration("took", s.now().Sub(start)), slog.String("address", addressText(c)))
}

// recoverPanics turns a panic into a 500 under the request's id. The stack is logged, the request is not: it holds secrets.
func (s *surface) recoverPanics(c *gin.Context) {
	defer func() {
		fault := recover()
		if fault == nil {
			return
		}
		if err, ok := fault.(error); ok && errors.Is(err, http.ErrAbortHandler) {
			panic(fault) // the server's own way of cutting a connection
		}
		s.log.LogAttrs(c.Request.Context(), slog.LevelError, "panic while answering",
			slog.String("request_id", requestID(c)), slog.String("route", c.FullPath()),
			slog.String("panic", faultText(fault)), slog.String("stack", string(debug.Stack())))
		s.writeProblem(c, problem.New(problem.Internal, "something went wrong on our side; the request id finds it in the logs", requestID(c)))
	}()
	c.Next()
}

// faultText is what may be logged of a panic: the runtime's own words, or the type. Other texts may quote a request.
func faultText(fault any) string {
	var err runtime.Error
	if e, ok := fault.(error); ok && errors.As(e, &err) {
		return err.Error()
	}
	return fmt.Sprintf("%T", fault)
}

// secureHeaders says that nothing here is a page, and that nothing may be kept. Handlers of pages say otherwise.
func (s *surface) secureHeaders(c *gin.Context) {
	h := c.Writer.Header()
	h["Cache-Control"] = noStore
	h["X-Content-Type-Options"] = noSniff
	h["Content-Security-Policy"] = noContent
	h["Referrer-Policy"] = noReferrer
}

// The values of secureHeaders, shared by all answers and never written to.
var (
	noStore    = []string{"no-store"}
	noSniff    = []string{"nosniff"}
	noContent  = []string{"default-src 'none'; frame-ancestors 'none'"}
	noReferrer = []string{"no-referrer"}
)

// readBody reads a JSON body of at most maxBody bytes.
func readBody(c *gin.Context) ([]byte, error) { return readBodyWithin(c, maxBody) }

// readBodyWithin reads a JSON body of at most so many bytes.
func readBodyWithin(c *gin.Context, most int64) ([]byte, error) {
	r := c.Request
	if err := jsonMedia(r.Header); err != nil {
		return nil, err
	}
	if r.ContentLength > most {
		c.Header("Connection", "close")
		return nil, errTooLarge(most)
	}
	// MaxBytesReader also tells the server to close a connection whose rest nobody reads.
	body := http.MaxBytesReader(c.Writer, r.Body, most)
	// A stated length is only believed so far: bytes that never come must not cost memory.
	size := r.ContentLength
	if size < 0 {
		size = 512
	}
	data := make([]byte, 0, min(size, 16<<10)+1)
	for {
		n, err := body.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		var limit *http.MaxBytesError
		switch {
		case errors.Is(err, io.EOF):
			return data, nil
		case errors.As(err, &limit):
			return nil, errTooLarge(most)
		case err != nil:
			return nil, invalid("", "could not be read to its end")
		}
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
	}
}

func errTooLarge(most int64) error {
	return refuse(problem.PayloadTooLarge, fmt.Sprintf("a body may have at most %d MiB", most>>20))
}

// jsonMedia accepts application/json, no media type at all, and what curl -d sends by itself.
func jsonMedia(h http.Header) error {
	if encoding := h.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return invalid("/header/Content-Encoding", "must be absent: compressed bodies are not read")
	}
	types := h["Content-Type"]
	if len(types) == 0 || len(types) == 1 && (types[0] == "" || types[0] == "application/json" || types[0] == "application/x-www-form-urlencoded") {
		return nil
	}
	media, params, err := mime.ParseMediaType(types[0])
	charset := params["charset"]
	if err != nil || len(types) > 1 || media != "application/json" || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return invalid("/header/Content-Type", "must be application/json, in UTF-8")
	}
	return nil
}

// readQuery parses the query; each parameter comes at most once.
func readQuery(c *gin.Context) (url.Values, error) {
	if c.Request.URL.RawQuery == "" {
		return nil, nil
	}
	query, err := url.ParseQuery(c.Request.URL.RawQuery)
	if err != nil {
		return nil, invalid("/query", "is not a valid query string")
	}
	for name, values := range query {
		if len(values) > 1 {
			return nil, invalid("/query/"+pointerSegment(name), "must not come twice")
		}
	}
	return query, nil
}

// headAsGet answers HEAD wherever GET is: the server drops the body by itself.
func headAsGet(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			r = r.WithContext(context.WithValue(r.Context(), headKey{}, true)) // a copy: the server looks at its own when it sends
			r.Method = http.MethodGet
		}
		next.ServeHTTP(w, r)
	})
}

// headKey marks the context of a request that came as HEAD.
type headKey struct{}

// asksHead reports whether nobody will read the body.
func asksHead(r *http.Request) bool { return r.Context().Value(headKey{}) != nil }

// headerListener says, with a path that the other listener has, which one was asked.
const headerListener = "X-Pegel-Listener"

// elsewhere are the paths of the other listener, by the listener that is asked in vain, and what it says then.
var elsewhere = map[string]struct {
	paths  []string
	detail string
}{
	listenerPublic: {
		[]string{"/admin", "/dashboard", "/metrics"},
		"this is the public listener: administration, dashboard and metrics are on the admin listener (PEGEL_ADMIN_LISTEN)",
	},
	listenerAdmin: {
		[]string{"/v1", "/authz"},
		"this is the admin listener: decisions are on the public listener (PEGEL_LISTEN)",
	},
}

// noRoute and noMethod answer what no route does.
func (s *surface) noRoute(c *gin.Context) {
	other := elsewhere[s.listener]
	for _, path := range other.paths {
		if rest, ok := strings.CutPrefix(c.Request.URL.Path, path); ok && (rest == "" || rest[0] == '/') {
			c.Header(headerListener, s.listener)
			s.fail(c, refuse(problem.NotFound, other.detail))
			return
		}
	}
	s.fail(c, refuse(problem.NotFound, "there is nothing at this path"))
}

func (s *surface) noMethod(c *gin.Context) {
	if allow := c.Writer.Header().Get("Allow"); strings.Contains(allow, http.MethodGet) {
		c.Header("Allow", allow+", "+http.MethodHead)
	}
	s.fail(c, refuse(problem.MethodNotAllowed, "this path has other methods; Allow names them"))
}
