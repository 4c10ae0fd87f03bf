// Package tracing makes the OpenTelemetry provider of a replica, as the standard OTEL_* environment says, and keeps out of every
// span what must not leave: addresses, paths with names in them, keys, query strings, agents and the text of errors.
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// GRPC and HTTP are the protocols of OTEL_EXPORTER_OTLP_PROTOCOL.
const (
	GRPC = "grpc"
	HTTP = "http/protobuf"
)

// Config is who exports, and how.
type Config struct {
	// Protocol is GRPC or HTTP; empty: HTTP. Everything else is read from OTEL_* by the exporter and the SDK.
	Protocol string
	// Version and Replica describe the service, unless OTEL_RESOURCE_ATTRIBUTES says otherwise.
	Version, Replica string
	// Now is for saying no more often than once a minute that nobody takes the traces.
	Now func() time.Time
	Log *slog.Logger
}

// New makes a provider. It contacts nobody: spans wait, bounded, and are dropped when nobody takes them.
func New(ctx context.Context, cfg Config) (*sdktrace.TracerProvider, error) {
	var client otlptrace.Client
	switch cfg.Protocol {
	case GRPC:
		client = otlptracegrpc.NewClient()
	default:
		client = otlptracehttp.NewClient()
	}
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("prepare the export of traces: %w", err)
	}
	described, err := resource.New(ctx,
		resource.WithAttributes(
			attribute.String("service.name", "pegel"), attribute.String("service.version", cfg.Version),
			attribute.String("service.instance.id", cfg.Replica)),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("describe the service for traces: %w", err)
	}
	otel.SetErrorHandler(complaints(cfg)) // one per process, as is what it complains about
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(clean{exporter}), sdktrace.WithResource(described)), nil
}

// complaints logs what the SDK has to say, at most once a minute.
func complaints(cfg Config) otel.ErrorHandler {
	var last atomic.Int64
	return otel.ErrorHandlerFunc(func(err error) {
		now := cfg.Now().Unix()
		if before := last.Load(); now-before >= 60 && last.CompareAndSwap(before, now) {
			cfg.Log.Warn("traces are not exported", slog.Any("error", err))
		}
	})
}

// kept are the attributes that say what happened and not to whom.
var kept = map[attribute.Key]bool{
	"http.request.method": true, "http.response.status_code": true, "http.route": true, "url.scheme": true,
	"network.protocol.name": true, "network.protocol.version": true,
	"rpc.system": true, "rpc.system.name": true, "rpc.service": true, "rpc.method": true,
	"rpc.grpc.status_code": true, "rpc.response.status_code": true,
	"db.system": true, "db.system.name": true, "db.operation": true, "db.operation.name": true, "db.operation.batch.size": true,
	"db.query.text": true, "db.redis.num_cmd": true, // SQL as it stands in the code: values are parameters
	"error.type": true,
}

// clean is an exporter that lets nothing else through.
type clean struct{ sdktrace.SpanExporter }

// ExportSpans is in sdktrace.SpanExporter.
func (c clean) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	cleaned := make([]sdktrace.ReadOnlySpan, len(spans))
	for i, span := range spans {
		cleaned[i] = cleanSpan{span}
	}
	return c.SpanExporter.ExportSpans(ctx, cleaned) //nolint:wrapcheck // the SDK's own
}

type cleanSpan struct{ sdktrace.ReadOnlySpan }

// Attributes are those that may leave.
func (s cleanSpan) Attributes() []attribute.KeyValue {
	var left []attribute.KeyValue
	for _, a := range s.ReadOnlySpan.Attributes() {
		if kept[a.Key] {
			left = append(left, a)
		}
	}
	return left
}

// Events are none: they hold the text of errors, which may name hosts and whatever a server quoted.
func (s cleanSpan) Events() []sdktrace.Event { return nil }

// Links say where a trace came from, and nothing that its sender wrote.
func (s cleanSpan) Links() []sdktrace.Link {
	links := s.ReadOnlySpan.Links()
	bare := make([]sdktrace.Link, len(links))
	for i := range links {
		bare[i].SpanContext = links[i].SpanContext.WithTraceState(trace.TraceState{})
	}
	return bare
}

// Status is without its text, as events are.
func (s cleanSpan) Status() sdktrace.Status {
	status := s.ReadOnlySpan.Status()
	if status.Code == codes.Error {
		status.Description = ""
	}
	return status
}
