package proxy_test

import (
	"crypto/rand"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/proxy"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// delays is the timer of a test: it keeps what it was asked for and fires at once, unless it holds.
type delays struct {
	mu    sync.Mutex
	asked []time.Duration
	holds bool
	fire  chan time.Time
}

func (d *delays) start(delay time.Duration) (<-chan time.Time, func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, delay)
	if d.holds {
		return d.fire, func() {}
	}
	fired := make(chan time.Time, 1)
	fired <- time.Time{}
	return fired, func() {}
}

func (d *delays) list() []time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]time.Duration(nil), d.asked...)
}

// gate is a running proxy with one tenant, school-17, before an upstream that keeps what reaches it.
type gate struct {
	server   *httptest.Server
	client   *http.Client
	upstream *httptest.Server
	calls    atomic.Int64
	seen     chan *http.Request
	answer   http.HandlerFunc // nil: 200 "hello"
	timer    *delays
	holder   *decision.Holder
	proxy    *proxy.Proxy
	store    ratelimit.Store

	directory *tenants.Directory
	changes   tenants.Changes
	key       string
}

type gateOptions struct {
	limits    []tenants.Rule
	policy    []tenants.Rule
	trusted   []string
	store     ratelimit.Store
	answer    http.HandlerFunc
	identity  bool
	perTenant int
	upstream  *url.URL
	tenantID  int64
	transport http.RoundTripper
	sockets   *decision.Holder
	lifetime  time.Duration
	hosts     []string
	timer     decision.Timer // nil: the gate's own
}

func perMinute(quota int64) tenants.Rule {
	return tenants.Rule{Limit: ratelimit.Limit{
		Name: "requests-per-minute", Scope: ratelimit.ScopeTenant, Algorithm: ratelimit.SlidingWindowLog, Quota: quota, Window: time.Minute,
		Slowdown: &ratelimit.Slowdown{From: 0.8, MaxDelay: 2 * time.Second},
	}}
}

func perAddress(quota int64) tenants.Rule {
	return tenants.Rule{Limit: ratelimit.Limit{Name: "per-minute", Scope: ratelimit.ScopeAddress, Algorithm: ratelimit.SlidingWindowLog, Quota: quota, Window: time.Minute}}
}

func newGate(tb testing.TB, o gateOptions) *gate {
	tb.Helper()
	g := &gate{seen: make(chan *http.Request, 1), answer: o.answer, timer: &delays{fire: make(chan time.Time)}, directory: tenants.NewDirectory(0), store: o.store}
	if g.store == nil {
		g.store = ratelimit.NewMemory(ratelimit.MonotonicMicros(time.Now), 0)
	}
	if o.tenantID == 0 {
		o.tenantID = 17
	}
	g.changes = tenants.Changes{
		Plans:         []tenants.Plan{{ID: 1, Name: "light", Limits: o.limits}},
		Tenants:       []tenants.Tenant{{ID: o.tenantID, Slug: "school-17", Plan: "light", Status: tenants.Active}},
		AddressPolicy: &tenants.AddressPolicy{Limits: o.policy},
	}
	g.key = g.apiKey(tb, o.tenantID)

	g.upstream = httptest.NewServer(http.HandlerFunc(g.serveUpstream))
	tb.Cleanup(g.upstream.Close)
	target := o.upstream
	if target == nil {
		var err error
		target, err = url.Parse(g.upstream.URL)
		require.NoError(tb, err)
	}
	addresses := decision.AddressConfig{}
	for _, p := range o.trusted {
		addresses.TrustedProxies = append(addresses.TrustedProxies, netip.MustParsePrefix(p))
	}
	resolver, err := decision.NewAddressResolver(addresses)
	require.NoError(tb, err)
	if o.perTenant == 0 {
		o.perTenant = 500
	}
	if o.timer == nil {
		o.timer = g.timer.start
	}
	g.holder = decision.NewHolder(o.perTenant, 5000, o.timer)
	hosts, err := decision.NewHostPatterns(o.hosts)
	require.NoError(tb, err)
	engine := decision.New(decision.Config{Store: g.store, Directory: g.directory, Now: time.Now, Hosts: hosts})
	g.proxy, err = proxy.New(proxy.Config{
		Engine: engine, Addresses: resolver, Holder: g.holder, Upstream: target, TrustIdentityHeaders: o.identity, Transport: o.transport,
		WebSockets: o.sockets, WebSocketLifetime: o.lifetime,
	})
	require.NoError(tb, err)
	g.server = httptest.NewUnstartedServer(g.proxy)
	g.server.Listener = proxy.Guard(g.server.Listener, g.server.Config)
	g.server.Start()
	tb.Cleanup(g.server.Close)
	g.client = &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: 64},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	tb.Cleanup(g.client.CloseIdleConnections)
	return g
}

func (g *gate) apply() {
	g.changes.Version++
	g.changes.Full = true
	g.directory.Apply(g.changes, time.Now())
}

// apiKey makes a valid API key of a tenant.
func (g *gate) apiKey(tb testing.TB, tenant int64) string {
	tb.Helper()
	credential, text, err := tenants.NewCredential(tenants.KindAPIKey, rand.Reader)
	require.NoError(tb, err)
	g.changes.APIKeys = append(g.changes.APIKeys, tenants.APIKey{ID: credential.ID, TenantID: tenant, Hash: credential.Hash})
	g.apply()
	return text
}

func (g *gate) serviceToken(tb testing.TB) string {
	tb.Helper()
	credential, text, err := tenants.NewCredential(tenants.KindServiceToken, rand.Reader)
	require.NoError(tb, err)
	g.changes.ServiceTokens = append(g.changes.ServiceTokens, tenants.ServiceToken{
		ID: credential.ID, Name: "edge", Hash: credential.Hash, Exempt: []ratelimit.Scope{ratelimit.ScopeAddress},
	})
	g.apply()
	return text
}

func (g *gate) serveUpstream(w http.ResponseWriter, r *http.Request) {
	g.calls.Add(1)
	select {
	case <-g.seen:
	default:
	}
	select {
	case g.seen <- r.Clone(r.Context()):
	default: // another one was faster
	}
	if g.answer != nil {
		g.answer(w, r)
		return
	}
	_, _ = io.WriteString(w, "hello")
}

// got is an answer with its body read.
type got struct {
	*http.Response

	body string
}

func (g *got) problem(tb testing.TB) map[string]any {
	tb.Helper()
	require.Equal(tb, "application/problem+json", g.Header.Get("Content-Type"))
	var p map[string]any
	require.NoError(tb, json.Unmarshal([]byte(g.body), &p))
	return p
}

func (g *gate) do(tb testing.TB, method, path string, body io.Reader, pairs ...string) *got {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), method, g.server.URL+path, body)
	require.NoError(tb, err)
	for i := 0; i < len(pairs); i += 2 {
		req.Header.Add(pairs[i], pairs[i+1])
	}
	res, err := g.client.Do(req)
	require.NoError(tb, err)
	raw, err := io.ReadAll(res.Body)
	require.NoError(tb, err)
	require.NoError(tb, res.Body.Close())
	return &got{Response: res, body: string(raw)}
}

// raw sends bytes as they are and returns the connection to read from.
func (g *gate) raw(tb testing.TB, text string) net.Conn {
	tb.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(tb.Context(), "tcp", g.server.Listener.Addr().String())
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = conn.Close() })
	require.NoError(tb, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(conn, text)
	require.NoError(tb, err)
	return conn
}
