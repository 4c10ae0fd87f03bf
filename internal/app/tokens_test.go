package app_test

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// Guarantee (incident 3): our own services are let through by who they are, not by a bigger number. At an address quota of
// 5, a service token is never refused, nobody gets 5, and a forged token is nobody; where a token is needed it is a 401.
func TestServiceTokensAreExemptFromAddressLimits(t *testing.T) {
	t.Parallel()
	r := startReplica(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_REDIS_URL="+testenv.RedisServer(t).URL(),
		"PEGEL_REDIS_TIMEOUT=5s", "PEGEL_DATABASE_DECISION_TIMEOUT=5s", "PEGEL_TRUSTED_PROXIES=127.0.0.1").ready()
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
	// Counted, then 401, whatever the address has left: this one has had its five.
	for range 7 {
		a := r.call(http.MethodPost, r.public+"/v1/check", forged, map[string]any{"tenant": "anybody"})
		require.Equal(t, http.StatusUnauthorized, a.status, "%s", a.body)
	}
}
