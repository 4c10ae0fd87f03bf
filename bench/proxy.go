package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/proxy"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// commonAnswer is how long an ordinary API takes for an answer; the proxy's overhead is also shown as a share of it.
const commonAnswer = 50 * time.Millisecond

const (
	bareProxy = "httputil.ReverseProxy"
	ourProxy  = "pegel's proxy, allowed"
)

// proxyPeers are reverse proxies in this process before the server with the fixed answer: Go's own, and Pegel's with decisions on
// Redis. Both use the same transport.
func (l *libraries) proxyPeers(ctx context.Context) ([]*peer, error) {
	upstream := &url.URL{Scheme: "http", Host: l.world.floor.address}
	directory := tenants.NewDirectory(0)
	plan := func(id int64, name string, quota int64) tenants.Plan {
		return tenants.Plan{ID: id, Name: name, Limits: []tenants.Rule{{Limit: ratelimit.Limit{
			Name: "requests-per-minute", Scope: ratelimit.ScopeTenant, Algorithm: ratelimit.SlidingWindowLog, Quota: quota, Window: time.Minute, Cost: 1,
		}}}}
	}
	changes := tenants.Changes{
		Version: 1, Full: true, Installation: "bench-proxy", Plans: []tenants.Plan{plan(1, "wide", wide), plan(2, "full", 0)},
		Tenants: []tenants.Tenant{
			{ID: 1, Slug: "wide", Name: "T", Plan: "wide", Status: tenants.Active},
			{ID: 2, Slug: "full", Name: "T", Plan: "full", Status: tenants.Active},
		},
	}
	var keys [2]string
	for i := range keys {
		credential, text, err := tenants.NewCredential(tenants.KindAPIKey, rand.Reader)
		if err != nil {
			return nil, err
		}
		keys[i] = text
		changes.APIKeys = append(changes.APIKeys, tenants.APIKey{ID: credential.ID, TenantID: int64(i + 1), Hash: credential.Hash})
	}
	directory.Apply(changes, time.Now())
	addresses, err := decision.NewAddressResolver(decision.AddressConfig{})
	if err != nil {
		return nil, err
	}
	transport := proxy.NewTransport(0)
	ours, err := proxy.New(proxy.Config{
		Engine:    decision.New(decision.Config{Store: l.merged, Directory: directory, Now: time.Now}),
		Addresses: addresses, Holder: decision.NewHolder(500, 5000, nil), Upstream: upstream, Transport: transport,
	})
	if err != nil {
		return nil, err
	}
	bare := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(upstream); r.SetXForwarded() }}
	cpu := map[string]meter{"client": ofSelf, "redis": l.world.redisCPU}
	through := func(name string, handler http.Handler, key string, want int) *peer {
		server := httptest.NewServer(handler)
		context.AfterFunc(ctx, server.Close)
		return &peer{
			table: proxying, name: name, reference: name == bareProxy, cpu: cpu,
			caller: func(context.Context, int) (func() error, func(), error) {
				return dialHTTP(server.Listener.Addr().String(), key, "/v1/messages", want, "")
			},
		}
	}
	return []*peer{
		through(bareProxy, bare, keys[0], http.StatusOK),
		through(ourProxy, ours, keys[0], http.StatusOK),
		through("pegel's proxy, denied", ours, keys[1], http.StatusTooManyRequests),
	}, nil
}

// printShare says what Pegel's proxy adds to an ordinary answer, by the medians for the fewest callers.
func printShare(out io.Writer, callers []int, peers []*peer, results map[*peer]map[int]*result) {
	var bare, ours *result
	for _, p := range peers {
		switch p.name {
		case bareProxy:
			bare = results[p][callers[0]]
		case ourProxy:
			ours = results[p][callers[0]]
		}
	}
	if bare == nil || ours == nil {
		return
	}
	more := ours.percentile(0.5) - bare.percentile(0.5)
	fmt.Fprintf(out, "\nOverhead against the bare proxy, %d caller(s): p50 %s, which is %.2f %% of an answer that takes %s.\n",
		callers[0], short(more), 100*float64(more)/float64(commonAnswer), commonAnswer)
}
