// Package recipes_test runs the recipes as their readers would: each in a server of its own language, before a real Pegel.
package recipes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/app"
	"github.com/pegel-dev/pegel/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const adminToken = "bootstrap-token-of-the-tests-0123456789"

// A server in each language: `hello` behind the recipe, tenants from a header as only a test may do it.
const (
	nodeServer = `
import http from 'node:http';
import { pegel } from '%[1]s/pegel.mjs';
const limit = pegel({ url: '%[2]s', token: '%[3]s', timeout: %[5]d, identify: (req) => {
  if (req.url === '/broken') throw new Error('no session');
  return req.url === '/healthz' ? null : { tenant: req.headers['tenant'] };
} });
http.createServer((req, res) => limit(req, res, (err) => { res.statusCode = err ? 500 : 200; res.end('hello'); })).listen(%[4]s, '127.0.0.1');`

	pythonServer = `
import sys
sys.path.insert(0, '%[1]s')
import uvicorn
from fastapi import FastAPI
from pegel import Pegel
app = FastAPI()
app.middleware('http')(Pegel('%[2]s', '%[3]s', timeout=%[5]d / 1000, identify=lambda r: None if r.url.path == '/healthz' else {'tenant': r.headers['missing' if r.url.path == '/broken' else 'tenant']}))
@app.get('/{path:path}')
async def hello(path: str):
    return 'hello'
uvicorn.run(app, host='127.0.0.1', port=%[4]s, log_level='warning')`

	phpServer = `<?php // port %[4]s
require '%[1]s/pegel.php';
if ($_SERVER['REQUEST_URI'] !== '/healthz') {
    pegel('%[2]s', '%[3]s', ['tenant' => $_SERVER['HTTP_TENANT']], %[5]d / 1000);
}
echo 'hello';`
)

// Guarantee: each recipe lets through what Pegel allows, with its headers, slows, refuses with Pegel's status and document, and lets
// requests pass, soon, when Pegel hangs, is gone or does not know the token.
func TestRecipes(t *testing.T) {
	t.Parallel()
	pegelURL, token := startPegel(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts and never answers
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, silent.Close()) })
	for language, start := range map[string]func(t *testing.T, pegel, token string, timeout time.Duration) string{
		"node": startNode, "python": startPython, "php": startPHP,
	} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			url := start(t, pegelURL, token, 10*time.Second) // a busy machine needs it
			for left := 9; left >= 0; left-- {
				begun := time.Now()
				status, header, body := get(t, url+"/", language)
				require.Equal(t, http.StatusOK, status, body)
				require.Contains(t, body, "hello")
				require.Equal(t, fmt.Sprint(left), header.Get("X-Ratelimit-Remaining"))
				require.NotEmpty(t, header.Get("X-Pegel-Decision"))
				if left == 0 {
					require.Equal(t, "400", header.Get("X-Ratelimit-Slowdown"))
					require.GreaterOrEqual(t, time.Since(begun), 400*time.Millisecond, "the delay is waited for")
				}
			}
			status, header, body := get(t, url+"/?long="+strings.Repeat("q", 9000), language)
			require.Equal(t, http.StatusTooManyRequests, status, body)
			require.NotEmpty(t, header.Get("Retry-After"))
			require.Equal(t, "application/problem+json", header.Get("Content-Type"))
			var problem map[string]any
			require.NoError(t, json.Unmarshal([]byte(body), &problem))
			require.Equal(t, "rate_limit_exceeded", problem["error"])
			status, _, body = get(t, url+"/", "nobody")
			require.Equal(t, http.StatusNotFound, status, body)
			if language != "php" { // which asks nobody who it is
				for range 2 {
					status, _, _ = get(t, url+"/broken", language)
					require.Equal(t, http.StatusInternalServerError, status, "who is asking cannot be told: that request fails, and no other")
				}
			}

			for name, away := range map[string][2]string{
				"hung": {"http://" + silent.Addr().String(), token}, "gone": {"http://127.0.0.1:1", token}, "wrong token": {pegelURL, "pgs_wrong"},
			} {
				url := start(t, away[0], away[1], 250*time.Millisecond)
				begun := time.Now()
				status, header, body := get(t, url+"/", language)
				require.Equal(t, http.StatusOK, status, "%s: %s", name, body)
				require.Contains(t, body, "hello", name)
				require.Empty(t, header.Get("X-Pegel-Decision"), name)
				require.Less(t, time.Since(begun), 10*time.Second, name)
			}
		})
	}
}

