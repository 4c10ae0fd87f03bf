package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/usage"
)

// defaultTop is how many tenants GET /admin/rate-limits shows unless asked otherwise.
const defaultTop = 10

// GetRateLimits is GET /admin/rate-limits: what all replicas have counted. It works without Redis and without Postgres, with
// this replica alone then.
func (a *admin) GetRateLimits(c *gin.Context, params gen.GetRateLimitsParams) {
	n := defaultTop
	if params.Top != nil {
		n = *params.Top
	}
	now := a.usage.Overview(c.Request.Context(), n)
	body := gen.RateLimits{
		GeneratedAt: now.At, WrongCredentials: now.WrongCredentials,
		Anonymous:            gen.Traffic{Allowed: now.Anonymous.Admitted, Slowed: now.Anonymous.Slowed, Refused: now.Anonymous.Refused},
		Tenants:              make([]gen.TenantUsage, len(now.Tenants)),
		RefusedAddresses:     make([]gen.RefusedAddress, len(now.Addresses)),
		RefusedServiceTokens: make([]gen.RefusedServiceToken, len(now.Services)),
		Replicas:             make([]gen.ReplicaState, len(now.Replicas)),
		ActiveTenants:        now.Active,
		High:                 make([]gen.TenantUsage, len(now.High)),
		Total:                gen.Traffic{Allowed: now.Total.Admitted, Slowed: now.Total.Slowed, Refused: now.Total.Refused},
		Missing:              append([]string{}, now.Missing...),
	}
	for i := range now.Tenants {
		body.Tenants[i] = showUsage(&now.Tenants[i])
	}
	for i := range now.High {
		body.High[i] = showUsage(&now.High[i])
	}
	if params.Series != nil && *params.Series {
		series := make([]gen.TrafficPoint, len(now.Series))
		for i, p := range now.Series {
			series[i] = gen.TrafficPoint{At: p.At, Allowed: p.Allowed, Slowed: p.Slowed, Refused: p.Refused}
		}
		body.Series = &series
	}
	for i, r := range now.Addresses {
		body.RefusedAddresses[i] = gen.RefusedAddress{Address: r.Name, Refused: r.Count}
	}
	for i, r := range now.Services {
		body.RefusedServiceTokens[i] = gen.RefusedServiceToken{Name: r.Name, Refused: r.Count}
	}
	for i := range now.Replicas {
		body.Replicas[i] = showReplica(&now.Replicas[i])
	}
	a.writeJSON(c, http.StatusOK, body)
}

func showUsage(u *usage.TenantUsage) gen.TenantUsage {
	limits := make([]gen.LimitUsage, len(u.Limits))
	for i := range u.Limits {
		l := &u.Limits[i]
		mode := gen.Enforce
		if l.Watches {
			mode = gen.Shadow
		}
		limits[i] = gen.LimitUsage{
			Name: l.Name, Used: l.Used, Limit: l.Limit, Utilization: l.Utilization, Peak: l.Peak, At: l.At, HighSince: timeOrNull(l.HighSince), Mode: mode,
		}
	}
	return gen.TenantUsage{
		Limits: limits, Tenant: u.Tenant, Plan: u.Plan, LimitName: u.LimitName, Used: u.Used, Limit: u.Limit, Utilization: u.Utilization,
		Allowed: u.Last60s.Admitted, Slowed: u.Last60s.Slowed, Refused: u.Last60s.Refused, HighSince: timeOrNull(u.HighSince),
	}
}

func showReplica(r *usage.Replica) gen.ReplicaState {
	return gen.ReplicaState{
		Replica: r.Name, Source: gen.SourceName(r.Source), Redis: gen.StoreState(r.Redis), Postgres: gen.StoreState(r.Postgres),
		Since: timeOrNull(r.Since), Instance: r.Instance, Version: r.Version, Status: r.Status,
		RedisBreaker: r.RedisBreaker, PostgresBreaker: r.PostgresBreaker, StartedAt: r.StartedAt, ReportedAt: r.ReportedAt,
	}
}
