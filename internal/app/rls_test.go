package app_test

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	extv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pegel-dev/pegel/internal/app"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// envoy is a client of the rate-limit service, as Envoy is one.
type envoy struct {
	t      *testing.T
	conn   *grpc.ClientConn
	client ratelimitv3.RateLimitServiceClient
}

func dialEnvoy(t *testing.T, target string, transport credentials.TransportCredentials) *envoy {
	t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(transport))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return &envoy{t: t, conn: conn, client: ratelimitv3.NewRateLimitServiceClient(conn)}
}

// ask asks about one descriptor of keys and values, with a token or without.
func (e *envoy) ask(ctx context.Context, token string, hits uint64, pairs ...string) (*ratelimitv3.RateLimitResponse, error) {
	d := &extv3.RateLimitDescriptor{HitsAddend: wrapperspb.UInt64(hits)}
	for i := 0; i < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &extv3.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	return e.client.ShouldRateLimit(ctx, &ratelimitv3.RateLimitRequest{Domain: "pegel", Descriptors: []*extv3.RateLimitDescriptor{d}})
}

func (e *envoy) header(r *ratelimitv3.RateLimitResponse, name string) string {
	for _, h := range r.GetResponseHeadersToAdd() {
		if h.GetKey() == name {
			return h.GetValue()
		}
	}
	return ""
}

// scenario is one row of what every front door must say alike.
type scenario struct {
	limit    map[string]any // of the plan; nil: no limits
	used     int            // units taken before
	cost     int
	tenant   string // instead of a fresh one
	address  string
	token    string // instead of a good one
	decision string // what /v1/check says: allow, slow, deny, or the problem's slug
	envoy    string // OK, OVER_LIMIT or the code of an error
}

func scenarios() map[string]scenario {
	return map[string]scenario{
		"allow":            {limit: perMinute(10), used: 2, cost: 1, decision: "allow", envoy: "OK"},
		"slow":             {limit: perMinute(10, map[string]any{"slowdown": map[string]any{"from": 0.8, "max_delay": "2s"}}), used: 8, cost: 1, decision: "slow", envoy: "OK"},
		"deny":             {limit: perMinute(10), used: 10, cost: 1, decision: "deny", envoy: "OVER_LIMIT"},
		"cost above quota": {limit: perMinute(10), cost: 11, decision: "deny", envoy: "OVER_LIMIT"},
		"quota 0":          {limit: perMinute(0), cost: 1, decision: "deny", envoy: "OVER_LIMIT"},
		"unlimited":        {cost: 1000, decision: "allow", envoy: "OK"},
		"shadow":           {limit: perMinute(1, map[string]any{"mode": "shadow"}), used: 1, cost: 1, decision: "allow", envoy: "OK"},
		"unknown tenant":   {tenant: "nobody-there", cost: 1, decision: "not_found", envoy: "OVER_LIMIT"},
		"forged":           {limit: perMinute(10), cost: 1, token: "pgs_AAAAAAAAAAAA_forged", decision: "unauthorized", envoy: "Unauthenticated"},
		"denied network":   {limit: perMinute(10), cost: 1, address: "198.51.100.7", decision: "network_denied", envoy: "OVER_LIMIT"},
		"named address":    {limit: perMinute(10), cost: 1, address: "203.0.113.9", decision: "allow", envoy: "OK"}, // a token exempts nobody else's
	}
}

