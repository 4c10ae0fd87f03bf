package main

import (
	"context"
	"fmt"
	"net/http"

	extv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// perCall is how many descriptors a large call of Envoy's has.
const perCall = 16

// envoyPeers ask as Envoy's rate-limit filter does, each caller over a connection of its own.
func (w *world) envoyPeers() []*peer {
	cpu := map[string]meter{"service": ofProcess(w.onRedis.child.pid()), "redis": w.redisCPU}
	ask := func(want ratelimitv3.RateLimitResponse_Code, of func(caller, i int) string, n int) func(context.Context, int) (func() error, func(), error) {
		return func(ctx context.Context, caller int) (func() error, func(), error) {
			request := &ratelimitv3.RateLimitRequest{Domain: "pegel"}
			for i := range n {
				request.Descriptors = append(request.Descriptors, &extv3.RateLimitDescriptor{
					Entries: []*extv3.RateLimitDescriptor_Entry{{Key: "tenant", Value: of(caller, i)}},
				})
			}
			return w.onRedis.dialEnvoy(ctx, request, want)
		}
	}
	const ok, over = ratelimitv3.RateLimitResponse_OK, ratelimitv3.RateLimitResponse_OVER_LIMIT
	different := func(caller, i int) string { return tenant((caller*perCall + i) % tenantCount) }
	return []*peer{
		{
			table: overGRPC, name: "POST /v1/check, allowed", reference: true, cpu: cpu,
			caller: func(_ context.Context, n int) (func() error, func(), error) {
				return w.onRedis.dial("/v1/check", http.StatusOK, check(tenant(n%tenantCount), 1))
			},
		},
		{table: overGRPC, name: "one descriptor, allowed", cpu: cpu, caller: ask(ok, different, 1)},
		{table: overGRPC, name: "one descriptor, denied, one tenant", cpu: cpu, caller: ask(over, func(int, int) string { return fullTenant }, 1)},
		{table: overGRPC, name: fmt.Sprintf("%d descriptors, %d tenants, allowed", perCall, perCall), decisions: perCall, cpu: cpu, caller: ask(ok, different, perCall)},
		{table: overGRPC, name: fmt.Sprintf("%d descriptors, one tenant, allowed", perCall), decisions: perCall, cpu: cpu, caller: ask(ok, func(int, int) string { return hotTenant }, perCall)},
	}
}

// dialEnvoy connects one caller; its call asks once.
func (s *service) dialEnvoy(ctx context.Context, request *ratelimitv3.RateLimitRequest, want ratelimitv3.RateLimitResponse_Code) (func() error, func(), error) {
	conn, err := grpc.NewClient(s.rls, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	client := ratelimitv3.NewRateLimitServiceClient(conn)
	call := func() error {
		response, err := client.ShouldRateLimit(ctx, request)
		if err == nil && response.GetOverallCode() != want {
			err = fmt.Errorf("Envoy's door answered %s: %s", response.GetOverallCode(), response.GetRawBody())
		}
		return err
	}
	if err := call(); err != nil { // connect before the clock runs
		_ = conn.Close()
		return nil, nil, err
	}
	return call, func() { _ = conn.Close() }, nil
}
