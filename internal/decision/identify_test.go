package decision_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// who is what Identify found, in words.
func who(c decision.Caller) string {
	var parts []string
	add := func(is bool, word string) {
		if is {
			parts = append(parts, word)
		}
	}
	add(c.Tenant != nil, "tenant")
	if c.Tenant != nil {
		parts[len(parts)-1] += "=" + c.Tenant.Slug
	}
	add(c.APIKey != nil, "key")
	add(c.Service != nil, "service")
	add(c.Vouched, "vouched")
	add(c.User != "", "user="+c.User)
	add(c.WrongAPIKey, "wrong-key")
	add(c.WrongService, "wrong-service")
	add(c.UnknownTenant, "unknown-tenant")
	add(c.BadIdentity, "bad-identity")
	return strings.Join(parts, " ")
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 10))
	key, other := f.apiKey(t, 17), f.apiKey(t, 18)
	orphan := f.apiKey(t, 99)
	edge := f.serviceToken(t, nil)
	identifier := f.serviceToken(t, func(s *tenants.ServiceToken) { s.May = []tenants.Permission{tenants.MayIdentify} })
	expiring := f.serviceToken(t, func(s *tenants.ServiceToken) { s.ExpiresAt = f.clock.now() })
	almost := f.serviceToken(t, func(s *tenants.ServiceToken) { s.ExpiresAt = f.clock.now().Add(time.Second) })
	revoked := f.serviceToken(t, func(s *tenants.ServiceToken) { s.RevokedAt = f.clock.now().Add(-time.Second) })
	admin := forged(t, tenants.KindAdminToken)

	for _, c := range []struct {
		name    string
		headers []string
		peer    bool
		want    string
	}{
		{"nobody", nil, false, ""},
		{"API key", []string{"Authorization", "Bearer " + key}, false, "tenant=school-17 key"},
		{"API key, scheme in another case", []string{"Authorization", "bEARER  " + key + " "}, false, "tenant=school-17 key"},
		{"API key in its own header", []string{"X-API-Key", key}, false, "tenant=school-17 key"},
		{"API key without scheme", []string{"Authorization", key}, false, "wrong-key"},
		{"API key behind another scheme", []string{"Authorization", "Token " + key}, false, "wrong-key"},
		{"API key in a list", []string{"Authorization", "Basic dTpw, Bearer " + key}, false, "wrong-key"},
		{"two keys", []string{"Authorization", "Bearer " + key, "X-API-Key", other}, false, "wrong-key"},
		{"two Authorization lines", []string{"Authorization", "Bearer " + key, "Authorization", "Basic dTpw"}, false, "wrong-key"},
		{"two equal Authorization lines", []string{"Authorization", "Bearer " + edge, "Authorization", "Bearer " + edge}, false, "wrong-service"},
		{"unknown key", []string{"X-API-Key", forged(t, tenants.KindAPIKey)}, false, "wrong-key"},
		{"key of a tenant that is gone", []string{"X-API-Key", orphan}, false, "wrong-key"},
		{"cut key", []string{"X-API-Key", key[:len(key)-1]}, false, "wrong-key"},
		{"key with another secret", []string{"X-API-Key", key[:20] + other[20:]}, false, "wrong-key"},
		{"admin token", []string{"Authorization", "Bearer " + admin}, false, "wrong-key"},
		{"service token as API key", []string{"X-API-Key", edge}, false, "wrong-key"},
		{"somebody else's bearer", []string{"Authorization", "Bearer eyJhbGciOi.J9.x"}, false, ""},
		{"somebody else's basic", []string{"Authorization", "Basic cGdrXzEyMzQ="}, false, ""},
		{"somebody else's API key", []string{"X-API-Key", "sk_live_1"}, false, ""},
		{"service token", []string{"Authorization", "Bearer " + edge}, false, "service"},
		{"service token in its own header", []string{"X-Pegel-Service-Token", edge}, false, "service"},
		{"service token beside a tenant's key", []string{"X-Pegel-Service-Token", edge, "Authorization", "Bearer " + key}, false, "tenant=school-17 key service"},
		{"two service tokens", []string{"X-Pegel-Service-Token", edge, "Authorization", "Bearer " + edge}, false, "wrong-service"},
		{"garbage as service token", []string{"X-Pegel-Service-Token", "yes"}, false, "wrong-service"},
		{"API key as service token", []string{"X-Pegel-Service-Token", key}, false, "wrong-service"},
		{"forged service token", []string{"X-Pegel-Service-Token", forged(t, tenants.KindServiceToken)}, false, "wrong-service"},
		{"forged service token beside a key", []string{"X-Pegel-Service-Token", forged(t, tenants.KindServiceToken), "X-API-Key", key}, false, "tenant=school-17 key wrong-service"},
		{"at its expiry", []string{"X-Pegel-Service-Token", expiring}, false, "wrong-service"},
		{"a second before its expiry", []string{"X-Pegel-Service-Token", almost}, false, "service"},
		{"revoked", []string{"X-Pegel-Service-Token", revoked}, false, "wrong-service"},
		{"a megabyte", []string{"X-Pegel-Service-Token", "pgs_" + strings.Repeat("a", 1<<20)}, false, "wrong-service"},
		{"not ASCII", []string{"X-API-Key", "pgk_ü" + key[6:]}, false, "wrong-key"},

		{"a stranger names a tenant", []string{"X-Pegel-Tenant", "school-17"}, false, ""},
		{"a tenant names another (B054)", []string{"X-API-Key", key, "X-Pegel-Tenant", "school-18"}, false, "tenant=school-17 key"},
		{"a service without identify names a tenant", []string{"X-Pegel-Service-Token", edge, "X-Pegel-Tenant", "school-17"}, false, "service"},
		{"a service with identify", []string{"X-Pegel-Service-Token", identifier, "X-Pegel-Tenant", "school-17", "X-Pegel-User", "u42"}, false, "tenant=school-17 service vouched user=u42"},
		{"a trusted proxy", []string{"X-Pegel-Tenant", "school-17", "X-Pegel-User", "u42"}, true, "tenant=school-17 vouched user=u42"},
		{"a trusted proxy names a tenant beside a key", []string{"X-API-Key", key, "X-Pegel-Tenant", "school-18"}, true, "tenant=school-17 key"},
		{"a tenant that does not exist", []string{"X-Pegel-Tenant", "nobody"}, true, "unknown-tenant"},
		{"two tenants from a trusted proxy", []string{"X-Pegel-Tenant", "school-17", "X-Pegel-Tenant", "school-18"}, true, "bad-identity"},
		{"a user with NUL", []string{"X-Pegel-Tenant", "school-17", "X-Pegel-User", "a\x00b"}, true, "tenant=school-17 vouched bad-identity"},
		{"a user of 257 bytes", []string{"X-Pegel-Tenant", "school-17", "X-Pegel-User", strings.Repeat("u", 257)}, true, "tenant=school-17 vouched bad-identity"},
		{"two tenants from a stranger with a key", []string{"X-API-Key", key, "X-Pegel-Tenant", "a", "X-Pegel-Tenant", "b", "X-Pegel-User", "c", "X-Pegel-User", "d"}, false, "tenant=school-17 key"},
		{"a key's user is nobody's word", []string{"X-API-Key", key, "X-Pegel-User", "u42"}, false, "tenant=school-17 key"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			caller := f.Identify(decision.ReadCredentials(header(c.headers...), c.peer), prefix("203.0.113.7"))
			require.Equal(t, c.want, who(caller))
			require.Equal(t, prefix("203.0.113.7"), caller.Address)
		})
	}
}

