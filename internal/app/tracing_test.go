package app_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// Guarantee: a request, its call of Redis and queries of Postgres are traced to an OTLP receiver, the trace of a trusted peer is gone on
// with, and nothing in a span says who asked for what: no tenant, user, path, query, agent, key or token.
func TestTraces(t *testing.T) { //nolint:paralleltest // the exporter reads the environment of the process
	r := testenv.Traces(t)
	otlp := "OTEL_EXPORTER_OTLP_ENDPOINT"
	t.Setenv(otlp, r.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
	replica := startReplica(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_REDIS_URL="+testenv.Redis(t), "PEGEL_REDIS_TIMEOUT=5s",
		"PEGEL_RLS_LISTEN=127.0.0.1:0", otlp+"="+r.URL).ready()
	service := replica.service()
	slug, key := replica.tenant(perMinute(10))

	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, replica.public+"/v1/check?query-canary=1",
		jsonBody(t, map[string]any{"tenant": slug, "user": "user-canary", "address": "203.0.113.77", "path": "/path-canary"}))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+service)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "agent-canary")
	req.Header.Set("Traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)
	replica.call(http.MethodGet, replica.public+"/v1/ping", key, nil)
	replica.call(http.MethodGet, replica.admin+"/admin/tenants/"+slug, adminToken, nil)
	replica.call(http.MethodGet, replica.public+"/readyz", "", nil)
	_, err = dialEnvoy(t, replica.app.Addr("rls"), insecure.NewCredentials()).ask(t.Context(), service, 1, "tenant", slug, "user", "user-canary", "path", "/path-canary")
	require.NoError(t, err)

	var names map[string]bool
	require.Eventually(t, func() bool {
		names = map[string]bool{}
		traced, redis := false, false
		for _, span := range r.Taken().Spans {
			names[span.GetName()] = true
			ours := string(span.GetTraceId()) == "\x4b\xf9\x2f\x35\x77\xb3\x4d\xa6\xa3\xce\x92\x9d\x0e\x0e\x47\x36"
			traced = traced || ours && span.GetName() == "public POST"
			redis = redis || ours && span.GetKind() == traces.Span_SPAN_KIND_CLIENT
		}
		return traced && redis && names["admin GET"] && names["public GET"] && names["envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"]
	}, 20*time.Second, 50*time.Millisecond, "%v", names)
	t.Logf("%v", names)
	sql := false
	for name := range names {
		sql = sql || len(name) > 6 && (name[:6] == "query " || name[:6] == "SELECT")
	}
	require.True(t, sql, "Postgres is traced: %v", names)

	raw := r.Taken().Raw
	require.Contains(t, raw, "deployment.environment")
	for _, secret := range []string{
		slug, "user-canary", "203.0.113.77", "127.0.0.1", "path-canary", "query-canary", "agent-canary", service, key, adminToken, "pegel:{", "readyz",
	} {
		require.NotContains(t, raw, secret)
	}
}
