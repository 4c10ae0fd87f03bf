package proxy_test

import (
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/redisstore"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// onRedis is a store on a real Redis. Its timeout is far above what a call takes: these tests are about counting.
func onRedis(t *testing.T) ratelimit.Store {
	t.Helper()
	store, err := redisstore.New(redisstore.Config{URL: testenv.Redis(t), Timeout: 10 * time.Second, Now: time.Now}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

// randomTenant keeps tests that share a Redis apart.
func randomTenant() int64 { return rand.Int64N(1<<62) + 1 }

// Incident 1 through the front door: a light tenant's loop is slowed from hit 1,601 on by the formula and refused from 2,001
// on, and the refused hits cost the upstream nothing.
func TestTheLoop(t *testing.T) {
	t.Parallel()
	g := newGate(t, gateOptions{limits: []tenants.Rule{perMinute(2000)}, store: onRedis(t), tenantID: randomTenant()})
	began := time.Now()
	for n := 1; n <= 2100; n++ {
		res := g.do(t, "GET", "/v1/messages", nil, "Authorization", "Bearer "+g.key)
		require.Less(t, time.Since(began), 55*time.Second, "the machine is too slow for one window")
		require.Empty(t, res.Header.Get("X-Pegel-Source"), "Redis decides")
		if n <= 2000 {
			require.Equal(t, http.StatusOK, res.StatusCode, "hit %d", n)
			require.Equal(t, strconv.Itoa(2000-n), res.Header.Get("X-RateLimit-Remaining"))
			require.Equal(t, n > 1600, res.Header.Get("X-RateLimit-Slowdown") != "", "hit %d", n)
			continue
		}
		require.Equal(t, http.StatusTooManyRequests, res.StatusCode, "hit %d", n)
		wait, err := strconv.Atoi(res.Header.Get("Retry-After"))
		require.NoError(t, err)
		require.InDelta(t, 30, wait, 30)
		require.GreaterOrEqual(t, wait, 1)
	}
	require.EqualValues(t, 2000, g.calls.Load())
	delays := g.timer.list()
	require.Len(t, delays, 400)
	for i, d := range delays {
		require.Equal(t, time.Duration(i+1)*5*time.Millisecond, d, "hit %d", 1601+i)
	}
}

// Incident 2: one tenant from 200 addresses at once is one tenant.
func TestTwoHundredAddresses(t *testing.T) {
	t.Parallel()
	g := newGate(t, gateOptions{
		limits: []tenants.Rule{perMinute(2000)}, policy: []tenants.Rule{perAddress(300)}, trusted: []string{"127.0.0.0/8"},
		store: onRedis(t), tenantID: randomTenant(),
	})
	var passed, refused atomic.Int64
	var group sync.WaitGroup
	for worker := range 10 {
		group.Go(func() {
			for n := range 220 {
				address := "203.0.113." + strconv.Itoa((worker*220+n)%200+1)
				switch g.do(t, "GET", "/", nil, "X-API-Key", g.key, "X-Forwarded-For", address).StatusCode {
				case http.StatusOK:
					passed.Add(1)
				case http.StatusTooManyRequests:
					refused.Add(1)
				}
			}
		})
	}
	group.Wait()
	require.EqualValues(t, 2000, passed.Load())
	require.EqualValues(t, 200, refused.Load())
}

// Incident 3: at an address quota of 5, a service token passes, nothing does not, and a forged token is nothing.
func TestAddressQuotaAndTokens(t *testing.T) {
	t.Parallel()
	limit := perAddress(5)
	limit.Name = "five-" + strconv.FormatInt(randomTenant(), 36) // addresses are shared by all who share the Redis
	g := newGate(t, gateOptions{policy: []tenants.Rule{limit}, trusted: []string{"127.0.0.0/8"}, store: onRedis(t)})
	token := g.serviceToken(t)
	passed := func(address string, pairs ...string) (n int) {
		for range 20 {
			if g.do(t, "GET", "/", nil, append(pairs, "X-Forwarded-For", address)...).StatusCode == http.StatusOK {
				n++
			}
		}
		return n
	}
	require.Equal(t, 20, passed("203.0.113.1", "X-Pegel-Service-Token", token))
	require.Equal(t, 5, passed("203.0.113.2"))
	require.Equal(t, 5, passed("203.0.113.3", "X-Pegel-Service-Token", "pgs_"+token[4:40]+"forged"))
	require.Equal(t, 5, passed("203.0.113.4", "Authorization", "Bearer "+token, "Authorization", "Bearer "+token), "a token sent twice is none")
	require.Equal(t, 20, passed("203.0.113.5", "Authorization", "Bearer "+token))
}
