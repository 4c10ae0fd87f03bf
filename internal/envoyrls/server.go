package envoyrls

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// Bounds of every connection.
const (
	// maxMessage is that of the bodies of /v1/check/batch: 1,000 descriptors with the longest identifiers fit.
	maxMessage = 1 << 20
	maxStreams = 1000
	maxHeader  = 64 << 10

	// maxAge makes long-lived connections find replicas that were added since: they are told to reconnect, and calls under
	// way have maxAgeGrace to end. gRPC varies the age by a tenth, so that not all come at once.
	maxAge      = 5 * time.Minute
	maxAgeGrace = 30 * time.Second
	// pingEvery finds peers that are gone without a word.
	pingEvery   = 60 * time.Second
	pingTimeout = 20 * time.Second
	// leastPing is how often a client may ping without being taken for an abuser.
	leastPing = 10 * time.Second
	handshake = 10 * time.Second
)

// DefaultDomain is the domain of deploy/envoy.
const DefaultDomain = "pegel"

// Config is what a Server needs.
type Config struct {
	Engine    *decision.Engine
	Directory *tenants.Directory
	// Domain is the one that limits hold in (PEGEL_RLS_DOMAIN); empty: DefaultDomain. Calls for another are let through.
	Domain string
	// Local: only this machine reaches the listener (loopback or a Unix socket), so a caller needs no token.
	Local bool
	// Metrics registers the counters of this door; nil: nobody does.
	Metrics prometheus.Registerer
	// Tracing makes a span of every call; nil: none.
	Tracing trace.TracerProvider
	Log     *slog.Logger
}

// Server is the front door. It has the form of an http.Server: Serve until Shutdown.
type Server struct {
	grpc   *grpc.Server
	health *health.Server
	log    *slog.Logger
	met    *metrics

	// stopping ends streams that would otherwise last as long as their client likes (Watch of the health service).
	stopping context.Context //nolint:containedctx // the life of the server, which no call of its own carries
	stop     context.CancelFunc
	streams  sync.WaitGroup
}

// New builds a server that says NOT_SERVING until Ready.
func New(cfg Config) (*Server, error) {
	if cfg.Engine == nil || cfg.Directory == nil {
		return nil, errors.New("the Envoy front door needs an engine and a directory")
	}
	if cfg.Domain == "" {
		cfg.Domain = DefaultDomain
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{health: health.NewServer(), log: cfg.Log, met: newMetrics(cfg.Metrics, cfg.Log)}
	s.stopping, s.stop = context.WithCancel(context.Background())
	options := traced(cfg.Tracing)
	s.grpc = grpc.NewServer(append(options,
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeader),
		grpc.ConnectionTimeout(handshake),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: maxAge, MaxConnectionAgeGrace: maxAgeGrace, Time: pingEvery, Timeout: pingTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: leastPing, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
	)...)
	ratelimitv3.RegisterRateLimitServiceServer(s.grpc, &service{
		engine: cfg.Engine, directory: cfg.Directory, domain: cfg.Domain, local: cfg.Local, log: cfg.Log, met: s.met,
	})
	healthv1.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	s.setHealth(healthv1.HealthCheckResponse_NOT_SERVING)
	return s, nil
}

func (s *Server) setHealth(state healthv1.HealthCheckResponse_ServingStatus) {
	for _, name := range []string{"", ratelimitv3.RateLimitService_ServiceDesc.ServiceName} {
		s.health.SetServingStatus(name, state)
	}
}

// Ready makes the health service say SERVING, unless Drain came first.
func (s *Server) Ready() { s.setHealth(healthv1.HealthCheckResponse_SERVING) }

// Drain makes the health service say NOT_SERVING for good. Calls are still answered: balancers need a while to notice.
func (s *Server) Drain() { s.health.Shutdown() }

// Serve answers calls until Shutdown or Close; it returns nil after them.
func (s *Server) Serve(l net.Listener) error {
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve gRPC: %w", err)
	}
	return nil
}

// Shutdown tells every connection to go elsewhere (GOAWAY), accepts no more, and waits for the calls under way until ctx
// ends; then it cuts them and returns ctx's error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	s.stop()
	ended := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(ended)
	}()
	var err error
	select {
	case <-ended:
	case <-ctx.Done():
		err = ctx.Err()
		s.grpc.Stop()
		<-ended
	}
	s.streams.Wait()
	return err
}

// Close cuts everything.
func (s *Server) Close() error {
	s.stop()
	s.grpc.Stop()
	s.streams.Wait()
	return nil
}

// panicked is the error of a call that panicked: one call must not take the others down.
func (s *Server) panicked(ctx context.Context, method string, broken any) error {
	s.log.LogAttrs(ctx, slog.LevelError, "call panicked", slog.String("method", method),
		slog.Any("panic", broken), slog.String("stack", string(debug.Stack())))
	return status.Error(codes.Internal, "something went wrong on our side")
}

// unary counts every call by its answer, and turns a panic into an error.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer any, err error) {
	defer func() {
		if broken := recover(); broken != nil {
			answer, err = nil, s.panicked(ctx, info.FullMethod, broken)
		}
		if info.FullMethod == ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName {
			s.met.called(answer, err)
		}
	}()
	return handler(ctx, req)
}

// stream ends a stream when the server stops, whatever its handler waits for, and turns a panic into an error.
func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ended := make(chan error, 1)
	s.streams.Go(func() {
		defer func() {
			if broken := recover(); broken != nil {
				ended <- s.panicked(stream.Context(), info.FullMethod, broken)
			}
		}()
		ended <- handler(srv, stream)
	})
	select {
	case err := <-ended:
		return err
	case <-s.stopping.Done():
		return status.Error(codes.Unavailable, "the server is stopping")
	}
}
