package app_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	extv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // round_robin then leaves out replicas that say NOT_SERVING, as Envoy does
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/pegel-dev/pegel/internal/testenv"
)

const (
	rollingRounds = 20
	rollingRate   = 260 // requests a second, over HTTP and over gRPC each
	balancerProbe = 100 * time.Millisecond
)

// Guarantee (B070): 500 requests a second over kept HTTP connections and gRPC while one of two replicas is told to stop and is replaced,
// 20 times: not one request fails.
func TestSoakRollingRestart(t *testing.T) {
	testenv.Soak(t)
	env := []string{
		"PEGEL_DATABASE_URL=" + testenv.Postgres(t), "PEGEL_REDIS_URL=" + testenv.RedisServer(t).URL(), "PEGEL_REDIS_TIMEOUT=2s",
		"PEGEL_DATABASE_DECISION_TIMEOUT=2s", "PEGEL_RLS_LISTEN=127.0.0.1:0", "PEGEL_DRAIN_PAUSE=1s", "PEGEL_LOG_LEVEL=warn",
	}
	replicas := [2]*replica{startReplica(t, env...).ready(), startReplica(t, env...).ready()}
	slug, key := replicas[0].tenant(perMinute(1_000_000_000))
	replicas[1].knows(key)
	load := newRollingLoad(t, key, slug)
	load.balance(replicas)
	load.start()
	began := time.Now()
	for round := range rollingRounds {
		old := replicas[round%2]
		old.stop()
		err := <-old.ended
		old.ended <- err
		require.NoError(t, err, "round %d", round)
		replicas[round%2] = startReplica(t, env...).ready()
		replicas[round%2].knows(key)
		load.balance(replicas)
		load.reach(replicas[round%2])
	}
	load.stop()
	seconds := time.Since(began).Seconds()
	t.Logf("%.0f requests a second in all", float64(load.http.Load()+load.grpc.Load())/seconds)
	t.Logf("%d requests over HTTP and %d over gRPC while %d replicas went; failed: %v", load.http.Load(), load.grpc.Load(), rollingRounds, load.failures)
	require.Empty(t, load.failures)
	require.Greater(t, load.http.Load(), int64(1000))
	require.Greater(t, load.grpc.Load(), int64(1000))
}

// rollingLoad asks through two balancers, one for HTTP and gRPC's own.
type rollingLoad struct {
	t          *testing.T
	slug, key  string
	http, grpc atomic.Int64 // requests that were answered

	client  *http.Client
	targets atomic.Pointer[[]*target]
	turn    atomic.Uint64

	resolver *manual.Resolver
	conn     *grpc.ClientConn
	rls      ratelimitv3.RateLimitServiceClient

	end     context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	failures map[string]int
}

// target is a replica behind the HTTP balancer.
type target struct {
	url    string
	up     atomic.Bool
	served atomic.Int64
}

