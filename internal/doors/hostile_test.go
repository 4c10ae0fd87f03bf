package doors_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// rawly sends bytes and reads the final answer; status 0: the connection ended without one.
func rawly(t *testing.T, addr, request string) (status int, header http.Header, body string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(sendLimit)))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.WriteString(conn, request) // a server may hang up before it has all
	}()
	defer func() { _ = conn.Close(); <-sent }()
	reader, method := bufio.NewReader(conn), strings.SplitN(request, " ", 2)[0]
	for {
		res, err := http.ReadResponse(reader, &http.Request{Method: method})
		if err != nil {
			return 0, nil, err.Error()
		}
		if res.StatusCode < 200 && res.StatusCode != http.StatusSwitchingProtocols {
			continue
		}
		raw, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20))
		_ = res.Body.Close()
		return res.StatusCode, res.Header, string(raw)
	}
}

// hostile are requests that a server might read in a way of its own, each without its credential, %s.
func hostile() map[string]string {
	line := func(first string, lines ...string) string {
		return first + "\r\n%sConnection: close\r\n" + strings.Join(append(lines, "\r\n"), "\r\n")
	}
	const get, host = "GET / HTTP/1.1", "Host: api.example.org"
	all := map[string]string{
		"HTTP/1.0 without a host": line("GET / HTTP/1.0"), "no host": line(get), "two hosts": line(get, host, "Host: other"),
		"HTTP/1.2": line("GET / HTTP/1.2", host), "bare line feeds": "GET / HTTP/1.1\nHost: a\n%sConnection: close\n\n",
		"folded header": line(get, host, "X-A: b\r\n c"),
		"length twice":  line("POST / HTTP/1.1", host, "Content-Length: 0", "Content-Length: 6"),
		"length and chunks": line("POST / HTTP/1.1", host, "Content-Length: 5", "Transfer-Encoding: chunked") +
			"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
		"a space before the colon": line("POST / HTTP/1.1", host, "Transfer-Encoding : chunked") + "0\r\n\r\n",
		"no such chunk":            line("POST / HTTP/1.1", host, "Transfer-Encoding: chunked") + "zz\r\n\r\n",
		"chunks in HTTP/1.0":       line("POST / HTTP/1.0", host, "Transfer-Encoding: chunked") + "0\r\n\r\n",
		"GET with a body":          line(get, host, "Content-Length: 3") + "abc",
		"expects to be told":       line("POST / HTTP/1.1", host, "Content-Length: 3", "Expect: 100-continue") + "abc",
		"a credential as trailer":  line("POST / HTTP/1.1", host, "Transfer-Encoding: chunked", "Trailer: X-Api-Key") + "0\r\nX-Api-Key: pgk_a_b\r\n\r\n",
	}
	for _, n := range []int{7_000, 31_000, 66_000, 200_000, 1_040_000} {
		all[fmt.Sprintf("a header of %d", n)] = line(get, host, "X-Big: "+strings.Repeat("a", n))
		all[fmt.Sprintf("headers of %d", n)] = line(get, append([]string{host}, strings.Split(strings.Repeat("X-Many: "+strings.Repeat("b", 100)+"\n", n/112), "\n")[:n/112]...)...)
	}
	for _, v := range []string{"\x01", "\x0b", "\x7f", "\x80", "a\x00b"} {
		all[fmt.Sprintf("value %q", v)] = line(get, host, "User-Agent: "+v)
		all[fmt.Sprintf("path with %q", v)] = line("GET /"+v+" HTTP/1.1", host)
	}
	for _, v := range []string{`a"b`, "a b", "", "a:99999", "[::1]", "[::1%%25eth0]:80", "a@b", "a/b", `a\b`, "a..b", "é", "a?b", "a#b", "a<b>", strings.Repeat("h", 400)} {
		all["host "+v] = line(get, "Host: "+v)
	}
	for _, v := range []string{
		"*", "http://h", "http://h?x", "HTTP://h/x", "//", "/%%", "/%%zz", "//evil/x", "/a b", "/#", "/<>", "/{uri}", "/$uri", "/%%0d%%0aX:y", "/\xff", "ftp://h/x", "a", "?x",
		"/..;/x", "/a/../../x", "/" + strings.Repeat("a", 8193), "/?" + strings.Repeat("a", 70_000),
	} {
		for _, method := range []string{"GET", "OPTIONS", "CONNECT"} {
			all[method+" "+v] = line(method+" "+v+" HTTP/1.1", host)
		}
	}
	for _, method := range []string{"get", strings.Repeat("M", 33), "M-SEARCH", "A_B", "A!B", "A{B", "HEAD", "TRACE", "PROPFIND"} {
		all["method "+method] = line(method+" / HTTP/1.1", host)
	}
	for _, v := range []string{
		"X-Forwarded-Method: GET\r\nX-Forwarded-Method: POST", "X-Forwarded-Uri: /a\r\nX-Forwarded-Uri: /b", "X-Forwarded-Proto: a\r\nX-Forwarded-Proto: b",
		"X-Forwarded-Host: a\r\nX-Forwarded-Host: b", "X-Forwarded-Host: a b", "X-Original-URI: /a\r\nX-Original-URI: /b", "X-Original-Method: PUT", "X_Original_URI: /a",
		"Connection: X-Forwarded-Uri, X-Forwarded-Method, X-Forwarded-For, X-Forwarded-Host, X-Forwarded-Proto, X-Original-Uri, X-Original-Method, Host",
		"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA", "Connection: Upgrade\r\nUpgrade: websocket, h2c", "Connection: Upgrade\r\nUpgrade: \x80", "Connection: Upgrade",
		"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13",
		"Expect: something", "TE: trailers", "Range: bytes=0-1", "If-None-Match: *", "If-Modified-Since: Mon, 01 Jan 2035 00:00:00 GMT", "Max-Forwards: 0", "X-Pegel-Status: 200",
		"X-Pegel-Service-Token: pgs_a_b\r\nX-Pegel-Service-Token: pgs_c_d", "Authorization: Bearer pgs_a_b\r\nAuthorization: Basic x", "X-Accel-Redirect: /x", "X-Request-Id: \x80",
	} {
		all[v] = line(get, host, v)
	}
	return all
}

