package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/metrics"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/usage"
)

// watchedPeers are whole decisions over HTTP, served by this process, on Redis, with nobody watching and with what a service watches: usage per
// tenant, limit, user and key, collected every second, and metrics.
func (l *libraries) watchedPeers(ctx context.Context) []*peer {
	directory := tenants.NewDirectory(0)
	plan := tenants.Plan{ID: 1, Name: "wide", Limits: []tenants.Rule{{Limit: ratelimit.Limit{
		Name: "requests-per-minute", Scope: ratelimit.ScopeTenant, Algorithm: ratelimit.SlidingWindowLog, Quota: wide, Window: time.Minute, Cost: 1,
	}}}}
	changes := tenants.Changes{Version: 1, Full: true, Installation: "bench-watching", Plans: []tenants.Plan{plan}}
	for i := range counterCount {
		changes.Tenants = append(changes.Tenants, tenants.Tenant{ID: int64(i + 1), Slug: tenant(i), Name: "T", Plan: plan.Name, Status: tenants.Active})
	}
	directory.Apply(changes, time.Now())

	counted := usage.NewAggregator(0)
	go func() { // as long as the program
		for ticker := time.NewTicker(time.Second); ctx.Err() == nil; <-ticker.C {
			counted.Collect(time.Now())
		}
	}()
	engine := func(recorder usage.Recorder, observer decision.Observer) *decision.Engine {
		return decision.New(decision.Config{Store: l.merged, Directory: directory, Recorder: recorder, Observer: observer, Now: time.Now})
	}
	cpu := map[string]meter{"client": ofSelf, "redis": l.world.redisCPU}
	return []*peer{
		{table: watching, name: "not watched", reference: true, cpu: cpu, caller: door(ctx, engine(nil, nil), directory)},
		{table: watching, name: "usage", cpu: cpu, caller: door(ctx, engine(counted, nil), directory)},
		{table: watching, name: "usage and metrics", cpu: cpu, caller: door(ctx, engine(counted, metrics.NewDecisions(prometheus.NewRegistry(), time.Now)), directory)},
	}
}

// door is a plain HTTP server that decides each request for the tenant and user that its path names, and answers as a check does.
func door(ctx context.Context, e *decision.Engine, directory *tenants.Directory) func(context.Context, int) (func() error, func(), error) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		view, known := directory.Snapshot().Tenant(r.URL.Path[1:])
		d, err := e.Decide(r.Context(), decision.Hit{Tenant: view, User: r.URL.RawQuery, Key: "k1", Cost: 1, Door: decision.DoorCheck})
		if !known || err != nil {
			http.Error(w, "not decided", http.StatusInternalServerError)
			return
		}
		decision.WriteHeaders(w.Header(), d)
		_ = json.NewEncoder(w).Encode(decision.Body(d)) // the caller is gone
	})
	server := httptest.NewServer(handler)
	context.AfterFunc(ctx, server.Close)
	return func(_ context.Context, n int) (func() error, func(), error) {
		path := fmt.Sprintf("/%s?u%d", tenant(n%counterCount), n%10)
		return dialHTTP(server.Listener.Addr().String(), "none", path, http.StatusOK, "")
	}
}