func newRollingLoad(t *testing.T, key, slug string) *rollingLoad {
	t.Helper()
	l := &rollingLoad{
		t: t, key: key, slug: slug, failures: map[string]int{}, resolver: manual.NewBuilderWithScheme("rolling"),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: 20 * time.Second},
	}
	l.targets.Store(&[]*target{})
	l.resolver.InitialState(resolver.State{})
	var err error
	l.conn, err = grpc.NewClient("rolling:///pegel", grpc.WithResolvers(l.resolver), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}],"healthCheckConfig":{"serviceName":""}}`))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.conn.Close()) })
	l.conn.Connect()
	l.rls = ratelimitv3.NewRateLimitServiceClient(l.conn)
	return l
}

// balance says which replicas there are.
func (l *rollingLoad) balance(replicas [2]*replica) {
	known := map[string]*target{}
	for _, have := range *l.targets.Load() {
		known[have.url] = have
	}
	var all []*target
	var state resolver.State
	for _, r := range replicas {
		of := known[r.public]
		if of == nil {
			of = &target{url: r.public}
		}
		all = append(all, of)
		state.Addresses = append(state.Addresses, resolver.Address{Addr: r.app.Addr("rls")})
	}
	l.targets.Store(&all)
	l.resolver.UpdateState(state)
	l.probe()
}

// probe asks every replica whether it takes traffic.
func (l *rollingLoad) probe() {
	for _, of := range *l.targets.Load() {
		a, err := call(context.Background(), http.MethodGet, of.url+"/readyz", "", nil)
		of.up.Store(err == nil && a.status == http.StatusOK)
	}
}

// reach waits until a new replica has its share of the requests.
func (l *rollingLoad) reach(r *replica) {
	for _, of := range *l.targets.Load() {
		if of.url == r.public {
			require.Eventually(l.t, func() bool { return of.served.Load() > 50 }, 30*time.Second, 10*time.Millisecond)
		}
	}
}

func (l *rollingLoad) start() {
	ctx, end := context.WithCancel(context.Background())
	l.end = end
	l.running.Go(func() {
		for rest(ctx, balancerProbe) {
			l.probe() //nolint:contextcheck // a probe that the end of the load cuts off would take a target for down
		}
	})
	for _, ask := range []func() error{l.askHTTP, l.askGRPC} {
		l.running.Go(func() { l.send(ctx, ask) })
	}
}

func (l *rollingLoad) stop() {
	l.end()
	l.running.Wait()
	l.client.CloseIdleConnections()
}

// send sends at the rate, with at most 200 requests under way, until ctx ends; those under way are waited for. What a busy machine
// held up is sent as soon as it can be.
func (l *rollingLoad) send(ctx context.Context, ask func() error) {
	places := make(chan struct{}, 200)
	var under sync.WaitGroup
	defer under.Wait()
	for due := time.Now(); ; due = due.Add(time.Second / rollingRate) {
		if wait := time.Until(due); wait > 0 && !rest(ctx, wait) || ctx.Err() != nil {
			return
		}
		places <- struct{}{}
		under.Go(func() {
			defer func() { <-places }()
			if err := ask(); err != nil {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.failures[err.Error()]++
			}
		})
	}
}

// askHTTP sends to the replicas in turn. What could not be connected was not sent: it goes to the next one, as with any balancer.
func (l *rollingLoad) askHTTP() error {
	var err error
	for range 3 {
		of := l.next()
		if of == nil {
			return errors.New("no replica takes traffic")
		}
		var req *http.Request
		req, err = http.NewRequestWithContext(context.Background(), http.MethodPost, of.url+"/v1/check", jsonBody(l.t, map[string]any{}))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+l.key)
		req.Header.Set("Content-Type", "application/json")
		var res *http.Response
		res, err = l.client.Do(req)
		var dial *net.OpError
		if errors.As(err, &dial) && dial.Op == "dial" {
			of.up.Store(false)
			continue
		}
		if err != nil {
			return fmt.Errorf("HTTP: %w", err)
		}
		_, err = io.Copy(io.Discard, res.Body) // or the connection is not kept
		_ = res.Body.Close()
		if err != nil {
			return fmt.Errorf("HTTP: read: %w", err)
		}
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("HTTP: status %d", res.StatusCode)
		}
		of.served.Add(1)
		l.http.Add(1)
		return nil
	}
	return fmt.Errorf("HTTP: %w", err)
}

func (l *rollingLoad) next() *target {
	all := *l.targets.Load()
	first := l.turn.Add(1)
	for i := range all {
		if of := all[(first+uint64(i))%uint64(len(all))]; of.up.Load() {
			return of
		}
	}
	return nil
}

func (l *rollingLoad) askGRPC() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	r, err := l.rls.ShouldRateLimit(ctx, &ratelimitv3.RateLimitRequest{Domain: "pegel", Descriptors: []*extv3.RateLimitDescriptor{
		{Entries: []*extv3.RateLimitDescriptor_Entry{{Key: "tenant", Value: l.slug}}},
	}})
	if err != nil {
		return fmt.Errorf("gRPC: %w", err)
	}
	if r.GetOverallCode() != ratelimitv3.RateLimitResponse_OK {
		return fmt.Errorf("gRPC: %s", r.GetRawBody())
	}
	l.grpc.Add(1)
	return nil
}

// rest waits for d and reports whether ctx is still good.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