// Guarantee: no request, however it is written, gets past a refusal, makes a server answer that it is broken, or has Pegel taken for
// one that is away, which would let everybody through.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	var reached atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(api.Close)
	app := api.Listener.Addr().String()
	r := startReplica(t, append(stores(t), "PEGEL_PROXY_LISTEN=127.0.0.1:0", "PEGEL_PROXY_UPSTREAM=http://"+app)...)
	r.policy(map[string]any{"name": "none", "limit": 0, "window": "1h"})
	_, key := r.tenant(perMinute(0))
	n := 0
	for name, addr := range map[string]string{"proxy": r.app.Addr("proxy"), "nginx": startNginx(t, r.public, app).addr, "caddy": startCaddy(t, r.public, app).addr} {
		for what, request := range hostile() {
			n++ // nginx's own limit per address is another matter
			status, _, body := rawly(t, addr, fmt.Sprintf(request, fmt.Sprintf("X-API-Key: %s\r\nX-Forwarded-For: 44.1.%d.%d\r\n", key, n>>8, n&0xff)))
			require.Zero(t, reached.Load(), "%s let %.80q through: %d %.200s", name, what, status, body)
			switch status {
			case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported: // the server's own words for what it does not speak
			default:
				require.Less(t, status, 500, "%s, %.80q: %.300s", name, what, body)
			}
			status, header, body := rawly(t, addr, fmt.Sprintf("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-API-Key: %s\r\n\r\n", key))
			require.Equal(t, http.StatusTooManyRequests, status, "%s after %.80q: %.300s", name, what, body)
			require.NotEmpty(t, header.Get("X-Pegel-Decision"), "%s after %.80q", name, what)
		}
	}
}

