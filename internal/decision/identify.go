package decision

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// The headers that say who is asking.
const (
	HeaderAPIKey       = "X-Api-Key"             //nolint:gosec // a header's name (X-API-Key in its canonical spelling), no secret
	HeaderServiceToken = "X-Pegel-Service-Token" //nolint:gosec // a header's name, no secret
	HeaderTenant       = "X-Pegel-Tenant"
	HeaderUser         = "X-Pegel-User"
	HeaderClientKey    = "X-Client-Key"
)

// ReadCredentials collects what a request presents. identityPeer: the peer is a trusted proxy and
// PEGEL_TRUST_IDENTITY_HEADERS is on.
func ReadCredentials(h http.Header, identityPeer bool) Credentials {
	c := Credentials{
		Authorization: h["Authorization"],
		APIKey:        h[HeaderAPIKey],
		ServiceToken:  h[HeaderServiceToken],
		IdentityPeer:  identityPeer,
	}
	for _, field := range [...]struct {
		name string
		into *string
	}{{HeaderTenant, &c.Tenant}, {HeaderUser, &c.User}, {HeaderClientKey, &c.ClientKey}} {
		switch lines := h[field.name]; len(lines) {
		case 0:
		case 1:
			*field.into = lines[0]
		default:
			*field.into = lines[0]
			if field.name == HeaderClientKey {
				c.SeveralKeys = true
			} else {
				c.MultipleValues = true
			}
		}
	}
	return c
}

// Presented reports whether any credential of ours came with the request, valid or not.
func (c *Credentials) Presented() bool {
	keys, services, _ := c.ours()
	return len(keys)+len(services) > 0
}

// ours sorts the values that claim to be ours by what they were presented as. ambiguous: several Authorization lines, one
// of them ours. Values that are not ours are left to the upstream.
func (c *Credentials) ours() (keys, services []string, ambiguous bool) {
	for _, line := range c.Authorization {
		value, isOurs := oursIn(line)
		if !isOurs {
			continue
		}
		ambiguous = ambiguous || len(c.Authorization) > 1
		if strings.HasPrefix(value, string(tenants.KindServiceToken)+"_") {
			services = append(services, value)
		} else { // an API key, or an admin token, which opens nothing here
			keys = append(keys, value)
		}
	}
	for _, line := range c.APIKey {
		if value := strings.TrimSpace(line); tenants.IsCredential(value) {
			keys = append(keys, value)
		}
	}
	for _, line := range c.ServiceToken { // a header of ours: whatever it holds was meant as a service token
		if value := strings.TrimSpace(line); value != "" {
			services = append(services, value)
		}
	}
	return keys, services, ambiguous
}

// oursIn finds our credential in an Authorization value: `Bearer pgx_…`, the scheme in any case. One that stands there in any
// other way comes back with a mark that makes it malformed: it was meant for us and is wrong, and not somebody else's.
func oursIn(line string) (value string, isOurs bool) {
	line = strings.TrimSpace(line)
	if scheme, rest, _ := strings.Cut(line, " "); strings.EqualFold(scheme, "Bearer") {
		if rest = strings.TrimSpace(rest); tenants.IsCredential(rest) {
			return rest, true
		}
	}
	if at := credentialAt(line); at >= 0 {
		return line[at:] + " ", true
	}
	return "", false
}

// IsOurs reports whether a header value carries a credential of ours: one of its words, between white space or commas, starts
// with pgk_, pgs_ or pga_. Such a value never reaches an upstream.
func IsOurs(value string) bool { return credentialAt(value) >= 0 }

// credentialAt is where in a header value a credential of ours starts, -1 for nowhere.
func credentialAt(value string) int {
	for from := 0; ; {
		i := strings.Index(value[from:], "pg")
		if i < 0 {
			return -1
		}
		at := from + i
		if (at == 0 || strings.IndexByte(" \t,", value[at-1]) >= 0) && tenants.IsCredential(value[at:]) {
			return at
		}
		from = at + 2
	}
}

