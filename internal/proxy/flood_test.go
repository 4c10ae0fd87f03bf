package proxy_test

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// 5,000 requests of a tenant in slow-down at once: held requests are capped, the others are refused at once, memory and goroutines
// stay bounded, another tenant is answered meanwhile, and clients that leave free their places.
func TestAFloodInSlowDown(t *testing.T) {
	const requests, perTenant, conns = 5000, 500, 600
	rule := perMinute(10_000)
	rule.Slowdown.From, rule.Slowdown.MaxDelay = 0, 20*time.Second // so that the first has a delay that is no 0 ms
	forever := make(chan time.Time)
	g := newGate(t, gateOptions{
		limits: []tenants.Rule{rule}, perTenant: perTenant,
		timer: func(time.Duration) (<-chan time.Time, func()) { return forever, func() {} },
	})
	other := g.otherTenant(t)
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: conns, MaxIdleConnsPerHost: conns}}
	t.Cleanup(client.CloseIdleConnections)

	before := usedNow()
	goroutines := runtime.NumGoroutine()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var refused, left, wrong atomic.Int64
	var all sync.WaitGroup
	for range requests {
		all.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.server.URL, http.NoBody)
			if err != nil {
				wrong.Add(1)
				return
			}
			req.Header.Set("X-Api-Key", g.key)
			res, err := client.Do(req)
			if err != nil {
				left.Add(1)
				return
			}
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			if res.StatusCode != http.StatusTooManyRequests {
				wrong.Add(1)
				return
			}
			refused.Add(1)
		})
	}
	require.Eventually(t, func() bool { return refused.Load()+wrong.Load() == requests-perTenant }, 60*time.Second, 5*time.Millisecond)
	require.Zero(t, wrong.Load())
	require.Equal(t, perTenant, g.holder.Held())
	require.Zero(t, g.calls.Load(), "nobody has reached the upstream")
	began := time.Now()
	require.Equal(t, http.StatusOK, g.do(t, "GET", "/", nil, "X-API-Key", other).StatusCode, "another tenant")
	t.Logf("another tenant is answered in %s; %d KiB and %d goroutines for %d held requests, both ends in this process",
		time.Since(began).Round(time.Microsecond), int64(usedNow()-before)>>10, runtime.NumGoroutine()-goroutines, perTenant)
	// A held request is a connection of the server (2), its timer's reader, and here the client's end (3) and its caller.
	require.Less(t, runtime.NumGoroutine()-goroutines, 12*conns)
	require.Less(t, int64(usedNow())-int64(before), int64(128<<20))

	began = time.Now()
	leave()
	require.Eventually(t, func() bool { return g.holder.Held() == 0 }, 20*time.Second, time.Millisecond)
	t.Logf("%d places are free %s after their clients have left", perTenant, time.Since(began).Round(time.Millisecond))
	all.Wait()
	require.EqualValues(t, perTenant, left.Load())
	require.Zero(t, wrong.Load())
	require.EqualValues(t, 1, g.calls.Load())
}

func usedNow() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// otherTenant adds a tenant without limits and gives its key.
func (g *gate) otherTenant(tb testing.TB) string {
	tb.Helper()
	key := g.apiKey(tb, 18)
	g.changes.Plans = append(g.changes.Plans, tenants.Plan{ID: 2, Name: "free"})
	g.changes.Tenants = append(g.changes.Tenants, tenants.Tenant{ID: 18, Slug: "school-18", Plan: "free", Status: tenants.Active})
	g.apply()
	return key
}

// events answers n events, one each pause; a line is when it was sent, in Unix nanoseconds.
func events(n int, pause time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		ticker := time.NewTicker(pause)
		defer ticker.Stop()
		for range n {
			_, _ = io.WriteString(w, "data: "+strconv.FormatInt(time.Now().UnixNano(), 10)+"\n\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-ticker.C:
			case <-r.Context().Done():
				return
			}
		}
	}
}
