package tenants

import (
	"time"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// DefaultPlans are the plans a new installation starts with. They are installed once and then the operator's.
func DefaultPlans() []Plan {
	plan := func(name, title string, perMinute int64) Plan {
		p := Plan{Name: name, Title: title, Limits: []Rule{requestsPerMinute(perMinute)}}
		p.SetDefaults()
		return p
	}
	return []Plan{
		plan("light", "Light", 2_000),          // nursery, small school: up to 20 users
		plan("pro", "Pro", 10_000),             // 20 to 500 users
		plan("dedicated", "Dedicated", 20_000), // a server of one's own
	}
}

// BuiltinLimits are what holds for a tenant whose own plan cannot be read: the light plan's limits, compiled in, so that no
// row in the database can break them too.
func BuiltinLimits() []Rule { return DefaultPlans()[0].Limits }

// DefaultAddressPolicy is the address policy a new installation starts with.
func DefaultAddressPolicy() AddressPolicy {
	p := AddressPolicy{Limits: []Rule{
		{Limit: ratelimit.Limit{
			Name: "burst", Algorithm: ratelimit.LeakyBucket, Quota: 60, Refill: ratelimit.Rate{Units: 30, Every: time.Second},
		}},
		{Limit: ratelimit.Limit{Name: "per-minute", Quota: 300, Window: time.Minute}},
		{
			Limit: ratelimit.Limit{Name: "login", Quota: 5, Window: time.Second, OnStoreFailure: ratelimit.FailClosed},
			Match: Match{
				Methods: []string{"POST"},
				Paths:   []string{"/login", "/*/login", "/register", "/*/register", "/password-reset", "/*/password-reset"},
			},
		},
	}}
	p.SetDefaults()
	return p
}

func requestsPerMinute(quota int64) Rule {
	return Rule{Limit: ratelimit.Limit{
		Name: "requests-per-minute", Quota: quota, Window: time.Minute,
		Slowdown: &ratelimit.Slowdown{From: 0.8, MaxDelay: 2 * time.Second},
	}}
}