// Identify says who is asking. Every way in which a credential can be wrong gives the same answer, and none costs a
// look-up outside this process. addr is the caller's own address (AddressResolver.Resolve).
func (e *Engine) Identify(c Credentials, addr netip.Prefix) Caller {
	caller := Caller{Address: addr}
	snapshot, now := e.directory.Snapshot(), e.now()
	keys, services, ambiguous := c.ours()

	if len(services) > 0 {
		credential, err := tenants.ParseCredential(services[0])
		if err == nil && len(services) == 1 && !ambiguous {
			caller.Service, _ = snapshot.VerifyServiceToken(credential, now)
		}
		caller.WrongService = caller.Service == nil
		if caller.Service != nil {
			e.used(tenants.KindServiceToken, caller.Service.ID, now)
		}
	}
	if len(keys) > 0 {
		credential, err := tenants.ParseCredential(keys[0])
		if err == nil && len(keys) == 1 && !ambiguous {
			if key, ok := snapshot.VerifyAPIKey(credential, now); ok {
				caller.Tenant, ok = snapshot.TenantByID(key.TenantID)
				if ok {
					caller.APIKey = key
				}
			}
		}
		caller.WrongAPIKey = caller.APIKey == nil
		if caller.APIKey != nil {
			e.used(tenants.KindAPIKey, caller.APIKey.ID, now)
		}
	}
	if caller.WrongAPIKey {
		return caller
	}
	caller.name(&c, snapshot)
	spoken, _ := e.session(&c, addr, now)
	caller.applySession(spoken, snapshot)
	caller.applyHost(e.hosts.Tenant(c.Host), spoken, snapshot)
	caller.nameKey(&c)
	return caller
}

// name applies the identity headers, as far as the caller is believed.
func (c *Caller) name(creds *Credentials, snapshot *tenants.Snapshot) {
	believed := creds.IdentityPeer || c.May(tenants.MayIdentify)
	if believed && creds.MultipleValues {
		c.BadIdentity = true
		return
	}
	if believed && creds.Tenant != "" && c.Tenant == nil { // an API key proves more than a name does
		var found bool
		c.Tenant, found = snapshot.Tenant(creds.Tenant)
		c.Vouched, c.UnknownTenant = found, !found
	}
	if believed && creds.User != "" && c.Tenant != nil {
		c.User = creds.User
	}
}

// nameKey names the key inside a tenant that somebody has proven or vouched for, and checks the names.
func (c *Caller) nameKey(creds *Credentials) {
	if c.Tenant == nil || c.BadIdentity || c.APIKey == nil && !c.Vouched {
		return
	}
	switch {
	case creds.SeveralKeys:
		c.BadIdentity = true
	case creds.ClientKey != "":
		c.Key = creds.ClientKey
	case c.APIKey != nil:
		c.Key = c.APIKey.ID
	}
	if c.User != "" && !tenants.ValidIdentifier(c.User) || c.Key != "" && !tenants.ValidIdentifier(c.Key) {
		c.BadIdentity, c.User, c.Key = true, "", ""
	}
}

// May reports whether the caller holds a valid service token with the permission.
func (c *Caller) May(p tenants.Permission) bool {
	return c.Service != nil && slices.Contains(c.Service.May, p)
}

// Wrong reports whether a credential of ours was presented that is not valid.
func (c *Caller) Wrong() bool { return c.WrongAPIKey || c.WrongService }

// Standing is what the caller's own address is held to.
func (c *Caller) Standing() Standing {
	return standing(exemption{
		own:           true,
		serviceValid:  c.Service != nil,
		serviceExempt: c.Service != nil && slices.Contains(c.Service.Exempt, ratelimit.ScopeAddress),
		keyValid:      c.APIKey != nil,
		keyWrong:      c.WrongAPIKey,
		vouched:       c.Vouched,
	})
}

// NamedStanding is what an address is held to that a service names as its client's, together with a user or key or
// without (/v1/check).
func NamedStanding(user, key string) Standing {
	return standing(exemption{named: user != "" || key != ""})
}

// Hit is the caller's own request as a hit of cost 1: ping, status without arguments, forward-auth and the proxy.
func (c *Caller) Hit(method, path string) Hit {
	h := Hit{
		Tenant: c.Tenant, User: c.User, Key: c.Key, Address: c.Address, Own: true, Standing: c.Standing(),
		Method: method, Path: path, Cost: 1, WrongCredential: c.Wrong(), Door: c.Door,
	}
	if c.Service != nil {
		h.Service = c.Service.Name
	}
	return h
}
