package testenv

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// TraceReceiver takes traces as an OTLP collector does.
type TraceReceiver struct {
	URL string

	mu    sync.Mutex
	taken ReceivedTraces
}

// ReceivedTraces is what a TraceReceiver has taken.
type ReceivedTraces struct {
	Spans    []*traces.Span
	Resource map[string]string // of the last export
	Raw      string            // all bytes
	Auth     []string          // the Authorization lines of the last export
}

// Traces starts a receiver that is asked over HTTP, until the test ends.
func Traces(tb testing.TB) *TraceReceiver {
	tb.Helper()
	r := &TraceReceiver{}
	server := httptest.NewServer(r)
	tb.Cleanup(server.Close)
	r.URL = server.URL
	return r
}

// Taken is what has arrived.
func (r *TraceReceiver) Taken() ReceivedTraces {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.taken
	taken.Spans = taken.Spans[:len(taken.Spans):len(taken.Spans)]
	return taken
}

// Take takes one export, of these bytes and with these Authorization lines.
func (r *TraceReceiver) Take(export *collector.ExportTraceServiceRequest, raw []byte, auth []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken.Raw += string(raw)
	r.taken.Auth = auth
	for _, of := range export.GetResourceSpans() {
		r.taken.Resource = TraceAttributes(of.GetResource().GetAttributes())
		for _, scope := range of.GetScopeSpans() {
			r.taken.Spans = append(r.taken.Spans, scope.GetSpans()...)
		}
	}
}

// ServeHTTP is the collector's service over HTTP.
func (r *TraceReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	raw, err := io.ReadAll(req.Body)
	if err == nil && req.Header.Get("Content-Encoding") == "gzip" {
		raw, err = gunzip(raw)
	}
	var export collector.ExportTraceServiceRequest
	if err != nil || req.URL.Path != "/v1/traces" || proto.Unmarshal(raw, &export) != nil {
		http.Error(w, "no traces", http.StatusBadRequest)
		return
	}
	r.Take(&export, raw, req.Header["Authorization"])
}

func gunzip(raw []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

// TraceAttributes are attributes by their keys; the value of one that is no text is empty.
func TraceAttributes(attributes []*common.KeyValue) map[string]string {
	all := map[string]string{}
	for _, a := range attributes {
		all[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return all
}
