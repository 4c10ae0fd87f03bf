package doors_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// Guarantee: behind deploy/caddy a tenant over its limit gets Pegel's own answer, an allowed request its numbers, and the
// application none of Pegel's credentials and everything else.
func TestCaddyHandsPegelsAnswersOn(t *testing.T) {
	t.Parallel()
	r := startReplica(t, stores(t)...)
	c := startCaddy(t, r.public, startApplication(t).addr)
	_, key := r.tenant(perMinute(3))

	a := send(t, c.addr, question{method: "POST", target: "/v1/messages?page=2", body: []byte(`{"a":1}`), header: []string{
		"X-API-Key", key, "X-Pegel-Tenant", "forged", "X-Pegel-Source", "forged", "X-Original-URI", "/cheap", "X-Forwarded-Uri", "/cheap", "X-Forwarded-Method", "GET", "X-Custom", "kept",
	}})
	requireRate(t, a, "3", "2")
	got := a.reached(t)
	require.Equal(t, "POST /v1/messages?page=2", got.Method+" "+got.URI)
	require.Equal(t, "kept", got.Header.Get("X-Custom"))
	require.NotContains(t, string(a.body), "pgk_")
	require.NotContains(t, string(a.body), "X-Pegel")
	require.NotContains(t, send(t, c.addr, question{method: "GET", target: "/", header: []string{"Authorization", "Bearer " + key}}).reached(t).Header, "Authorization")
	got = send(t, c.addr, question{method: "GET", target: "/", header: []string{"Authorization", "Basic dTpw", "X-API-Key", "theirs", "X-HTTP-Method-Override", "PUT"}}).reached(t)
	require.Equal(t, "Basic dTpw theirs", got.Header.Get("Authorization")+" "+got.Header.Get("X-Api-Key"))
	require.NotContains(t, got.Header, "X-Http-Method-Override")

	upgrade := send(t, c.addr, question{method: "GET", target: "/socket", header: []string{"X-API-Key", key, "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version", "13"}})
	require.Equal(t, http.StatusSwitchingProtocols, upgrade.status, "the handshake was the last unit")

	for _, method := range []string{"GET", "HEAD", "OPTIONS", "PUT"} {
		a = send(t, c.addr, question{method: method, target: "/", header: []string{"Authorization", "Bearer " + key}})
		requireRefused(t, a, method)
		requireRate(t, a, "3", "0")
		if method != "HEAD" {
			var said map[string]any
			require.NoError(t, json.Unmarshal(a.body, &said))
			require.Equal(t, a.header.Get("X-Pegel-Decision"), said["decision_id"])
			require.Equal(t, "deny", said["decision"])
		}
	}
	a = send(t, c.addr, question{method: "GET", target: "/", header: []string{"X-API-Key", "pgk_unknown_unknown"}})
	require.Equal(t, http.StatusUnauthorized, a.status)
	require.Equal(t, []string{`Bearer realm="pegel"`}, a.header.Values("WWW-Authenticate"))
	counts, took := logins(t, c.addr, "44.0.0.1", 20, 20e6)
	t.Logf("50/s: %v in %s", counts, took)
	require.Zero(t, counts["refused by nginx"])
	require.Positive(t, counts["refused by Pegel"])
}
