package app

import (
	"context"
	"time"

	"github.com/pegel-dev/pegel/internal/usage"
)

// ownUsage is what alerts see of usage: what this replica has counted. The rule puts the replicas' views together.
type ownUsage struct {
	aggregator *usage.Aggregator
	now        func() time.Time
}

// Overview implements alert.Watched.
func (o *ownUsage) Overview(_ context.Context, top int) usage.Overview {
	t := o.aggregator.Top(top, o.now())
	return usage.Overview{Services: t.Services, WrongCredentials: t.WrongCredentials}
}

// Levels implements alert.Watched.
func (o *ownUsage) Levels(context.Context) []usage.TenantUsage {
	all := o.aggregator.Top(usage.DefaultMaxTenants, o.now()).Tenants
	for i := range all {
		u := &all[i]
		if len(u.Limits) == 0 && u.LimitName != "" {
			u.Limits = []usage.LimitUsage{{Name: u.LimitName, Used: u.Used, Limit: u.Limit, Utilization: u.Utilization, Peak: u.Last60s.Peak, At: u.LastAt}}
		}
	}
	return all
}
