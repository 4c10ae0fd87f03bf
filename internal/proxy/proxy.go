package proxy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// Config is what a proxy needs.
type Config struct {
	Engine    *decision.Engine
	Addresses *decision.AddressResolver
	Holder    *decision.Holder
	// Upstream is where requests go: http or https, with a host, an optional path before every request's own, and nothing else.
	Upstream *url.URL
	// TrustIdentityHeaders believes X-Pegel-Tenant and X-Pegel-User from trusted proxies.
	TrustIdentityHeaders bool
	// WebSockets caps those that are open at one time, by tenant and in all; nil: 1,000 and 10,000.
	WebSockets *decision.Holder
	// WebSocketLifetime is how long one may be open; 0: DefaultWebSocketLifetime.
	WebSocketLifetime time.Duration
	// Transport reaches the upstream; nil: NewTransport(0).
	Transport http.RoundTripper
	Log       *slog.Logger
}

// Defaults of the bounds on WebSockets.
const (
	DefaultWebSocketsPerTenant = 1_000
	DefaultWebSocketsTotal     = 10_000
	DefaultWebSocketLifetime   = 24 * time.Hour
)

// Proxy is the front door. New makes one.
type Proxy struct {
	engine        *decision.Engine
	addresses     *decision.AddressResolver
	holder        *decision.Holder
	upstream      url.URL
	trustIdentity bool
	reverse       httputil.ReverseProxy
	tunnels       *tunnels
	log           *slog.Logger
}

// New checks the configuration and builds the front door.
func New(cfg Config) (*Proxy, error) {
	switch u := cfg.Upstream; {
	case u == nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("proxy upstream must be an http or https URL with a host")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("proxy upstream must not have credentials, a query or a fragment")
	case cfg.Engine == nil || cfg.Addresses == nil || cfg.Holder == nil:
		return nil, errors.New("proxy needs an engine, an address resolver and a holder")
	}
	p := &Proxy{
		engine: cfg.Engine, addresses: cfg.Addresses, holder: cfg.Holder, upstream: *cfg.Upstream,
		trustIdentity: cfg.TrustIdentityHeaders, log: cfg.Log,
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	transport := cfg.Transport
	if transport == nil {
		transport = NewTransport(0)
	}
	if cfg.WebSockets == nil {
		cfg.WebSockets = decision.NewHolder(DefaultWebSocketsPerTenant, DefaultWebSocketsTotal, nil)
	}
	if cfg.WebSocketLifetime <= 0 {
		cfg.WebSocketLifetime = DefaultWebSocketLifetime
	}
	p.tunnels = newTunnels(cfg.WebSockets, cfg.WebSocketLifetime)
	p.reverse = httputil.ReverseProxy{
		Rewrite:        p.rewrite,
		ModifyResponse: modifyResponse,
		ErrorHandler:   p.upstreamFailed,
		Transport:      transport,
		FlushInterval:  -1, // every write goes out at once: event streams and long polls
		BufferPool:     &bufferPool{},
		ErrorLog:       slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	return p, nil
}

// DefaultResponseTimeout is how long an upstream may take to begin its answer.
const DefaultResponseTimeout = 60 * time.Second

// NewTransport makes a transport for an upstream that begins its answers within responseTimeout (0: the default). It uses no
// proxy of the environment and leaves encodings alone; a started answer may take as long as it likes.
func NewTransport(responseTimeout time.Duration) *http.Transport {
	if responseTimeout <= 0 {
		responseTimeout = DefaultResponseTimeout
	}
	return &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		DisableCompression:    true,
		MaxIdleConns:          1024,
		MaxIdleConnsPerHost:   256,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
		ResponseHeaderTimeout: responseTimeout,
	}
}

// exchange is what the parts of one forwarded request share.
type exchange struct {
	decision  *decision.Decision
	requestID string
	path      string // escaped, as it is forwarded
	client    string // the client's address, empty when it has none
	trusted   bool   // the peer is a trusted proxy
	body      *clientBody
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// Shutdown cuts the open WebSockets, which http.Server.Shutdown knows nothing of, and waits for their end until ctx ends.
func (p *Proxy) Shutdown(ctx context.Context) error { return p.tunnels.shutdown(ctx) }

// ServeHTTP decides, holds and forwards.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{requestID: requestID(r)}
	raw := r.URL.EscapedPath()
	if raw == "" && r.URL.Host != "" { // absolute form without a path
		raw = "/"
	}
	_, ok := tenants.CanonicalPath(raw)
	if ok {
		x.path, ok = forwardedPath(raw)
	}
	switch {
	case r.Method == http.MethodConnect:
		p.refuse(w, x, problem.New(problem.MethodNotAllowed, "this is not a forward proxy", x.requestID))
		return
	case !ok:
		p.refuse(w, x, problem.New(problem.Validation, "the path has no canonical form", x.requestID))
		return
	}
	address, trusted := p.addresses.Resolve(r)
	if x.trusted = trusted; address.IsValid() {
		x.client = address.Addr().String()
	}
	credentials := decision.ReadCredentials(r.Header, trusted && p.trustIdentity)
	credentials.Host = hostOf(r, trusted)
	caller := p.engine.Identify(credentials, address)
	caller.Door = decision.DoorProxy

	// The engine takes the path as it came: the canonical form is decoded and must not be read as a path once more.
	d, err := p.engine.Admit(r.Context(), &caller, r.Method, raw)
	if err != nil {
		p.notDecided(w, r, x, err)
		return
	}
	if x.decision = d; d.Verdict == decision.Deny {
		p.denied(w, x, "")
		return
	}
	if d.Delay > 0 {
		done, held := p.hold(w, r, x, &caller, raw)
		defer done()
		if !held {
			return
		}
	}
	ctx := context.WithValue(r.Context(), exchangeKey{}, x)
	if isWebSocket(r.Header) {
		tunnel, leave, full := p.tunnels.enter(ctx, caller.HoldKey())
		if full {
			p.tooMany(w, r, x, &caller, raw, "too many WebSockets of this caller are open")
			return
		}
		defer leave()
		ctx = tunnel
	} else {
		dropUpgrade(r.Header)
	}
	x.body = &clientBody{ReadCloser: r.Body}
	r.Body = x.body
	// An upstream may answer before it has read the body. Without this net/http keeps the answer back until the client has
	// sent all of it. Writers that have no such switch are always in full duplex.
	_ = http.NewResponseController(w).EnableFullDuplex()
	p.reverse.ServeHTTP(spelled{w}, r.WithContext(ctx))
}

// hold keeps a slowed request for its delay. held is false when it was answered or its client has left; done must be called
// when the request is over.
func (p *Proxy) hold(w http.ResponseWriter, r *http.Request, x *exchange, caller *decision.Caller, path string) (done func(), held bool) {
	release, ok := p.holder.Acquire(caller.HoldKey())
	if !ok {
		p.tooMany(w, r, x, caller, path, "")
		return func() {}, false
	}
	defer release()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	early := readEarly(w, r, cancel)
	if err := p.holder.Hold(ctx, x.decision.Delay); err != nil {
		early.stop()
		if reason := ambiguity(ctx); reason != nil {
			w.Header().Set("Connection", "close")
			p.refuse(w, x, problem.New(problem.Validation, reason.Error(), x.requestID))
			return func() {}, false
		}
		panic(http.ErrAbortHandler) // the client has left: there is nobody to answer
	}
	early.release()
	return early.stop, true
}

// tooMany refuses a request that was allowed and has no place.
func (p *Proxy) tooMany(w http.ResponseWriter, r *http.Request, x *exchange, caller *decision.Caller, path, detail string) {
	hit := caller.Hit(r.Method, path)
	x.decision = p.engine.TooManyHeld(&hit, x.decision)
	p.denied(w, x, detail)
}

// denied answers a 429, in words of its own where there are any. The body of the request has not been read.
func (p *Proxy) denied(w http.ResponseWriter, x *exchange, detail string) {
	refusal := decision.Denied(x.decision, x.requestID)
	if detail != "" {
		refusal.Detail = detail
	}
	h := w.Header()
	decision.WriteHeaders(h, x.decision)
	h.Set("X-Request-Id", x.requestID)
	h.Set("Content-Type", problem.ContentType)
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusTooManyRequests)
	_, _ = w.Write(refusal.AppendJSON(nil)) // a client that has left misses its refusal
}

