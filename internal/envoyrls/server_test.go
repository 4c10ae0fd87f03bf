package envoyrls_test

import (
	"context"
	"sync"
	"testing"
	"time"

	extv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// slowStore keeps every call until it is let go.
type slowStore struct {
	ratelimit.Store

	called chan struct{}
	once   sync.Once
	let    chan struct{}
}

func newSlowStore() *slowStore {
	return &slowStore{
		Store:  ratelimit.NewMemory(ratelimit.MonotonicMicros(time.Now), 0),
		called: make(chan struct{}), let: make(chan struct{}),
	}
}

func (s *slowStore) Decide(ctx context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
	s.once.Do(func() { close(s.called) })
	select {
	case <-s.let:
		return s.Store.Decide(ctx, charges, out)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Guarantee: a replica that is not loaded says so, and does not answer as if everybody were unknown.
func TestNotLoadedYet(t *testing.T) {
	t.Parallel()
	d := newDoor(t, doorOptions{empty: true, limits: []tenants.Rule{perMinute(10)}})
	hit := descriptor("tenant", "school-17")
	health := healthv1.NewHealthClient(d.conn)
	for _, service := range []string{"", ratelimitv3.RateLimitService_ServiceDesc.ServiceName} {
		r, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: service})
		require.NoError(t, err)
		require.Equal(t, healthv1.HealthCheckResponse_NOT_SERVING, r.GetStatus())
	}
	_, err := d.client.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: "pegel"})
	require.Equal(t, codes.Unavailable, status.Code(err))
	d.apply()
	d.server.Ready()
	r, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, healthv1.HealthCheckResponse_SERVING, r.GetStatus())
	require.Equal(t, ok, d.must(hit).GetOverallCode())
}

// Guarantee: a drain is seen by whoever watches, lets calls under way finish, and is not held up by streams that never end.
func TestDrain(t *testing.T) {
	t.Parallel()
	store := newSlowStore()
	d := newDoor(t, doorOptions{limits: []tenants.Rule{perMinute(10)}, store: store})
	d.server.Ready()
	watch, err := healthv1.NewHealthClient(d.conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
	require.NoError(t, err)
	next := func() healthv1.HealthCheckResponse_ServingStatus {
		r, err := watch.Recv()
		require.NoError(t, err)
		return r.GetStatus()
	}
	require.Equal(t, healthv1.HealthCheckResponse_SERVING, next())
	reflected, err := reflectionv1.NewServerReflectionClient(d.conn).ServerReflectionInfo(t.Context())
	require.NoError(t, err)
	require.NoError(t, reflected.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}))
	listed, err := reflected.Recv()
	require.NoError(t, err)
	require.Contains(t, listed.String(), "envoy.service.ratelimit.v3.RateLimitService")

	answered := make(chan error, 1)
	go func() {
		_, err := d.ask([]*extv3.RateLimitDescriptor{descriptor("tenant", "school-17")})
		answered <- err
	}()
	<-store.called
	d.server.Drain()
	require.Equal(t, healthv1.HealthCheckResponse_NOT_SERVING, next())
	d.server.Ready()
	require.NotEqual(t, healthv1.HealthCheckResponse_SERVING, healthOf(t, d), "draining is for good")

	shut := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		shut <- d.server.Shutdown(ctx)
	}()
	_, err = watch.Recv()
	require.Error(t, err, "the watch ends")
	select {
	case err := <-shut:
		require.Fail(t, "the drain must wait for the call under way", "%v", err)
	default:
	}
	close(store.let)
	require.NoError(t, <-answered, "a call under way is answered")
	require.NoError(t, <-shut)
}

// Guarantee: the drain is bounded; what does not end by then is cut.
func TestDrainIsBounded(t *testing.T) {
	t.Parallel()
	store := newSlowStore()
	d := newDoor(t, doorOptions{limits: []tenants.Rule{perMinute(10)}, store: store})
	answered := make(chan error, 1)
	go func() {
		_, err := d.ask([]*extv3.RateLimitDescriptor{descriptor("tenant", "school-17")})
		answered <- err
	}()
	<-store.called
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, d.server.Shutdown(ctx), context.DeadlineExceeded)
	require.Equal(t, codes.Unavailable, status.Code(<-answered))
}

// Guarantee: a caller's deadline is honoured, whatever the store does, and a caller that leaves is no fault of ours.
func TestDeadline(t *testing.T) {
	t.Parallel()
	store := newSlowStore()
	d := newDoor(t, doorOptions{limits: []tenants.Rule{perMinute(10)}, store: store})
	d.must() // connect
	seen := func() float64 {
		return d.counter("pegel_rls_calls_total", "DeadlineExceeded") + d.counter("pegel_rls_calls_total", "Canceled")
	}
	// On a busy machine 20 ms may be over before a call has left the client, so it may take several.
	for begun := time.Now(); seen() == 0; time.Sleep(5 * time.Millisecond) {
		require.Less(t, time.Since(begun), 20*time.Second, "the server gives the call up too")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := d.client.ShouldRateLimit(ctx, &ratelimitv3.RateLimitRequest{Domain: "pegel", Descriptors: []*extv3.RateLimitDescriptor{descriptor("tenant", "school-17")}})
		cancel()
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
	}
	require.NotContains(t, d.logs.String(), "could not be decided")
}

func healthOf(t *testing.T, d *door) healthv1.HealthCheckResponse_ServingStatus {
	t.Helper()
	r, err := healthv1.NewHealthClient(d.conn).Check(t.Context(), &healthv1.HealthCheckRequest{})
	require.NoError(t, err)
	return r.GetStatus()
}