// Guarantee: the same verdict and the same numbers through /v1/check and through Envoy's door, with Redis, without, and with
// nobody to decide.
func TestEnvoySameVerdict(t *testing.T) {
	t.Parallel()
	redis, pg := testenv.RedisServer(t), testenv.PostgresServer(t)
	r := startReplica(t, "PEGEL_DATABASE_URL="+pg.URL(), "PEGEL_REDIS_URL="+redis.URL(), "PEGEL_RLS_LISTEN=0.0.0.0:0",
		"PEGEL_REDIS_TIMEOUT=2s", "PEGEL_DATABASE_DECISION_TIMEOUT=5s").ready()
	e := dialEnvoy(t, r.app.Addr("rls"), insecure.NewCredentials())
	token := r.service()
	r.administer(http.StatusCreated, http.MethodPost, "/admin/networks", map[string]any{"cidr": "198.51.100.0/24", "action": "deny", "reason": "test"})
	state, err := healthv1.NewHealthClient(e.conn).Check(t.Context(), &healthv1.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, healthv1.HealthCheckResponse_SERVING, state.GetStatus())

	run := func(store string) {
		for name, s := range scenarios() {
			var tenants [2]string // one for each door
			for i := range tenants {
				if tenants[i] = s.tenant; s.tenant != "" {
					continue
				}
				limits := []map[string]any{}
				if s.limit != nil {
					limits = append(limits, s.limit)
				}
				tenants[i], _ = r.tenant(limits...)
				if s.used > 0 {
					a := r.call(http.MethodPost, r.public+"/v1/check", token, map[string]any{"tenant": tenants[i], "cost": s.used})
					require.Equal(t, store, a.json(t)["source"], name)
				}
			}
			as := token
			if s.token != "" {
				as = s.token
			}
			s.compare(t, r, e, name+", "+store, as, tenants)
		}
	}
	run("redis")
	require.NoError(t, redis.Stop())
	run("postgres")

	open, _ := r.tenant(perMinute(10))
	closed, _ := r.tenant(perMinute(10, map[string]any{"on_store_failure": "closed"}))
	require.NoError(t, pg.Stop())
	answer, err := e.ask(t.Context(), token, 1, "tenant", open)
	require.NoError(t, err)
	require.Equal(t, "OK", answer.GetOverallCode().String())
	require.Equal(t, "none", e.header(answer, "x-pegel-source"))
	answer, err = e.ask(t.Context(), token, 1, "tenant", closed)
	require.NoError(t, err)
	require.Equal(t, "OVER_LIMIT", answer.GetOverallCode().String(), "closed means refused, also where Envoy lets failed calls through")
	require.Contains(t, string(answer.GetRawBody()), "store_unavailable")
	require.Equal(t, "2", e.header(answer, "retry-after"))
	require.NoError(t, pg.Start())
}

// compare asks both doors and holds their answers against each other.
func (s *scenario) compare(t *testing.T, r *replica, e *envoy, name, token string, tenants [2]string) {
	t.Helper()
	body := map[string]any{"tenant": tenants[0], "cost": s.cost}
	pairs := []string{"tenant", tenants[1]}
	if s.address != "" {
		body["address"] = s.address
		pairs = append(pairs, "remote_address", s.address)
	}
	checked := r.call(http.MethodPost, r.public+"/v1/check", token, body).json(t)
	said := checked["decision"]
	if said == nil {
		said = checked["error"]
	}
	require.Equal(t, s.decision, said, "%s: %v", name, checked)

	got, err := e.ask(t.Context(), token, uint64(s.cost), pairs...)
	if err != nil {
		require.Equal(t, s.envoy, status.Code(err).String(), "%s: %v", name, err)
		return
	}
	require.Equal(t, s.envoy, got.GetOverallCode().String(), name)
	element := got.GetStatuses()[0]
	if checked["limit_name"] == nil {
		require.Nil(t, element.GetCurrentLimit(), name)
		return
	}
	require.Equal(t, checked["limit_name"], element.GetCurrentLimit().GetName(), name)
	require.EqualValues(t, checked["limit"], element.GetCurrentLimit().GetRequestsPerUnit(), name)
	require.EqualValues(t, checked["remaining"], element.GetLimitRemaining(), name)
	if delay, ok := checked["delay_ms"].(float64); ok && delay > 0 {
		require.Equal(t, "1000", e.header(got, "x-ratelimit-slowdown"), name)
		require.InDelta(t, 1000, delay, 0, name)
	}
	if s.decision == "deny" {
		require.Equal(t, checked["retry_after_ms"] == nil, e.header(got, "retry-after") == "", name)
	}
}

