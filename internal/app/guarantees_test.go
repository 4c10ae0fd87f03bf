package app_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// Guarantee: a token bucket of 10, refilled by 1 a second, lets ten through on two replicas together; the 11th is told to
// wait 1 s, and after that one passes.
func TestTokenBucketOnTwoReplicas(t *testing.T) {
	t.Parallel()
	env := []string{"PEGEL_DATABASE_URL=" + testenv.Postgres(t), "PEGEL_REDIS_URL=" + testenv.RedisServer(t).URL(), "PEGEL_REDIS_TIMEOUT=5s"}
	one, two := startReplica(t, env...).ready(), startReplica(t, env...).ready()
	_, key := one.tenant(map[string]any{"name": "bucket", "algorithm": "token_bucket", "limit": 10, "refill": map[string]any{"units": 1, "every": "1s"}})
	two.knows(key)
	urls := []string{one.public, two.public}
	begun := time.Now()
	counts := parallel(t, 10, func(i int) string {
		a, err := call(t.Context(), http.MethodPost, urls[i%2]+"/v1/check", key, map[string]any{})
		return fmt.Sprint(a.status, err)
	})
	require.Equal(t, map[string]int{"200 <nil>": 10}, counts)
	a := two.call(http.MethodPost, two.public+"/v1/check", key, map[string]any{})
	if time.Since(begun) < time.Second { // on a machine so slow that a unit has come back meanwhile, it is let through rightly
		require.Equal(t, http.StatusTooManyRequests, a.status, "%s", a.body)
		require.Equal(t, "1", a.header.Get("Retry-After"))
	}
	require.Eventually(t, func() bool {
		return one.call(http.MethodPost, one.public+"/v1/check", key, map[string]any{}).status == http.StatusOK
	}, 3*time.Second, 50*time.Millisecond)
}

// Guarantee (incident 3): our own services are let through by who they are, not by a bigger number. At an address quota of
// 5, a service token is never refused, nobody gets 5, and a forged token is nobody; where a token is needed it is a 401.
func TestServiceTokensAreExemptFromAddressLimits(t *testing.T) {
	t.Parallel()
	r := startReplica(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_REDIS_URL="+testenv.RedisServer(t).URL(),
		"PEGEL_REDIS_TIMEOUT=5s", "PEGEL_TRUSTED_PROXIES=127.0.0.1").ready()
	current := r.call(http.MethodGet, r.admin+"/admin/address-policy", adminToken, nil)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, r.admin+"/admin/address-policy",
		jsonBody(t, map[string]any{"limits": []any{perMinute(5, map[string]any{"name": "few", "scope": "address"})}}))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+adminToken)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("If-Match", current.header.Get("ETag"))
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)

	service := r.service()
	forged := service[:len(service)-8] + "00000000"
	ping := func(token, address string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.public+"/v1/ping", http.NoBody)
		require.NoError(t, err)
		req.Header.Set("X-Forwarded-For", address)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		return res.StatusCode
	}
	for i, c := range []struct {
		token string
		pass  int
	}{{service, 20}, {"", 5}, {forged, 5}} {
		passed := 0
		for range 20 {
			if ping(c.token, "203.0.113."+strconv.Itoa(i)) == http.StatusOK {
				passed++
			}
		}
		require.Equal(t, c.pass, passed)
	}
	a := r.call(http.MethodPost, r.public+"/v1/check", forged, map[string]any{"tenant": "anybody"})
	require.Equal(t, http.StatusUnauthorized, a.status, "%s", a.body)
}

// Guarantee (incidents 1 and 2): a looping tenant behind the proxy is slowed from 80 % on by the formula and refused at its
// quota, whatever addresses it comes from; the upstream never sees what was refused, and another tenant sees no change.
func TestTheLoopThroughTheProxy(t *testing.T) {
	t.Parallel()
	seen := make(chan struct{}, 10_000)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		seen <- struct{}{}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer upstream.Close()
	r := startReplica(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_REDIS_URL="+testenv.RedisServer(t).URL(), "PEGEL_REDIS_TIMEOUT=5s",
		"PEGEL_TRUSTED_PROXIES=127.0.0.1", "PEGEL_PROXY_LISTEN=127.0.0.1:0", "PEGEL_PROXY_UPSTREAM="+upstream.URL).ready()
	// A tenth of the light plan: full speed up to 160, slowed to 200, refused from 201 on.
	slow := map[string]any{"slowdown": map[string]any{"from": 0.8, "max_delay": "2s"}}
	_, loop := r.tenant(perMinute(200, slow))
	_, other := r.tenant(perMinute(200, slow))
	get := func(key string, i int) (status int, header http.Header) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.proxy+"/v1/messages", http.NoBody)
		if err != nil {
			return 0, nil
		}
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Set("X-Forwarded-For", fmt.Sprintf("198.51.100.%d", i%200))
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, nil
		}
		_ = res.Body.Close()
		return res.StatusCode, res.Header
	}
	begun := time.Now()
	counts := parallel(t, 600, func(i int) string {
		status, h := get(loop, i)
		switch {
		case status == http.StatusTooManyRequests && h.Get("Retry-After") != "":
			return "refused"
		case status != http.StatusNoContent:
			return strconv.Itoa(status)
		case h.Get("X-RateLimit-Slowdown") == "":
			return "full speed"
		}
		remaining, err1 := strconv.Atoi(h.Get("X-RateLimit-Remaining"))
		delay, err2 := strconv.Atoi(h.Get("X-RateLimit-Slowdown"))
		if err1 != nil || err2 != nil || delay != 2000*(200-remaining-160)/40 {
			return fmt.Sprintf("slowed by %d ms at %d remaining", delay, remaining)
		}
		return "slowed by the formula"
	})
	require.Equal(t, map[string]int{"full speed": 160, "slowed by the formula": 40, "refused": 400}, counts)
	require.Len(t, seen, 200)
	require.GreaterOrEqual(t, time.Since(begun), 2*time.Second, "the last admitted hit was held for its delay")
	status, h := get(other, 0)
	require.Equal(t, http.StatusNoContent, status)
	require.Empty(t, h.Get("X-RateLimit-Slowdown"))
}
