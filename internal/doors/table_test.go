package doors_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// scenario is one row of what every door must say alike.
type scenario struct {
	limits  []map[string]any      // of a fresh tenant with an API key; nil: there is no tenant
	service func(f *fleet) string // the service token that is presented
	named   string                // the tenant that the service names
	key     string                // instead of the tenant's own
	want    []verdict             // of requests made one after the other
	// not are the doors that it says nothing about.
	not func(d door) bool
}

func allow(limit, remaining string) verdict {
	return verdict{Says: "allow", Limit: limit, Remaining: remaining}
}

func refuse(limit string) verdict {
	return verdict{Says: "rate_limit_exceeded", Limit: limit, Remaining: "0", Retry: true}
}

// scenarios hold under a policy of two requests a minute for each anonymous address.
func scenarios() map[string]scenario {
	one := func(limit map[string]any) []map[string]any { return []map[string]any{limit} }
	onlyClients := func(d door) bool { return d.named } // about credentials that a client presents
	return map[string]scenario{
		"allow":            {limits: one(perMinute(10)), want: []verdict{allow("10", "9"), allow("10", "8")}},
		"slow":             {limits: one(perMinute(10, map[string]any{"slowdown": map[string]any{"from": 0, "max_delay": "100ms"}})), want: []verdict{{Says: "slow", Limit: "10", Remaining: "9", Slowdown: "10"}, {Says: "slow", Limit: "10", Remaining: "8", Slowdown: "20"}}},
		"deny":             {limits: one(perMinute(1)), want: []verdict{allow("1", "0"), refuse("1"), refuse("1")}},
		"cost above quota": {limits: one(perMinute(3, map[string]any{"cost": 5})), want: []verdict{{Says: "cost_exceeds_limit", Limit: "3", Remaining: "3"}}},
		"quota 0":          {limits: one(perMinute(0)), want: []verdict{{Says: "cost_exceeds_limit", Limit: "0", Remaining: "0"}}},
		"unlimited":        {limits: []map[string]any{}, want: []verdict{{Says: "allow"}, {Says: "allow"}, {Says: "allow"}}},
		"shadow":           {limits: one(perMinute(1, map[string]any{"mode": "shadow"})), want: []verdict{{Says: "allow"}, {Says: "allow"}}},
		"anonymous":        {want: []verdict{allow("2", "1"), allow("2", "0"), refuse("2")}},
		"exempt": {
			service: func(f *fleet) string { return f.token }, want: []verdict{{Says: "allow"}, {Says: "allow"}, {Says: "allow"}},
			not: func(d door) bool { return d.named || d.credentials }, // they are told of an address that is nobody's own
		},
		"exempt, with a tenant": {
			limits: one(perMinute(1)), service: func(f *fleet) string { return f.token }, want: []verdict{allow("1", "0"), refuse("1")},
			not: func(d door) bool { return d.named || d.credentials },
		},
		"forged service token": {
			service: func(*fleet) string { return "pgs_forged_forged" }, want: []verdict{allow("2", "1"), allow("2", "0"), refuse("2")},
			not: func(d door) bool { return d.named || d.credentials },
		},
		"forged key":           {key: "pgk_forged_forged", want: []verdict{{Says: "unauthorized"}, {Says: "unauthorized"}, {Says: "unauthorized"}}, not: onlyClients},
		"unknown tenant":       {service: func(f *fleet) string { return f.token }, named: "nobody-there", want: []verdict{{Says: "not_found"}}},
		"a stranger names one": {named: "nobody-there", want: []verdict{allow("2", "1")}, not: func(d door) bool { return d.named || d.credentials }},
	}
}

// run asks a door and holds what it says to the row.
func (s *scenario) run(t *testing.T, f *fleet, d door) {
	t.Helper()
	a := ask{method: "GET", path: "/v1/messages", address: randomAddress(t), named: s.named, key: s.key}
	if s.limits != nil {
		a.tenant, a.key = f.tenant(s.limits...)
	}
	if s.service != nil {
		a.service = s.service(f)
	}
	for i, want := range s.want {
		if want.Says == "not_found" && d.unknown != "" {
			want.Says = d.unknown
		}
		got := d.ask(t, a)
		require.Equal(t, want, got, "request %d", i+1)
	}
}

// Guarantee: one verdict and one set of numbers, whichever door a request comes through.
func TestOneVerdictThroughEveryDoor(t *testing.T) {
	t.Parallel()
	f := startFleet(t, stores(t)...)
	f.policy(map[string]any{"name": "per-minute", "limit": 2, "window": "1m"})
	for name, s := range scenarios() {
		t.Run(name, func(t *testing.T) {
			for name, d := range f.doors() {
				if s.not != nil && s.not(d) {
					continue
				}
				t.Run(name, func(t *testing.T) { s.run(t, f, d) })
			}
		})
	}

	// The kill switch: nothing is refused and nothing delayed, through any door.
	f.administer(http.MethodPut, "/admin/mode", map[string]any{"mode": "shadow"})
	for name, d := range f.doors() {
		tenant, key := f.tenant(perMinute(1))
		for range 3 {
			require.Equal(t, "allow", d.ask(t, ask{method: "GET", path: "/", address: randomAddress(t), tenant: tenant, key: key}).Says, name)
		}
	}
}

// Guarantee: with both stores down an open limit lets through and says that nobody decided, and a closed one refuses with 503 and
// Retry-After, through every door: a proxy does not take a closed limit for a Pegel that is away. A local one is counted by the replica.
func TestBothStoresDownThroughEveryDoor(t *testing.T) {
	t.Parallel()
	pg, redis := testenv.PostgresServer(t), testenv.RedisServer(t)
	f := startFleet(t, "PEGEL_DATABASE_URL="+pg.URL(), "PEGEL_REDIS_URL="+redis.URL())
	f.policy()
	open, openKey := f.tenant(perMinute(10))
	closed, closedKey := f.tenant(perMinute(10, map[string]any{"on_store_failure": "closed"}))
	doors := f.doors()
	local, localKeys := map[string]string{}, map[string]string{}
	for name := range doors {
		local[name], localKeys[name] = f.tenant(perMinute(1, map[string]any{"on_store_failure": "local"}))
	}
	require.NoError(t, redis.Stop())
	require.NoError(t, pg.Stop())
	for name, d := range doors {
		got := d.ask(t, ask{method: "GET", path: "/", address: randomAddress(t), tenant: open, key: openKey})
		require.Equal(t, verdict{Says: "allow", Source: "none"}, got, name)
		got = d.ask(t, ask{method: "GET", path: "/", address: randomAddress(t), tenant: closed, key: closedKey})
		got.Source = ""
		require.Equal(t, verdict{Says: "store_unavailable", Retry: true}, got, name)
		for _, want := range []verdict{allow("1", "0"), refuse("1"), refuse("1")} {
			want.Source = "memory"
			require.Equal(t, want, d.ask(t, ask{method: "GET", path: "/", address: randomAddress(t), tenant: local[name], key: localKeys[name]}), name)
		}
	}
	require.NoError(t, pg.Start())
}