// notDecided answers what Admit could not or would not decide.
func (p *Proxy) notDecided(w http.ResponseWriter, r *http.Request, x *exchange, err error) {
	slug, detail, ok := decision.ProblemOf(err)
	if !ok {
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler) // the client has left
		}
		p.log.LogAttrs(r.Context(), slog.LevelError, "no decision", slog.String("error", err.Error()), slog.String("request_id", x.requestID))
		slug, detail = problem.Internal, "the request could not be decided"
	}
	if slug == problem.Unauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="pegel"`)
	}
	if slug == problem.StoreUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(decision.RetryAfterClosed))
	}
	p.refuse(w, x, problem.New(slug, detail, x.requestID))
}

func (p *Proxy) refuse(w http.ResponseWriter, x *exchange, body problem.Problem) {
	w.Header().Set("X-Request-Id", x.requestID)
	problem.Write(w, body.Status, body)
}

// upstreamFailed answers for an upstream that did not: 504 when it was too slow, else 502, under the slug internal (it is
// nothing that the client could mend). A body that the client broke off or that is malformed is the client's fault: 400. The
// hit stays charged.
func (p *Proxy) upstreamFailed(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r.Context())
	var reason error
	if r.Context().Err() != nil {
		if reason = ambiguity(r.Context()); reason == nil && errors.Is(err, context.Canceled) {
			panic(http.ErrAbortHandler) // the client has left
		}
	}
	if reason == nil && x.body.failed.Load() {
		reason = errBody
	}
	if reason != nil {
		decision.WriteHeaders(w.Header(), x.decision)
		w.Header().Set("Connection", "close") // where the next request would start is anybody's guess
		p.refuse(w, x, problem.New(problem.Validation, reason.Error(), x.requestID))
		return
	}
	status := http.StatusBadGateway
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		status = http.StatusGatewayTimeout
	}
	p.log.LogAttrs(r.Context(), slog.LevelWarn, "upstream failed",
		slog.String("error", err.Error()), slog.Int("status", status), slog.String("request_id", x.requestID))
	body := problem.New(problem.Internal, "the service behind this proxy did not answer", x.requestID)
	body.Status, body.Title = status, http.StatusText(status)
	decision.WriteHeaders(w.Header(), x.decision)
	p.refuse(w, x, body)
}

var errBody = errors.New("the body could not be read to its end")

// clientBody is a request's body that remembers whether reading it from the client failed.
type clientBody struct {
	io.ReadCloser

	failed atomic.Bool
}

func (b *clientBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, http.ErrBodyReadAfterClose) { // the last: the upstream was done with it
		b.failed.Store(true)
	}
	return n, err //nolint:wrapcheck // a reader's errors are its own
}

// bufferPool lends the 32 KiB that copying an answer takes.
type bufferPool struct{ pool sync.Pool }

const bufferSize = 32 << 10

func (b *bufferPool) Get() []byte {
	if buf, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return buf[:]
	}
	return make([]byte, bufferSize)
}

func (b *bufferPool) Put(buf []byte) { b.pool.Put((*[bufferSize]byte)(buf)) }
