package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/usage"
)

// defaultTop is how many tenants GET /admin/rate-limits shows unless asked otherwise.
const defaultTop = 10

// GetRateLimits is GET /admin/rate-limits. It asks no store: what it shows was counted here, and health is known.
func (a *admin) GetRateLimits(c *gin.Context, params gen.GetRateLimitsParams) {
	n, now := defaultTop, a.now()
	if params.Top != nil {
		n = *params.Top
	}
	top := a.usage.Top(n, now)
	body := gen.RateLimits{
		GeneratedAt: now.UTC(), WrongCredentials: top.WrongCredentials,
		Anonymous:            gen.Traffic{Allowed: top.Anonymous.Admitted, Slowed: top.Anonymous.Slowed, Refused: top.Anonymous.Refused},
		Tenants:              make([]gen.TenantUsage, len(top.Tenants)),
		RefusedAddresses:     make([]gen.RefusedAddress, len(top.Addresses)),
		RefusedServiceTokens: make([]gen.RefusedServiceToken, len(top.Services)),
		Replicas:             []gen.ReplicaState{},
	}
	for i := range top.Tenants {
		body.Tenants[i] = showUsage(&top.Tenants[i])
	}
	for i, r := range top.Addresses {
		body.RefusedAddresses[i] = gen.RefusedAddress{Address: r.Name, Refused: r.Count}
	}
	for i, r := range top.Services {
		body.RefusedServiceTokens[i] = gen.RefusedServiceToken{Name: r.Name, Refused: r.Count}
	}
	for _, r := range a.health.Replicas() {
		body.Replicas = append(body.Replicas, gen.ReplicaState{
			Replica: r.Name, Source: gen.SourceName(r.Source), Redis: gen.StoreState(r.Redis), Postgres: gen.StoreState(r.Postgres),
			Since: timeOrNull(r.Since),
		})
	}
	a.writeJSON(c, http.StatusOK, body)
}

func showUsage(u *usage.TenantUsage) gen.TenantUsage {
	return gen.TenantUsage{
		Tenant: u.Tenant, Plan: u.Plan, LimitName: u.LimitName, Used: u.Used, Limit: u.Limit, Utilization: min(1, max(0, u.Utilization)),
		Allowed: u.Last60s.Admitted, Slowed: u.Last60s.Slowed, Refused: u.Last60s.Refused, HighSince: timeOrNull(u.HighSince),
	}
}
