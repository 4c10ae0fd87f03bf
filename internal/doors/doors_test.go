package doors_test

import (
	"encoding/json"
	"net/http"
	"testing"

	extv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// ask is a client's request, whatever door it takes.
type ask struct {
	method, path, address string
	// tenant is who key belongs to; key is its API key.
	tenant, key string
	// service is a service token, right or wrong; named is the tenant that it names.
	service, named string
}

// verdict is what a door says, as far as it must be the same behind every one.
type verdict struct {
	// Says is "allow", "slow" or the problem.
	Says                       string
	Limit, Remaining, Slowdown string
	Retry                      bool // it has a Retry-After
	Source                     string
}

// door is one way in. A new one is one entry in fleet.doors.
type door struct {
	ask func(t *testing.T, a ask) verdict
	// paths: it takes the request's method and path as facts.
	paths bool
	// credentials: a caller without a valid one is refused, so that nobody comes anonymously.
	credentials bool
	// named: it is told who asks, by somebody it believes; there are no credentials of the client's to look at.
	named bool
	// unknown is what it says of a tenant that does not exist; empty: not_found.
	unknown string
}

// fleet is one replica with every door open.
type fleet struct {
	*replica

	proxy, nginx, caddy string
	envoy               ratelimitv3.RateLimitServiceClient
	token               string // of a service that may do everything
}

func startFleet(t *testing.T, env ...string) *fleet {
	t.Helper()
	app := startApplication(t)
	f := &fleet{replica: startReplica(t, append([]string{
		"PEGEL_PROXY_LISTEN=127.0.0.1:0", "PEGEL_PROXY_UPSTREAM=http://" + app.addr, "PEGEL_RLS_LISTEN=127.0.0.1:0",
	}, env...)...)}
	f.proxy = f.app.Addr("proxy")
	f.nginx, f.caddy = startNginx(t, f.public, app.addr).addr, startCaddy(t, f.public, app.addr).addr
	conn, err := grpc.NewClient(f.app.Addr("rls"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	f.envoy = ratelimitv3.NewRateLimitServiceClient(conn)
	f.token = f.service()
	return f
}

// doors is every way in.
func (f *fleet) doors() map[string]door {
	return map[string]door{
		"check": {ask: f.askCheck, paths: true, credentials: true},
		"ping": {ask: func(t *testing.T, a ask) verdict {
			t.Helper()
			return through(t, f.public, ask{method: "GET", path: "/v1/ping"}, a.headers())
		}},
		"proxy": {ask: f.askServer(f.proxy), paths: true},
		"forward": {ask: func(t *testing.T, a ask) verdict {
			t.Helper()
			return through(t, f.public, ask{method: "GET", path: "/authz/forward"}, append(a.headers(),
				"X-Forwarded-Method", a.method, "X-Forwarded-Proto", "https", "X-Forwarded-Host", "api.example.org", "X-Forwarded-Uri", a.path))
		}, paths: true, unknown: "forbidden"},
		"auth_request": {ask: func(t *testing.T, a ask) verdict {
			t.Helper()
			return through(t, f.public, ask{method: "GET", path: "/authz/nginx"}, append(a.headers(), "X-Original-Method", a.method, "X-Original-URI", a.path))
		}, paths: true, unknown: "forbidden"},
		"nginx": {ask: f.askServer(f.nginx), paths: true, unknown: "forbidden"},
		"caddy": {ask: f.askServer(f.caddy), paths: true, unknown: "forbidden"},
		"envoy": {ask: f.askEnvoy, paths: true, named: true},
	}
}

// headers are what the client sends, and the address that the proxy in front of the door wrote.
func (a ask) headers() []string {
	h := []string{"X-Forwarded-For", a.address}
	for _, pair := range [][2]string{{"X-API-Key", a.key}, {"X-Pegel-Service-Token", a.service}, {"X-Pegel-Tenant", a.named}} {
		if pair[1] != "" {
			h = append(h, pair[0], pair[1])
		}
	}
	return h
}

func (f *fleet) askServer(addr string) func(*testing.T, ask) verdict {
	return func(t *testing.T, a ask) verdict { t.Helper(); return through(t, addr, a, a.headers()) }
}

// through sends a request and reads the verdict off the answer.
func through(t *testing.T, addr string, a ask, header []string) verdict {
	t.Helper()
	return read(t, send(t, addr, question{method: a.method, target: a.path, header: header}))
}

func read(t *testing.T, a answer) verdict {
	t.Helper()
	v := verdict{
		Limit: a.header.Get("X-RateLimit-Limit"), Remaining: a.header.Get("X-RateLimit-Remaining"), Slowdown: a.header.Get("X-RateLimit-Slowdown"),
		Retry: a.header.Get("Retry-After") != "", Source: a.header.Get("X-Pegel-Source"),
	}
	switch {
	case a.status == http.StatusOK && v.Slowdown != "":
		v.Says = "slow"
	case a.status == http.StatusOK:
		v.Says = "allow"
	default:
		v.Says = problemIn(t, a.body)
	}
	return v
}

func problemIn(t *testing.T, body []byte) string {
	t.Helper()
	var said struct {
		Error string `json:"error"`
	}
	require.NoError(t, json.Unmarshal(body, &said), "%s", body)
	return said.Error
}

// askCheck is a service that asks about its client, or the client that asks about itself.
func (f *fleet) askCheck(t *testing.T, a ask) verdict {
	t.Helper()
	token, body := f.token, map[string]any{"method": a.method, "path": a.path}
	switch {
	case a.key != "":
		token = a.key
	case a.named != "":
		token, body["tenant"] = a.service, a.named
	case a.service != "":
		token, body["address"] = a.service, a.address
	default:
		body["address"] = a.address
	}
	raw, err := json.Marshal(body)
	require.NoError(t, err)
	return read(t, send(t, f.public, question{method: "POST", target: "/v1/check", header: []string{"Authorization", "Bearer " + token}, body: raw}))
}

// askEnvoy is Envoy on this machine, which names the tenant or the address.
func (f *fleet) askEnvoy(t *testing.T, a ask) verdict {
	t.Helper()
	entries := []*extv3.RateLimitDescriptor_Entry{{Key: "method", Value: a.method}, {Key: "path", Value: a.path}}
	switch {
	case a.tenant+a.named != "":
		entries = append(entries, &extv3.RateLimitDescriptor_Entry{Key: "tenant", Value: a.tenant + a.named})
	default:
		entries = append(entries, &extv3.RateLimitDescriptor_Entry{Key: "remote_address", Value: a.address})
	}
	r, err := f.envoy.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: "pegel", Descriptors: []*extv3.RateLimitDescriptor{{Entries: entries}}})
	require.NoError(t, err)
	got := answer{header: http.Header{}, status: http.StatusTooManyRequests, body: r.GetRawBody()}
	if r.GetOverallCode() == ratelimitv3.RateLimitResponse_OK {
		got.status = http.StatusOK
	}
	for _, h := range r.GetResponseHeadersToAdd() {
		got.header.Add(h.GetKey(), h.GetValue())
	}
	return read(t, got)
}
