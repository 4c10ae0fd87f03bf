package app_test

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// Guarantee: a receiver that accepts connections and never answers slows no request and blocks none, and the end of the process waits no
// longer for it than 3 s.
func TestTracesToAHungReceiver(t *testing.T) { //nolint:paralleltest // the exporter reads the environment of the process
	silent := testenv.SilentServer(t)
	otlp := "OTEL_EXPORTER_OTLP_ENDPOINT"
	t.Setenv(otlp, "http://"+silent.Addr)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
	r := startReplica(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_REDIS_URL="+testenv.Redis(t), "PEGEL_REDIS_TIMEOUT=5s", otlp+"="+"http://"+silent.Addr).ready()
	_, key := r.tenant(perMinute(100_000))
	require.Eventually(t, func() bool { return silent.Accepted() > 0 }, 20*time.Second, 10*time.Millisecond, "an export is under way, and stays so")
	started := time.Now()
	var wg sync.WaitGroup
	var refused atomic.Int64
	for range 8 { // three or four spans each: twice as many as may wait
		wg.Go(func() {
			for range 150 {
				if r.call(http.MethodGet, r.public+"/v1/ping", key, nil).status != http.StatusOK {
					refused.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, refused.Load())
	t.Logf("1,200 requests in %v", time.Since(started))
	require.Less(t, time.Since(started), 60*time.Second, "one that waited for an export would take 10 s alone")

	started = time.Now()
	r.stop()
	select {
	case err := <-r.ended:
		require.NoError(t, err)
		r.ended <- nil // for the clean-up
	case <-time.After(20 * time.Second): // less than the exporter's own patience, which is 10 s for each try, for a minute
		require.Fail(t, "the end waits for the receiver")
	}
	t.Logf("ended in %v", time.Since(started))
	require.Contains(t, r.logs.String(), "the last traces were not exported")
}

// Guarantee: what a stranger makes up, a method of gRPC or the state of a trace, is in no span.
func TestTracesHoldNothingMadeUp(t *testing.T) { //nolint:paralleltest // the exporter reads the environment of the process
	collected := testenv.Traces(t)
	otlp := "OTEL_EXPORTER_OTLP_ENDPOINT"
	t.Setenv(otlp, collected.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
	r := startReplica(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_RLS_LISTEN=127.0.0.1:0", otlp+"="+collected.URL).ready()
	envoy := dialEnvoy(t, r.app.Addr("rls"), insecure.NewCredentials())
	for _, method := range []string{"/canary.Service/Method", "/envoy.service.ratelimit.v3.RateLimitService/Canary", "/canary"} {
		err := envoy.conn.Invoke(t.Context(), method, &emptypb.Empty{}, &emptypb.Empty{})
		require.Error(t, err, method)
		t.Log(status.Code(err))
	}
	req, err := http.NewRequestWithContext(t.Context(), "CANARY", r.public+"/v1/ping", http.NoBody)
	require.NoError(t, err)
	req.Header.Set("Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	req.Header.Set("Baggage", "user=canary")
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	r.call(http.MethodGet, r.public+"/v1/ping", "", nil)
	r.stop() // sends what waits
	require.NoError(t, <-r.ended)
	r.ended <- nil
	taken := collected.Taken()
	require.NotEmpty(t, taken.Spans)
	for _, canary := range []string{"canary", "Canary", "CANARY"} {
		require.NotContains(t, taken.Raw, canary)
	}
}
