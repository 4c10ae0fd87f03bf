package app

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"

	"github.com/pegel-dev/pegel/internal/tracing"
)

// flushTraces bounds how long the end of a process waits for its last spans to be taken.
const flushTraces = 3 * time.Second

// tracingOf reads from OTEL_* whether traces are wanted, and by which protocol. The rest is the exporter's to read.
func tracingOf(env []string) (protocol string, on bool, err error) {
	set := map[string]string{}
	for _, kv := range env {
		if name, value, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "OTEL_") {
			set[name] = value
		}
	}
	switch exporter := set["OTEL_TRACES_EXPORTER"]; {
	case strings.EqualFold(set["OTEL_SDK_DISABLED"], "true"), exporter == "none":
		return "", false, nil
	case exporter != "" && exporter != "otlp":
		return "", false, &SettingError{Name: "OTEL_TRACES_EXPORTER", Reason: "must be otlp or none"}
	case exporter == "" && set["OTEL_EXPORTER_OTLP_ENDPOINT"] == "" && set["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == "":
		return "", false, nil
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		switch set[name] {
		case "":
		case tracing.GRPC, tracing.HTTP:
			return set[name], true, nil
		default:
			return "", false, &SettingError{Name: name, Reason: "must be grpc or http/protobuf"}
		}
	}
	return tracing.HTTP, true, nil
}

// openTracing makes the provider when traces are wanted. Without it nothing is wrapped and nothing costs anything.
func (a *App) openTracing(ctx context.Context) error {
	if a.cfg.TracingProtocol == "" {
		return nil
	}
	provider, err := tracing.New(ctx, tracing.Config{Protocol: a.cfg.TracingProtocol, Version: a.version, Replica: a.name, Now: a.now, Log: a.log})
	if err != nil {
		return err
	}
	a.tracing = provider
	return nil
}

// endTracing sends the last spans; nothing is traced afterwards.
func (a *App) endTracing(ctx context.Context) {
	provider, on := a.tracing.(interface{ Shutdown(context.Context) error })
	if !on {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, flushTraces)
	defer cancel()
	if err := provider.Shutdown(ctx); err != nil {
		a.log.Warn("the last traces were not exported", slog.Any("error", err))
	}
}

// traced makes a span of every request on a listener, but for health and metrics. A trace that comes with a request is gone on
// with when the peer is a trusted proxy or this machine; anybody else's is linked to, so that strangers do not decide what is
// sampled.
func (a *App) traced(listener string, h http.Handler) http.Handler {
	if a.tracing == nil {
		return h
	}
	return otelhttp.NewHandler(h, listener,
		otelhttp.WithTracerProvider(a.tracing), otelhttp.WithMeterProvider(noop.NewMeterProvider()), otelhttp.WithPropagators(propagation.TraceContext{}),
		otelhttp.WithPublicEndpointFn(func(r *http.Request) bool { return !a.trusts(r.RemoteAddr) }),
		otelhttp.WithFilter(func(r *http.Request) bool {
			return r.URL.Path != "/healthz" && r.URL.Path != "/readyz" && r.URL.Path != "/metrics"
		}),
		otelhttp.WithSpanNameFormatter(func(operation string, r *http.Request) string { return operation + " " + knownMethod(r.Method) }))
}

func (a *App) trusts(remote string) bool {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return false
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	address = address.Unmap().WithZone("")
	return address.IsLoopback() || slices.ContainsFunc(a.cfg.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(address) })
}

// knownMethod is the method, unless a client made it up.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return "other"
}