// get asks as a tenant.
func get(t *testing.T, url, tenant string) (status int, header http.Header, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	req.Header.Set("Tenant", tenant)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, res.Header, string(raw)
}

func startNode(t *testing.T, pegel, token string, timeout time.Duration) string {
	t.Helper()
	return serve(t, nodeServer, "server.mjs", pegel, token, timeout, func(file, _ string) []string { return []string{"node", file} })
}

func startPython(t *testing.T, pegel, token string, timeout time.Duration) string {
	t.Helper()
	python := "/usr/bin/python3" // Debian's has Debian's packages, whatever else is on PATH
	if _, err := os.Stat(python); err != nil {
		python = "python3"
	}
	return serve(t, pythonServer, "server.py", pegel, token, timeout, func(file, _ string) []string { return []string{python, "-B", file} })
}

func startPHP(t *testing.T, pegel, token string, timeout time.Duration) string {
	t.Helper()
	return serve(t, phpServer, "server.php", pegel, token, timeout, func(file, addr string) []string { return []string{"php", "-S", addr, file} })
}

// serve writes a server, starts it and waits until it answers.
func serve(t *testing.T, source, name, pegel, token string, timeout time.Duration, command func(file, addr string) []string) (url string) {
	t.Helper()
	here, err := filepath.Abs(".")
	require.NoError(t, err)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(free.Addr().String())
	require.NoError(t, err)
	require.NoError(t, free.Close())
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, source, here, pegel, token, port, timeout.Milliseconds()), 0o600))

	args := command(file, "127.0.0.1:"+port)
	var log bytes.Buffer
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start(), "make setup installs what the recipes are written in")
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	url = "http://127.0.0.1:" + port
	require.Eventually(t, func() bool {
		res, err := http.Get(url + "/healthz")
		if err != nil {
			return false
		}
		return res.Body.Close() == nil && res.StatusCode == http.StatusOK
	}, time.Minute, 20*time.Millisecond, "the %s server does not start", name)
	return url
}

// startPegel starts a Pegel with a tenant for each language, and returns its URL and a service token.
func startPegel(t *testing.T) (url, token string) {
	t.Helper()
	cfg, err := app.Load(app.Sources{Env: []string{
		"PEGEL_LISTEN=127.0.0.1:0", "PEGEL_ADMIN_LISTEN=127.0.0.1:0", "PEGEL_ADMIN_TOKEN=" + adminToken, "PEGEL_DRAIN_PAUSE=0s",
		"PEGEL_DATABASE_URL=" + testenv.Postgres(t), "PEGEL_REDIS_URL=" + testenv.RedisServer(t).URL(), "PEGEL_REDIS_TIMEOUT=5s",
	}})
	require.NoError(t, err)
	a, err := app.New(t.Context(), cfg, app.Options{Log: slog.New(slog.DiscardHandler), Now: time.Now, Version: "test"})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	<-a.Ready()
	create := func(path string, body any) map[string]any {
		raw, err := json.Marshal(body)
		require.NoError(t, err)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+a.Addr("admin")+path, bytes.NewReader(raw))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+adminToken)
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer func() { _ = res.Body.Close() }()
		var created map[string]any
		require.NoError(t, json.NewDecoder(res.Body).Decode(&created))
		require.Equal(t, http.StatusCreated, res.StatusCode, "%v", created)
		return created
	}
	create("/admin/plans", map[string]any{"name": "recipes", "limits": []any{map[string]any{
		"name": "requests-per-minute", "limit": 10, "window": "1m", "slowdown": map[string]any{"from": 0.8, "max_delay": "400ms"},
	}}})
	for _, language := range []string{"node", "python", "php"} {
		create("/admin/tenants", map[string]any{"slug": language, "name": language, "plan": "recipes"})
	}
	secret, ok := create("/admin/service-tokens", map[string]any{"name": "recipes", "may": []string{"check"}, "exempt": []string{"address"}})["secret"].(string)
	require.True(t, ok)
	return "http://" + a.Addr("public"), secret
}
