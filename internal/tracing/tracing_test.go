package tracing_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/pegel-dev/pegel/internal/testenv"
	"github.com/pegel-dev/pegel/internal/tracing"
)

// end sends what waits.
func end(t *testing.T, p *sdktrace.TracerProvider) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, p.Shutdown(ctx))
}

func bothProtocols(t *testing.T, do func(t *testing.T, protocol string)) {
	t.Helper()
	for _, protocol := range []string{tracing.HTTP, tracing.GRPC} { // one after the other: the exporters read the environment of the process
		t.Run(strings.ReplaceAll(protocol, "/", " "), func(t *testing.T) { do(t, protocol) })
	}
}

// Guarantee: of a span goes out what happened, and nothing that says to whom, wherever in the span it stands.
func TestWhatLeavesInASpan(t *testing.T) { //nolint:paralleltest // the exporters read the environment of the process
	bothProtocols(t, func(t *testing.T, protocol string) {
		t.Helper()
		r := newReceiver(t, protocol)
		p, _ := provider(t, protocol, r.URL)
		state, err := trace.ParseTraceState("vendor=canary-state")
		require.NoError(t, err)
		stranger := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceState: state, Remote: true})
		_, span := p.Tracer("test").Start(t.Context(), "public POST",
			trace.WithLinks(trace.Link{SpanContext: stranger, Attributes: []attribute.KeyValue{attribute.String("http.route", "/canary-link")}}))
		for _, key := range []string{
			"client.address", "network.peer.address", "server.address", "url.full", "url.path", "url.query", "http.target", "user_agent.original", "enduser.id",
			"db.statement", "db.connection_string", "db.user", "db.query.parameter.1", "exception.message", "http.request.header.authorization", "rpc.request.metadata.x", "pegel.tenant",
		} {
			span.SetAttributes(attribute.String(key, "canary-"+key))
		}
		span.SetAttributes(attribute.String("http.request.method", "POST"), attribute.Int("http.response.status_code", 503), attribute.String("db.query.text", "SELECT 1 WHERE slug = $1"),
			attribute.String("rpc.method", "ShouldRateLimit"), attribute.String("error.type", "503"))
		span.RecordError(errors.New("dial canary-host: refused"), trace.WithStackTrace(true))
		span.AddEvent("canary-event", trace.WithAttributes(attribute.String("http.route", "canary-event")))
		span.SetStatus(codes.Error, "canary-status")
		span.End()
		end(t, p)

		taken := r.Taken()
		require.NotContains(t, taken.Raw, "canary")
		require.Len(t, taken.Spans, 1)
		sent := taken.Spans[0]
		require.Equal(t, "public POST", sent.GetName())
		require.Equal(t, "STATUS_CODE_ERROR", sent.GetStatus().GetCode().String(), "that it failed is told")
		require.Equal(t, map[string]string{
			"http.request.method": "POST", "http.response.status_code": "", "db.query.text": "SELECT 1 WHERE slug = $1", "rpc.method": "ShouldRateLimit", "error.type": "503",
		}, testenv.TraceAttributes(sent.GetAttributes()))
		require.Len(t, sent.GetLinks(), 1, "and where it came from")
		require.Equal(t, byte(1), sent.GetLinks()[0].GetTraceId()[0])
	})
}

// Guarantee: the service says which it is, as the environment says; what the receiver asks for is sent along.
func TestTheStandardEnvironment(t *testing.T) { //nolint:paralleltest // the exporters read the environment of the process
	bothProtocols(t, func(t *testing.T, protocol string) {
		t.Helper()
		r := newReceiver(t, protocol)
		t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20collector")
		send := func() map[string]string {
			p, _ := provider(t, protocol, r.URL)
			_, span := p.Tracer("test").Start(t.Context(), "x")
			span.End()
			end(t, p)
			taken := r.Taken()
			require.Equal(t, []string{"Bearer collector"}, taken.Auth)
			return taken.Resource
		}
		described := send()
		require.Equal(t, []string{"pegel", "1.2.3", "pegel-1"}, []string{described["service.name"], described["service.version"], described["service.instance.id"]})
		t.Setenv("OTEL_SERVICE_NAME", "limits")
		t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=one,deployment.environment=test")
		described = send()
		require.Equal(t, []string{"limits", "1.2.3", "one", "test"},
			[]string{described["service.name"], described["service.version"], described["service.instance.id"], described["deployment.environment"]})
		sent := len(r.Taken().Spans)
		t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
		send()
		require.Len(t, r.Taken().Spans, sent)
	})
}

// Guarantee: a receiver that accepts and never answers, or is not there, or refuses, costs spans and nothing else: whoever ends a span does not
// wait, the end of the process waits no longer than it is told to, the log has a line a minute, and no secret in it.
func TestAReceiverThatTakesNothing(t *testing.T) { //nolint:paralleltest // the exporters read the environment of the process
	bothProtocols(t, func(t *testing.T, protocol string) {
		t.Helper()
		for name, receive := range map[string]func(t *testing.T) (url string, reached func() int){
			"hung": func(t *testing.T) (string, func() int) {
				t.Helper()
				silent := testenv.SilentServer(t)
				return "http://" + silent.Addr, silent.Accepted
			},
			"down": func(t *testing.T) (string, func() int) {
				t.Helper()
				return "http://127.0.0.1:1", func() int { return 1 }
			},
		} {
			t.Run(name, func(t *testing.T) {
				url, reached := receive(t)
				t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=canary-header")
				t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100") // ms, of each try
				t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "300")
				t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
				p, l := provider(t, protocol, url)
				tracer := p.Tracer("test")
				const spans = 50_000 // 25 times what waits
				started := time.Now()
				for range spans {
					_, span := tracer.Start(t.Context(), "x")
					span.End()
				}
				require.Less(t, time.Since(started), 20*time.Second, "a span for each try would have taken hours")
				require.Eventually(t, func() bool { return reached() > 0 && strings.Contains(l.text(), "traces are not exported") }, 20*time.Second, 10*time.Millisecond)
				once := strings.Count(l.text(), "traces are not exported")
				require.Equal(t, 1, once, "at most one a minute:\n%s", l.text())
				l.advance(time.Minute)
				require.Eventually(t, func() bool {
					_, span := tracer.Start(t.Context(), "x")
					span.End()
					return strings.Count(l.text(), "traces are not exported") == 2
				}, 20*time.Second, 10*time.Millisecond)
				require.NotContains(t, l.text(), "canary")

				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				started = time.Now()
				_ = p.Shutdown(ctx) // what could not be sent is lost, and it may say so
				require.Less(t, time.Since(started), 10*time.Second)
			})
		}
	})
}

// Guarantee: the end waits for a receiver that hangs as long as its caller allows, whatever the exporter's own patience.
func TestTheEndHasABound(t *testing.T) { //nolint:paralleltest // the exporters read the environment of the process
	bothProtocols(t, func(t *testing.T, protocol string) {
		t.Helper()
		silent := testenv.SilentServer(t)
		t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600000")
		t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "600000")
		t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
		p, _ := provider(t, protocol, "http://"+silent.Addr)
		_, span := p.Tracer("test").Start(t.Context(), "x")
		span.End()
		require.Eventually(t, func() bool { return silent.Accepted() > 0 }, 20*time.Second, 10*time.Millisecond, "an export is under way")
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- p.Shutdown(ctx) }()
		select {
		case err := <-ended:
			t.Log(err)
		case <-time.After(30 * time.Second):
			require.Fail(t, "it waits for the exporter")
		}
	})
}
