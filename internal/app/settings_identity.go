package app

import (
	"errors"
	"os"
	"strings"
	"time"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/jwt"
)

// Names of the settings of sessions that are checked against each other.
const (
	jwksFileSetting   = "PEGEL_JWT_JWKS_FILE"
	jwksURLSetting    = "PEGEL_JWT_JWKS_URL"
	jwtIssuerSetting  = "PEGEL_JWT_ISSUER"
	socketsSetting    = "PEGEL_WEBSOCKETS_PER_TENANT"
	allSocketsSetting = "PEGEL_WEBSOCKETS_TOTAL"

	maxClaim          = 256 // characters
	minSocketLifetime = time.Second
	maxSocketLifetime = 30 * 24 * time.Hour
)

// identitySettings say who is asking when no credential of ours does.
func identitySettings() []Setting {
	return []Setting{
		{
			Env: jwksFileSetting, Kind: "path",
			Help:  "public keys (JWKS) that verify your application's own tokens (JWT); read again when it changes",
			parse: func(c *Config, v string) error { c.JWKSFile = v; return nil },
		},
		{
			Env: jwksURLSetting, Kind: "https URL",
			Help:  "the same, from a URL: read every 5 min and when a token names an unknown key; the last keys hold while it is away",
			parse: func(c *Config, v string) error { c.JWKSURL = v; return jwt.CheckURL(v) },
		},
		{
			Env: jwtIssuerSetting, Kind: "text",
			Help:  "what a token's iss must be; required with a key set",
			parse: func(c *Config, v string) error { return claim(&c.JWTIssuer, v) },
		},
		{
			Env: "PEGEL_JWT_AUDIENCE", Kind: "text",
			Help:  "what a token's aud must hold; empty: any",
			parse: func(c *Config, v string) error { return claim(&c.JWTAudience, v) },
		},
		{
			Env: "PEGEL_JWT_TENANT_CLAIM", Default: "tenant", Kind: "claim",
			Help:  "the claim that holds the tenant's slug; a.b is b within a",
			parse: func(c *Config, v string) error { return claim(&c.JWTTenantClaim, v) },
		},
		{
			Env: "PEGEL_JWT_USER_CLAIM", Default: "sub", Kind: "claim",
			Help:  "the claim that holds the user",
			parse: func(c *Config, v string) error { return claim(&c.JWTUserClaim, v) },
		},
		{
			Env: "PEGEL_TENANT_HOSTS", Kind: "host patterns, comma-separated",
			Help:  "{tenant}.api.example.org: who pays by the host name, when nobody has said who asks; it proves nothing",
			parse: func(c *Config, v string) error { return hostPatterns(&c.TenantHosts, v) },
		},
		{
			Env: socketsSetting, Default: "1000", Kind: "connections, 1…1000000",
			Help:  "most WebSockets of one tenant open through the proxy at one time, per replica; beyond it 429",
			parse: func(c *Config, v string) error { return integer(&c.WebSocketsPerTenant, v, 1, 1_000_000) },
		},
		{
			Env: allSocketsSetting, Default: "10000", Kind: "connections, 1…1000000",
			Help:  "most WebSockets open at one time in all, per replica",
			parse: func(c *Config, v string) error { return integer(&c.WebSocketsTotal, v, 1, 1_000_000) },
		},
		{
			Env: "PEGEL_WEBSOCKET_LIFETIME", Default: "24h", Kind: "duration, 1s…720h",
			Help: "how long a WebSocket may be open before it is cut",
			parse: func(c *Config, v string) error {
				return duration(&c.WebSocketLifetime, v, minSocketLifetime, maxSocketLifetime)
			},
		},
	}
}

func claim(dst *string, v string) error {
	if len(v) > maxClaim {
		return errors.New("is longer than 256 characters")
	}
	*dst = v
	return nil
}

func hostPatterns(dst *decision.HostPatterns, v string) error {
	var patterns []string
	for part := range strings.SplitSeq(v, ",") {
		if part = strings.TrimSpace(part); part != "" {
			patterns = append(patterns, part)
		}
	}
	all, err := decision.NewHostPatterns(patterns)
	*dst = all
	return err
}

// checkIdentity checks what belongs together. A key file that is not there is found now; a URL may be away.
func (c *Config) checkIdentity() error {
	switch {
	case c.JWKSFile != "" && c.JWKSURL != "":
		return settingErrorf(jwksURLSetting, "and %s are both set; keep one", jwksFileSetting)
	case (c.JWKSFile != "" || c.JWKSURL != "") && c.JWTIssuer == "":
		return settingErrorf(jwtIssuerSetting, "is required with %s or %s", jwksFileSetting, jwksURLSetting)
	case c.JWTIssuer != "" && c.JWKSFile == "" && c.JWKSURL == "":
		return settingErrorf(jwksURLSetting, "or %s is required with %s: nothing verifies a token", jwksFileSetting, jwtIssuerSetting)
	case c.WebSocketsPerTenant > c.WebSocketsTotal:
		return settingErrorf(socketsSetting, "%d is more than %s (%d)", c.WebSocketsPerTenant, allSocketsSetting, c.WebSocketsTotal)
	}
	if c.JWKSFile != "" {
		if _, err := os.Stat(c.JWKSFile); err != nil {
			return settingErrorf(jwksFileSetting, "%v", err)
		}
	}
	return nil
}