// Guarantee: on this machine only, a socket or a loopback address, Envoy needs no token; a socket that a dead process left is
// taken over, a live one is not; with a certificate the door speaks TLS.
func TestEnvoyListeners(t *testing.T) {
	t.Parallel()
	database := "PEGEL_DATABASE_URL=" + testenv.Postgres(t)
	path := filepath.Join(t.TempDir(), "rls.sock")
	leave(t, path)
	r := startReplica(t, database, "PEGEL_RLS_LISTEN=unix:"+path).ready()
	slug, _ := r.tenant(perMinute(10))
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o660), st.Mode().Perm())
	answer, err := dialEnvoy(t, "unix://"+path, insecure.NewCredentials()).ask(t.Context(), "", 1, "tenant", slug)
	require.NoError(t, err)
	require.EqualValues(t, 9, answer.GetStatuses()[0].GetLimitRemaining())
	requireTaken(t, "PEGEL_RLS_LISTEN", "unix:"+path)

	cert, key, pool := certificate(t)
	secure := startReplica(t, database, "PEGEL_RLS_LISTEN=127.0.0.1:0", "PEGEL_TLS_CERT_FILE="+cert, "PEGEL_TLS_KEY_FILE="+key, "PEGEL_RLS_DOMAIN=edge").ready()
	e := dialEnvoy(t, secure.app.Addr("rls"), credentials.NewClientTLSFromCert(pool, ""))
	answer, err = e.ask(t.Context(), "", 1, "tenant", "nobody-there")
	require.NoError(t, err)
	require.Equal(t, "OK", answer.GetOverallCode().String(), "the domain of this replica is another")
	_, err = dialEnvoy(t, secure.app.Addr("rls"), credentials.NewClientTLSFromCert(x509.NewCertPool(), "")).ask(t.Context(), "", 1, "tenant", slug)
	require.Equal(t, codes.Unavailable, status.Code(err), "its certificate is looked at")
	_, err = dialEnvoy(t, secure.app.Addr("rls"), insecure.NewCredentials()).ask(t.Context(), "", 1, "tenant", slug)
	require.Equal(t, codes.Unavailable, status.Code(err), "nothing goes over it in the clear")
}

// Guarantee: Envoy's 20 ms hold also while Redis hangs: calls end in time, and the callers' haste does not keep the breaker from
// opening, so that Postgres decides soon.
func TestEnvoyDeadlineWhileRedisHangs(t *testing.T) {
	t.Parallel()
	redis := testenv.RedisServer(t)
	r := startReplica(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_REDIS_URL="+redis.URL(), "PEGEL_RLS_LISTEN=127.0.0.1:0").ready()
	slug, key := r.tenant(perMinute(100_000))
	r.decidesOn(key, "redis")
	e := dialEnvoy(t, r.app.Addr("rls"), insecure.NewCredentials())
	_, err := e.ask(t.Context(), "", 1, "tenant", slug)
	require.NoError(t, err)

	require.NoError(t, redis.Pause())
	ask := func() (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		answer, err := e.ask(ctx, "", 1, "tenant", slug)
		return e.header(answer, "x-pegel-source"), err
	}
	_, err = ask()
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "the first calls wait for Redis as long as they may")
	require.Eventually(t, func() bool {
		source, err := ask()
		return err == nil && source == "postgres"
	}, 15*time.Second, 10*time.Millisecond, "callers that wait 20 ms only must get answers from Postgres")
	require.NoError(t, redis.Resume())
}

// leave leaves a socket behind, as a killed process does.
func leave(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	_, err = os.Lstat(path)
	require.NoError(t, err)
}

// requireTaken holds a start on an address that somebody serves to one line that names the setting.
func requireTaken(t *testing.T, setting, addr string) {
	t.Helper()
	cfg, err := app.Load(app.Sources{Env: []string{
		"PEGEL_DATABASE_URL=postgres://pegel@127.0.0.1:1/pegel", "PEGEL_LISTEN=127.0.0.1:0", "PEGEL_ADMIN_LISTEN=127.0.0.1:0", setting + "=" + addr,
	}})
	require.NoError(t, err)
	_, err = app.New(t.Context(), cfg, app.Options{Log: slog.New(slog.DiscardHandler), Now: time.Now})
	require.EqualError(t, err, setting+": "+addr+" is already in use by another process; choose another address")
}
