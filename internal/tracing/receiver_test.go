package tracing_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/pegel-dev/pegel/internal/testenv"
	"github.com/pegel-dev/pegel/internal/tracing"
)

// overGRPC is a receiver that is asked over gRPC.
type overGRPC struct {
	collector.UnimplementedTraceServiceServer

	*testenv.TraceReceiver
}

func (r overGRPC) Export(ctx context.Context, export *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	raw, err := proto.Marshal(export)
	if err != nil {
		return nil, err
	}
	r.Take(export, raw, metadata.ValueFromIncomingContext(ctx, "authorization"))
	return &collector.ExportTraceServiceResponse{}, nil
}

// newReceiver listens for one protocol.
func newReceiver(t *testing.T, protocol string) *testenv.TraceReceiver {
	t.Helper()
	if protocol == tracing.HTTP {
		return testenv.Traces(t)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &testenv.TraceReceiver{URL: "http://" + l.Addr().String()}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, overGRPC{TraceReceiver: r})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-served)
	})
	return r
}

// logged are the lines of a log, and the clock that bounds them.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
	now time.Time
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logged) clock() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

func (l *logged) advance(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = l.now.Add(d)
}

// provider is what a replica exports by, to url. Whoever starts it ends it.
func provider(t *testing.T, protocol, url string) (*sdktrace.TracerProvider, *logged) {
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
	l := &logged{now: time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)}
	p, err := tracing.New(t.Context(), tracing.Config{
		Protocol: protocol, Version: "1.2.3", Replica: "pegel-1", Now: l.clock, Log: slog.New(slog.NewTextHandler(l, nil)),
	})
	require.NoError(t, err)
	return p, l
}
