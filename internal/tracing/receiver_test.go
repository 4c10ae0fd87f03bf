package tracing_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/pegel-dev/pegel/internal/tracing"
)

// receiver takes traces as a collector does, by either protocol.
type receiver struct {
	collector.UnimplementedTraceServiceServer

	url string

	mu       sync.Mutex
	spans    []*traces.Span
	resource map[string]string
	raw      bytes.Buffer
	auth     []string
}

func (r *receiver) take(export *collector.ExportTraceServiceRequest, auth []string) {
	raw, _ := proto.Marshal(export)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.raw.Write(raw)
	r.auth = auth
	for _, of := range export.GetResourceSpans() {
		r.resource = plain(of.GetResource().GetAttributes())
		for _, scope := range of.GetScopeSpans() {
			r.spans = append(r.spans, scope.GetSpans()...)
		}
	}
}

// Export is the collector's service over gRPC.
func (r *receiver) Export(ctx context.Context, export *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.take(export, metadata.ValueFromIncomingContext(ctx, "authorization"))
	return &collector.ExportTraceServiceResponse{}, nil
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body := io.Reader(req.Body)
	if req.Header.Get("Content-Encoding") == "gzip" {
		body, _ = gzip.NewReader(req.Body)
	}
	raw, err := io.ReadAll(body)
	var export collector.ExportTraceServiceRequest
	if err != nil || req.URL.Path != "/v1/traces" || proto.Unmarshal(raw, &export) != nil {
		http.Error(w, "no traces", http.StatusBadRequest)
		return
	}
	r.take(&export, req.Header["Authorization"])
}

// newReceiver listens for one protocol.
func newReceiver(t *testing.T, protocol string) *receiver {
	t.Helper()
	r := &receiver{}
	if protocol == tracing.HTTP {
		server := httptest.NewServer(r)
		t.Cleanup(server.Close)
		r.url = server.URL
		return r
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-served)
	})
	r.url = "http://" + l.Addr().String()
	return r
}

// hung accepts connections and never says a word.
func hung(t *testing.T) (url string, accepted func() int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var mu sync.Mutex
	var held []net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			held = append(held, c)
			mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		for _, c := range held {
			_ = c.Close()
		}
	})
	return "http://" + l.Addr().String(), func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(held)
	}
}

func plain(attributes []*common.KeyValue) map[string]string {
	all := map[string]string{}
	for _, a := range attributes {
		all[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return all
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