func TestClientKeyNamesTheKeyInsideAnAuthenticatedTenantOnly(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 10))
	key := f.apiKey(t, 17)
	of := func(pairs ...string) decision.Caller {
		return f.Identify(decision.ReadCredentials(header(pairs...), false), prefix("203.0.113.7"))
	}
	require.Equal(t, "laptop", of("X-API-Key", key, "X-Client-Key", "laptop").Key)
	require.Equal(t, key[4:20], of("X-API-Key", key).Key, "without a name it is the API key itself")
	require.Empty(t, of("X-Client-Key", "laptop").Key)
	require.True(t, func() bool { c := of("X-API-Key", key, "X-Client-Key", "a", "X-Client-Key", "b"); return c.BadIdentity }())
}

// A forged token is worth as much as none, a valid one exempts its own address, an API key leaves what applies to all.
func TestAddressLimitsByIdentity(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 1000))
	everybody := scoped(minute("everybody", 8), ratelimit.ScopeAddress)
	everybody.AppliesTo = tenants.AppliesToAll
	f.policy(scoped(minute("strangers", 5), ratelimit.ScopeAddress), everybody)
	key, edge := f.apiKey(t, 17), f.serviceToken(t, nil)
	plain := f.serviceToken(t, func(s *tenants.ServiceToken) { s.Exempt = nil })

	passed := func(address string, pairs ...string) (n int) {
		for range 20 {
			caller := f.Identify(decision.ReadCredentials(header(pairs...), false), prefix(address))
			d, err := f.Admit(t.Context(), &caller, "GET", "/v1/x")
			if err == nil && d.Verdict != decision.Deny {
				n++
			}
		}
		return n
	}
	require.Equal(t, 5, passed("203.0.113.1"))
	require.Equal(t, 20, passed("203.0.113.2", "X-Pegel-Service-Token", edge))
	require.Equal(t, 5, passed("203.0.113.3", "X-Pegel-Service-Token", forged(t, tenants.KindServiceToken)))
	require.Equal(t, 8, passed("203.0.113.4", "X-API-Key", key))
	require.Equal(t, 8, passed("203.0.113.5", "X-API-Key", key, "X-Pegel-Service-Token", "pgs_forged"))
	require.Equal(t, 8, passed("203.0.113.6", "X-Pegel-Service-Token", plain))
	for _, h := range []string{"X-Internal", "X-Middleware-Subrequest", "X-Pegel-Exempt", "X-Pegel-Internal"} { // B057
		require.Zero(t, passed("203.0.113.1", h, "1"), "%s on an address that is used up", h)
	}
}

func TestWrongAPIKeyIsCountedThenRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 1000))
	f.policy(scoped(minute("strangers", 5), ratelimit.ScopeAddress))
	edge := f.serviceToken(t, nil)
	admit := func(pairs ...string) (*decision.Decision, error) {
		pairs = append(pairs, "X-API-Key", "pgk_wrong")
		caller := f.Identify(decision.ReadCredentials(header(pairs...), false), prefix("203.0.113.1"))
		return f.Admit(t.Context(), &caller, "GET", "/")
	}
	for range 5 {
		_, err := admit()
		require.ErrorIs(t, err, decision.ErrUnauthorized)
		require.True(t, f.recorder.last(t).WrongCredential)
	}
	_, err := admit()
	require.ErrorIs(t, err, decision.ErrUnauthorized, "wrong looks the same when the address has no room left")
	require.Equal(t, "203.0.113.1/32", f.recorder.last(t).Address, "and is counted as refused")
	nobody := f.Identify(decision.Credentials{}, prefix("203.0.113.1"))
	d, err := f.Admit(t.Context(), &nobody, "GET", "/")
	require.NoError(t, err)
	require.Equal(t, decision.Deny, d.Verdict, "the five were charged to the address")

	_, err = admit("X-Pegel-Service-Token", edge)
	require.ErrorIs(t, err, decision.ErrUnauthorized, "a service that forwards its tenants' mistakes is not throttled for them")
}

// B054: ten thousand invented tenants make no counter and charge nobody.
func TestInventedTenantsMakeNoCounters(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 1000))
	f.policy(scoped(minute("strangers", 5), ratelimit.ScopeAddress))
	for i := range 10_000 {
		caller := f.Identify(decision.ReadCredentials(header("X-Pegel-Tenant", time.Duration(i).String(), "X-Client-Key", time.Duration(i).String()), false), prefix("203.0.113.1"))
		_, err := f.Admit(t.Context(), &caller, "GET", "/")
		require.NoError(t, err)
	}
	require.Equal(t, 1, f.store.Len())
}

func TestIsOurs(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]bool{
		"pgk_x": true, "Bearer pgs_x": true, "bearer\tpga_x": true, "Basic dTpw, Bearer pgk_x": true, "Token  pgk_x": true,
		"": false, "Bearer eyJ": false, "xpgk_x": false, "pgx_1": false, "PGK_1": false, "a=pgk_1": false, "pg": false, "p": false,
	} {
		require.Equal(t, want, decision.IsOurs(value), "%q", value)
	}
}
