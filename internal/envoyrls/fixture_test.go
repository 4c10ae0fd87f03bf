package envoyrls_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	extv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/envoyrls"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// door is the front door on a loopback port, with a client, over the memory store.
type door struct {
	tb      testing.TB
	server  *envoyrls.Server
	conn    *grpc.ClientConn
	client  ratelimitv3.RateLimitServiceClient
	metrics *prometheus.Registry
	logs    *lines
	ended   chan error

	directory *tenants.Directory
	changes   tenants.Changes
}

type doorOptions struct {
	limits []tenants.Rule // of the plan that school-17 and suspended-1 are on
	policy []tenants.Rule
	store  ratelimit.Store
	remote bool // the listener is for other machines too
	empty  bool // nothing is loaded yet
}

func newDoor(tb testing.TB, o doorOptions) *door {
	tb.Helper()
	d := &door{tb: tb, metrics: prometheus.NewRegistry(), logs: &lines{}, ended: make(chan error, 1), directory: tenants.NewDirectory(0)}
	if o.store == nil {
		o.store = ratelimit.NewMemory(ratelimit.MonotonicMicros(time.Now), 0)
	}
	d.changes = tenants.Changes{
		Plans: []tenants.Plan{{ID: 1, Name: "light", Limits: o.limits}, {ID: 2, Name: "unlimited"}},
		Tenants: []tenants.Tenant{
			{ID: 17, Slug: "school-17", Plan: "light", Status: tenants.Active},
			{ID: 18, Slug: "suspended-1", Plan: "light", Status: tenants.Suspended},
			{ID: 19, Slug: "free-1", Plan: "unlimited", Status: tenants.Active},
		},
		AddressPolicy: &tenants.AddressPolicy{Limits: o.policy},
	}
	if !o.empty {
		d.apply()
	}
	engine := decision.New(decision.Config{Store: o.store, Directory: d.directory, Now: time.Now})
	var err error
	d.server, err = envoyrls.New(envoyrls.Config{
		Engine: engine, Directory: d.directory, Local: !o.remote, Metrics: d.metrics, Log: slog.New(slog.NewTextHandler(d.logs, nil)),
	})
	require.NoError(tb, err)
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	go func() { d.ended <- d.server.Serve(socket) }()
	d.conn, err = grpc.NewClient(socket.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(tb, err)
	d.client = ratelimitv3.NewRateLimitServiceClient(d.conn)
	tb.Cleanup(func() {
		require.NoError(tb, d.conn.Close())
		require.NoError(tb, d.server.Close())
		require.NoError(tb, <-d.ended, "Serve ends without an error")
	})
	return d
}

func (d *door) apply() {
	d.changes.Version++
	d.changes.Full = true
	d.directory.Apply(d.changes, time.Now())
}

// token creates a service token.
func (d *door) token(may ...tenants.Permission) string {
	d.tb.Helper()
	credential, text, err := tenants.NewCredential(tenants.KindServiceToken, rand.Reader)
	require.NoError(d.tb, err)
	d.changes.ServiceTokens = append(d.changes.ServiceTokens, tenants.ServiceToken{ID: credential.ID, Name: "edge", Hash: credential.Hash, May: may})
	d.apply()
	return text
}

// apiKey creates an API key of school-17.
func (d *door) apiKey() string {
	d.tb.Helper()
	credential, text, err := tenants.NewCredential(tenants.KindAPIKey, rand.Reader)
	require.NoError(d.tb, err)
	d.changes.APIKeys = append(d.changes.APIKeys, tenants.APIKey{ID: credential.ID, TenantID: 17, Hash: credential.Hash})
	d.apply()
	return text
}

// ask asks about descriptors, as nobody or with metadata.
func (d *door) ask(descriptors []*extv3.RateLimitDescriptor, pairs ...string) (*ratelimitv3.RateLimitResponse, error) {
	return d.send(&ratelimitv3.RateLimitRequest{Domain: envoyrls.DefaultDomain, Descriptors: descriptors}, pairs...)
}

func (d *door) send(req *ratelimitv3.RateLimitRequest, pairs ...string) (*ratelimitv3.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(d.tb.Context(), 30*time.Second)
	defer cancel()
	return d.client.ShouldRateLimit(metadata.AppendToOutgoingContext(ctx, pairs...), req)
}

// must is ask where the call itself has to succeed.
func (d *door) must(descriptors ...*extv3.RateLimitDescriptor) *ratelimitv3.RateLimitResponse {
	d.tb.Helper()
	r, err := d.ask(descriptors)
	require.NoError(d.tb, err)
	require.Len(d.tb, r.GetStatuses(), len(descriptors))
	return r
}

// ignored is the counter of what no limit holds for.
func (d *door) ignored(reason string) float64 { return d.counter("pegel_rls_ignored_total", reason) }

// counter is the value of a counter whose one label has the value.
func (d *door) counter(name, label string) float64 {
	d.tb.Helper()
	families, err := d.metrics.Gather()
	require.NoError(d.tb, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name && m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// descriptor makes one of keys and values.
func descriptor(pairs ...string) *extv3.RateLimitDescriptor {
	d := &extv3.RateLimitDescriptor{}
	for i := 0; i < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &extv3.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return d
}

// codes are the statuses' codes in order.
func codesOf(r *ratelimitv3.RateLimitResponse) []ratelimitv3.RateLimitResponse_Code {
	var all []ratelimitv3.RateLimitResponse_Code
	for _, s := range r.GetStatuses() {
		all = append(all, s.GetCode())
	}
	return all
}

// headersOf are the response headers by name; one that comes twice fails.
func headersOf(tb testing.TB, r *ratelimitv3.RateLimitResponse) map[string]string {
	tb.Helper()
	found := map[string]string{}
	for _, h := range r.GetResponseHeadersToAdd() {
		require.NotContains(tb, found, h.GetKey())
		require.Equal(tb, strings.ToLower(h.GetKey()), h.GetKey())
		found[h.GetKey()] = h.GetValue()
	}
	return found
}

func bodyOf(tb testing.TB, r *ratelimitv3.RateLimitResponse) map[string]any {
	tb.Helper()
	var body map[string]any
	require.NoError(tb, json.Unmarshal(r.GetRawBody(), &body), "%s", r.GetRawBody())
	return body
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

// lines collects a log.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