// Guarantee: a request that nginx takes and Pegel's server does not read is the client's fault and said so.
func TestNginxSaysWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	r := startReplica(t, stores(t)...)
	n := startNginx(t, r.public, startApplication(t).addr)
	for _, request := range []string{"Host: a\r\nX-Odd: \x01", "Host: a\"b"} {
		status, header, body := rawly(t, n.addr, "GET / HTTP/1.1\r\nConnection: close\r\n"+request+"\r\n\r\n")
		require.Equal(t, http.StatusBadRequest, status, body)
		require.Equal(t, "application/problem+json", header.Get("Content-Type"))
		var said map[string]any
		require.NoError(t, json.Unmarshal([]byte(body), &said))
		require.Equal(t, "validation", said["error"])
		require.Equal(t, header.Get("X-Request-Id"), said["request_id"])
	}
}

// Guarantee: the application sees no credential of Pegel's however it is written, no header that only Pegel may set, and none that
// names another method or path than the one that was decided on.
func TestNothingOfPegelsReachesTheApplication(t *testing.T) {
	t.Parallel()
	app := startApplication(t)
	r := startReplica(t, append(stores(t), "PEGEL_PROXY_LISTEN=127.0.0.1:0", "PEGEL_PROXY_UPSTREAM=http://"+app.addr)...)
	r.policy()
	_, key := r.tenant(perMinute(100_000))
	service := r.service()
	for name, addr := range map[string]string{"proxy": r.app.Addr("proxy"), "nginx": startNginx(t, r.public, app.addr).addr, "caddy": startCaddy(t, r.public, app.addr).addr} {
		passed := 0
		for i, lines := range []string{
			"X-API-Key: " + key, "x-api-key: " + key, "X_API_Key: " + key, "X-API-Key: foo\r\nX-API-Key: " + key, "X-API-Key: foo, " + key,
			"Authorization: Bearer " + key, "authorization: bearer " + key, "Authorization: " + key, "Authorization: Bearer\t" + key, "Authorization: Basic x, Bearer " + key,
			"Authorization: Basic x\r\nAuthorization: Bearer " + key, "Authorization: Bearer " + service, "Authorization: Bearer pga_canary_x", "X-API-Key: pga_canary_x",
			"X-Pegel-Service-Token: " + service, "X-Pegel-Service-Token: foo\r\nX-Pegel-Service-Token: " + service, "X_Pegel_Service_Token: " + service, "X-Pegel_Service-Token: " + service,
			"Connection: X-API-Key, X-Pegel-Service-Token, Authorization\r\nX-API-Key: " + key + "\r\nX-Pegel-Service-Token: " + service + "\r\nAuthorization: Bearer " + key,
			"X-Pegel-Tenant: canary", "X_Pegel_Tenant: canary", "X-Pegel-User: canary", "X-Pegel-Status: canary", "X-Pegel-Decision: canary", "X-Pegel-Source: canary", "X-Pegel-Problem: canary", "X-Pegel-Starting: canary",
			"X-HTTP-Method-Override: canary", "X-HTTP-Method: canary", "X-Method-Override: canary", "X_HTTP_Method_Override: canary",
		} {
			status, _, body := rawly(t, addr, fmt.Sprintf("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Forwarded-For: 44.2.0.%d\r\n%s\r\n\r\n", i, lines))
			for _, secret := range []string{key, service, "canary"} {
				require.NotContains(t, body, secret, "%s, %.60q", name, lines)
			}
			require.Contains(t, []int{http.StatusOK, http.StatusUnauthorized, http.StatusBadRequest, http.StatusForbidden}, status, "%s, %.60q: %s", name, lines, body)
			if status == http.StatusOK {
				passed++
			}
		}
		require.Greater(t, passed, 10, name)
		for i, header := range []string{"X-Original-URL", "X-Original-URI", "X-Rewrite-URL", "X-Forwarded-Uri", "X-Forwarded-Method", "X-Real-IP"} {
			_, _, body := rawly(t, addr, fmt.Sprintf("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Forwarded-For: 44.2.1.%d\r\n%s: canary\r\n\r\n", i, header))
			require.NotContains(t, body, "canary", "%s, %s", name, header)
		}
	}
}
