package decision_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// spoken is a verifier for which "tenant/user" is a token that counts; internal/jwt has its own tests.
type spoken struct{ asked *[]string }

func (s spoken) Verify(token string, _ netip.Prefix, _ time.Time) (tenant, user string, ok bool) {
	*s.asked = append(*s.asked, token)
	return strings.Cut(token, "/")
}

func TestSessionsAndHosts(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 10))
	key := f.apiKey(t, 17)
	edge := f.serviceToken(t, nil)
	identifier := f.serviceToken(t, func(s *tenants.ServiceToken) { s.May = []tenants.Permission{tenants.MayIdentify} })
	hosts, err := decision.NewHostPatterns([]string{"{tenant}.api.example.org"})
	require.NoError(t, err)
	var asked []string
	engine := decision.New(decision.Config{
		Store: f.store, Directory: f.directory, Now: f.clock.now, Tokens: spoken{&asked}, Hosts: hosts,
	})
	const host17, nobodys = "school-17.api.example.org", "www.api.example.org"
	for _, c := range []struct {
		name    string
		host    string
		headers []string
		peer    bool
		want    string
	}{
		{"a session", "", []string{"Authorization", "Bearer school-17/u42"}, false, "tenant=school-17 vouched session user=u42"},
		{"a session, scheme in another case", "", []string{"Authorization", "bearer  school-17/u42 "}, false, "tenant=school-17 vouched session user=u42"},
		{"a session without user", "", []string{"Authorization", "Bearer school-17/"}, false, "tenant=school-17 vouched session"},
		{"a token that does not count", "", []string{"Authorization", "Bearer eyJ"}, false, ""},
		{"a token behind another scheme", "", []string{"Authorization", "Token school-17/u42"}, false, ""},
		{"two tokens", "", []string{"Authorization", "Bearer school-17/u42", "Authorization", "Bearer school-18/u42"}, false, ""},
		{"a tenant that does not exist", "", []string{"Authorization", "Bearer nobody/u42"}, false, ""},
		{"no tenant in the token", "", []string{"Authorization", "Bearer /u42"}, false, ""},
		{"a user that cannot be one", "", []string{"Authorization", "Bearer school-17/" + strings.Repeat("u", 257)}, false, ""},
		{"a session with a key's name", "", []string{"Authorization", "Bearer school-17/u42", "X-Client-Key", "laptop"}, false, "tenant=school-17 vouched session user=u42 named=laptop"},
		{"beside an API key of its tenant", "", []string{"Authorization", "Bearer school-17/u42", "X-API-Key", key}, false, "tenant=school-17 key user=u42"},
		{"beside an API key of another", "", []string{"Authorization", "Bearer school-18/u42", "X-API-Key", key}, false, "tenant=school-17 key"},
		{"beside a wrong API key", host17, []string{"Authorization", "Bearer school-17/u42", "X-API-Key", forged(t, tenants.KindAPIKey)}, false, "wrong-key"},
		{"forwarded by a service", "", []string{"Authorization", "Bearer school-17/u42", "X-Pegel-Service-Token", edge}, false, "tenant=school-17 service vouched session user=u42"},
		{"beside a wrong service token", "", []string{"Authorization", "Bearer school-17/u42", "X-Pegel-Service-Token", forged(t, tenants.KindServiceToken)}, false, "tenant=school-17 vouched session user=u42 wrong-service"},
		{"a believed name comes first", "", []string{"Authorization", "Bearer school-17/u42", "X-Pegel-Service-Token", identifier, "X-Pegel-Tenant", "school-18"}, false, "tenant=school-18 service vouched"},
		{"a stranger's name does not", "", []string{"Authorization", "Bearer school-17/u42", "X-Pegel-Tenant", "school-18"}, false, "tenant=school-17 vouched session user=u42"},
		{"a believed user comes first", "", []string{"Authorization", "Bearer school-17/u42", "X-Pegel-Tenant", "school-17", "X-Pegel-User", "u1"}, true, "tenant=school-17 vouched user=u1"},

		{"a host", host17, nil, false, "tenant=school-17"},
		{"a host that is no tenant's", nobodys, nil, false, ""},
		{"a host and a key's name (B054)", host17, []string{"X-Client-Key", "laptop"}, false, "tenant=school-17"},
		{"a host beside an API key", "school-18.api.example.org", []string{"X-API-Key", key}, false, "tenant=school-17 key"},
		{"a host beside a session", "school-18.api.example.org", []string{"Authorization", "Bearer school-17/u42"}, false, "tenant=school-17 vouched session user=u42"},
		{"a host beside a session of nobody's", host17, []string{"Authorization", "Bearer nobody/u42"}, false, ""},
		{"a host and who its user is", host17, []string{"Authorization", "Bearer /u42"}, false, "tenant=school-17 user=u42"},
		{"a host beside a believed name that is wrong", host17, []string{"X-Pegel-Tenant", "nobody"}, true, "unknown-tenant"},
		{"a host beside a service", host17, []string{"Authorization", "Bearer " + edge}, false, "tenant=school-17 service"},
	} {
		credentials := decision.ReadCredentials(header(c.headers...), c.peer)
		credentials.Host = c.host
		caller := engine.Identify(credentials, prefix("203.0.113.7"))
		got := who(caller)
		if caller.Session {
			got = strings.Replace(got, "vouched", "vouched session", 1)
		}
		if caller.Key != "" && caller.APIKey == nil {
			got += " named=" + caller.Key
		}
		require.Equal(t, c.want, got, c.name)
	}
	for _, token := range asked {
		require.False(t, decision.IsOurs(token), "a credential of ours is no token of the application's")
	}
}

// A session is held to its tenant's limits like an API key; a host proves nothing, so its caller stays a stranger to the address
// policy, and the tenant pays all the same.
func TestWhatASessionAndAHostArePaidFrom(t *testing.T) {
	t.Parallel()
	f := newFixture(t, minute("m", 5), scoped(minute("each", 2), ratelimit.ScopeUser))
	f.policy(scoped(minute("strangers", 3), ratelimit.ScopeAddress))
	hosts, err := decision.NewHostPatterns([]string{"{tenant}.api.example.org"})
	require.NoError(t, err)
	var asked []string
	engine := decision.New(decision.Config{Store: f.store, Directory: f.directory, Now: f.clock.now, Tokens: spoken{&asked}, Hosts: hosts})
	passes := func(host string, pairs ...string) bool {
		credentials := decision.ReadCredentials(header(pairs...), false)
		credentials.Host = host
		caller := engine.Identify(credentials, prefix("203.0.113.7"))
		d, err := engine.Admit(context.Background(), &caller, "GET", "/")
		require.NoError(t, err)
		return d.Verdict != decision.Deny
	}
	require.True(t, passes("", "Authorization", "Bearer school-17/u1"))
	require.True(t, passes("", "Authorization", "Bearer school-17/u1"))
	require.False(t, passes("", "Authorization", "Bearer school-17/u1"), "the user's limit")
	require.True(t, passes("", "Authorization", "Bearer school-17/u2"))
	require.True(t, passes("school-17.api.example.org"))
	require.True(t, passes("school-17.api.example.org"))
	require.False(t, passes("school-17.api.example.org"), "the tenant's limit of five")
	require.False(t, passes(""), "three of one address have named a host")
}
