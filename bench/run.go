package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"time"
)

// The tables.
const (
	overHTTP   = "http"
	overGRPC   = "envoy"
	onRedis    = "redis"
	onManyKeys = "many"
	onHotKey   = "hot"
	onPG       = "postgres"
	inside     = "inside"
	watching   = "watching"
	proxying   = "proxy"
)

var tables = []struct{ name, title string }{
	{overHTTP, "Over HTTP: POST /v1/check on loopback, keep-alive, 1,000 tenants unless it says otherwise. Ratio to the fixed answer."},
	{overGRPC, "Over gRPC: Envoy's rate-limit service on loopback; p50 and p99 are those of a call. Ratio to POST /v1/check."},
	{onRedis, "As a library on Redis, 1,000 counters. Ratio to the plain sliding log over rueidis."},
	{onManyKeys, "The same, 100,000 counters."},
	{onHotKey, "The same, all callers on one counter."},
	{onPG, "As a library on Postgres, 16 connections. Ratio to a plain upsert of a fixed window."},
	{inside, "In this process, no store: 100 decisions are one call, so p50 and p99 are those of 100. Ratio to the token bucket."},
	{proxying, "Through a reverse proxy in this process to the fixed answer, one tenant, on Redis; \"client\" is callers and proxy. Ratio to Go's own."},
	{watching, "Over HTTP, served by this process, on Redis: what watching costs. \"client\" is callers and service. Ratio to nobody watching."},
}

// columns of CPU time, by table.
var columns = map[string][]string{
	overHTTP:   {"service", "redis", "postgres"},
	overGRPC:   {"service", "redis"},
	onRedis:    {"client", "redis"},
	onManyKeys: {"client", "redis"},
	onHotKey:   {"client", "redis"},
	onPG:       {"client", "postgres"},
	inside:     {"client"},
	watching:   {"client", "redis"},
	proxying:   {"client", "redis"},
}

func (w *world) run(ctx context.Context, set settings) error {
	libraries, err := w.openLibraries(ctx)
	if err != nil {
		return err
	}
	defer libraries.close()
	ofLibraries, err := libraries.peers(ctx)
	if err != nil {
		return err
	}
	var peers []*peer
	for _, p := range append(append(w.httpPeers(), w.envoyPeers()...), ofLibraries...) {
		if set.only.MatchString(p.table) || set.only.MatchString(p.name) {
			peers = append(peers, p)
		}
	}
	results, err := measure(ctx, set, peers)
	if err != nil {
		return err
	}
	out := os.Stdout
	fmt.Fprintf(out, "\n%s, %d CPUs, %s/%s; %d turns of %s each; median rate of the turns, p50 and p99 of all calls,\n"+
		"CPU time per decision and process. \"callers\" wait for each answer before they ask again; they share the CPUs with the servers.\n",
		runtime.Version(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, set.rounds, set.turn)
	for _, table := range tables {
		var of []*peer
		for _, p := range peers {
			if p.table == table.name {
				of = append(of, p)
			}
		}
		if len(of) > 0 {
			printTable(out, table.title, columns[table.name], table.name == inside, of, set.callers, results)
			printShare(out, set.callers, of, results)
		}
	}
	if set.only.MatchString("exactness") {
		return libraries.exactness(ctx, out)
	}
	return nil
}

// measure gives every peer its turns, round by round, so that peers of one table follow each other within seconds.
func measure(ctx context.Context, set settings, peers []*peer) (map[*peer]map[int]*result, error) {
	results := make(map[*peer]map[int]*result, len(peers))
	for _, p := range peers {
		results[p] = make(map[int]*result)
	}
	for round := range set.rounds {
		progress("round %d of %d, about %s", round+1, set.rounds,
			(time.Duration(len(peers)*len(set.callers)) * set.turn).Round(time.Second))
		for _, n := range set.callers {
			for _, p := range peers {
				if results[p][n] == nil {
					results[p][n] = &result{cpu: make(map[string]time.Duration)}
				}
				if err := results[p][n].turn(ctx, p, n, set.turn); err != nil {
					return nil, fmt.Errorf("%s, %s, %d callers: %w", p.table, p.name, n, err)
				}
				if err := ctx.Err(); err != nil {
					return nil, err
				}
			}
		}
	}
	return results, nil
}

func (w *world) httpPeers() []*peer {
	checks := func(s *service, tenantsOf func(int) []string, want int) func(context.Context, int) (func() error, func(), error) {
		return func(_ context.Context, n int) (func() error, func(), error) {
			var bodies []string
			for _, tenant := range tenantsOf(n) {
				bodies = append(bodies, check(tenant, 1))
			}
			return s.dial("/v1/check", want, bodies...)
		}
	}
	// Each caller goes through tenants of its own: 64 callers through all of them.
	many := func(n int) (names []string) {
		for i := range (tenantCount + 63) / 64 {
			names = append(names, tenant((n+64*i)%tenantCount))
		}
		return names
	}
	hot := func(int) []string { return []string{hotTenant} }
	full := func(int) []string { return []string{fullTenant} }
	cpu := func(c *child, redis, postgres meter) map[string]meter {
		m := map[string]meter{"service": ofProcess(c.pid())}
		if redis != nil {
			m["redis"] = redis
		}
		if postgres != nil {
			m["postgres"] = postgres
		}
		return m
	}
	onRedisCPU, onPGCPU := cpu(w.onRedis.child, w.redisCPU, nil), cpu(w.onPG.child, nil, w.pgCPU)
	return []*peer{
		{
			table: overHTTP, name: "fixed answer (net/http)", reference: true, cpu: cpu(w.floor, nil, nil),
			caller: func(context.Context, int) (func() error, func(), error) {
				return dialHTTP(w.floor.address, w.onRedis.token, "/v1/check", http.StatusOK, check(hotTenant, 1))
			},
		},
		{table: overHTTP, name: "pegel, allowed", cpu: onRedisCPU, caller: checks(w.onRedis, many, http.StatusOK)},
		{table: overHTTP, name: "pegel, allowed, one tenant", cpu: onRedisCPU, caller: checks(w.onRedis, hot, http.StatusOK)},
		{table: overHTTP, name: "pegel, denied, one tenant", cpu: onRedisCPU, caller: checks(w.onRedis, full, http.StatusTooManyRequests)},
		{
			table: overHTTP, name: fmt.Sprintf("pegel, batches of %d", perBatch), decisions: perBatch, cpu: onRedisCPU,
			caller: func(_ context.Context, n int) (func() error, func(), error) {
				return w.onRedis.dial("/v1/check/batch", http.StatusOK, batch(n*37))
			},
		},
		{table: overHTTP, name: "pegel without Redis, allowed", cpu: onPGCPU, caller: checks(w.onPG, many, http.StatusOK)},
		{table: overHTTP, name: "pegel without Redis, denied", cpu: onPGCPU, caller: checks(w.onPG, full, http.StatusTooManyRequests)},
	}
}
