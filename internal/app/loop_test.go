package app_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// loopEvery is one request of a loop that sends 50,000 a minute.
const loopEvery = time.Minute / 50_000

// Guarantee (incidents 1 and 2): a tenant on the installed plan light that sends 50,000 requests a minute through the
// proxy runs at full speed up to request 1,600, is delayed by the formula from 1,601 on, and is refused with a
// Retry-After from 2,001 on. From 200 addresses it is the same: 2,000. The upstream never sees what was refused, and
// other tenants see no change.
func TestTheLoopThroughTheProxy(t *testing.T) {
	t.Parallel()
	for name, addresses := range map[string]int{"from one address": 1, "from 200 addresses": 200} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var seen atomic.Int64
			upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/loop" {
					seen.Add(1)
				}
				w.WriteHeader(http.StatusNoContent)
			}))
			defer upstream.Close()
			r := startReplica(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_REDIS_URL="+testenv.RedisServer(t).URL(), "PEGEL_REDIS_TIMEOUT=5s", "PEGEL_DATABASE_DECISION_TIMEOUT=5s",
				"PEGEL_TRUSTED_PROXIES=127.0.0.1", "PEGEL_PROXY_LISTEN=127.0.0.1:0", "PEGEL_PROXY_UPSTREAM="+upstream.URL).ready()
			_, loop := r.tenantOn("light")
			_, other := r.tenantOn("light")

			ctx, over := context.WithCancel(t.Context())
			var quiet sync.WaitGroup
			quiet.Go(func() { stayUnharmed(ctx, t, r, other) })
			begun := time.Now()
			counts := r.loop(t, loop, 2500, addresses)
			took := time.Since(begun)
			over()
			quiet.Wait()
			require.Less(t, took, 55*time.Second, "the machine is too slow for one window")
			require.Equal(t, map[string]int{"full speed": 1600, "delayed by the formula": 400, "refused": 500}, counts)
			require.EqualValues(t, 2000, seen.Load())
		})
	}
}

// loop sends n requests in an open loop, spread over so many client addresses, and says what became of each.
func (r *replica) loop(t *testing.T, key string, n, addresses int) map[string]int {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 1000}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	results := make(chan string, n)
	pace := time.NewTicker(loopEvery)
	defer pace.Stop()
	for i := range n {
		<-pace.C
		go func() {
			begun := time.Now()
			status, header, err := send(t.Context(), client, r.proxy+"/loop", key, fmt.Sprintf("198.51.100.%d", i%addresses+1))
			results <- became(status, header, err, time.Since(begun))
		}()
	}
	counts := map[string]int{}
	for range n {
		counts[<-results]++
	}
	return counts
}

// send is one GET with a key, on behalf of an address.
func send(ctx context.Context, client *http.Client, url, key, address string) (status int, header http.Header, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("X-Forwarded-For", address)
	res, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, res.Header, err
}

// became holds an answer to what the plan light says about a request with that much left.
func became(status int, header http.Header, err error, took time.Duration) string {
	if err != nil {
		return err.Error()
	}
	remaining, err := strconv.Atoi(header.Get("X-RateLimit-Remaining"))
	if err != nil || header.Get("X-Pegel-Source") != "" {
		return fmt.Sprint("unexpected headers: ", header)
	}
	used := 2000 - remaining
	slowdown := header.Get("X-RateLimit-Slowdown")
	switch {
	case status == http.StatusTooManyRequests:
		wait, err := strconv.Atoi(header.Get("Retry-After"))
		if err != nil || wait < 1 || wait > 60 || used != 2000 {
			return fmt.Sprint("refused wrongly: ", header)
		}
		return "refused"
	case status != http.StatusNoContent:
		return http.StatusText(status)
	case used <= 1600 && slowdown == "":
		return "full speed"
	}
	// 2 s × (used ÷ 2000 − 0.8) ÷ (1 − 0.8)
	delay := time.Duration(used-1600) * 5 * time.Millisecond
	if slowdown != strconv.FormatInt(delay.Milliseconds(), 10) || took < delay {
		return fmt.Sprintf("slowed by %q ms, answered after %s, at %d used", slowdown, took, used)
	}
	return "delayed by the formula"
}

// stayUnharmed sends a tenant's request every now and then until ctx ends, and expects every one to pass at full speed.
func stayUnharmed(ctx context.Context, t *testing.T, r *replica, key string) {
	t.Helper()
	every := time.NewTicker(50 * time.Millisecond)
	defer every.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			if i == 0 {
				t.Error("the other tenant was never asked about")
			}
			return
		case <-every.C:
		}
		status, header, err := send(context.WithoutCancel(ctx), http.DefaultClient, r.proxy+"/other", key, "203.0.113.9")
		if err != nil || status != http.StatusNoContent || header.Get("X-RateLimit-Slowdown") != "" {
			t.Errorf("the other tenant: %d %v %v", status, header, err)
			return
		}
	}
}
