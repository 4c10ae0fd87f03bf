package app

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pegel-dev/pegel/internal/envoyrls"
)

// Setting is one line of the settings table: what `pegel config check` and --help show.
type Setting struct {
	// Env is the environment variable and the key in the file; the flag is the same name (see Flag).
	Env string
	// Default as text; empty: none.
	Default string
	// Unit and bounds, as --help shows them.
	Kind string
	Help string
	// Secret values are never shown. A *_FILE variant of the name reads the value from a file.
	Secret bool

	parse func(c *Config, value string) error
}

// Flag is the setting's name on the command line.
func (s *Setting) Flag() string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(s.Env, envPrefix), "_", "-"))
}

const (
	envPrefix  = "PEGEL_"
	fileSuffix = "_FILE"
)

// Settings is the whole table, in the order --help shows it. It is a copy.
func Settings() []Setting {
	return slices.Concat(listenerSettings(), storeSettings(), serviceSettings(), identitySettings(), journalSettings(), usageSettings(), alertSettings())
}

func listenerSettings() []Setting {
	return []Setting{
		{
			Env: "PEGEL_LISTEN", Default: "127.0.0.1:8080", Kind: "host:port",
			Help:  "public listener: /v1, /authz, /openapi.yaml, /docs, health",
			parse: func(c *Config, v string) error { return listenAddress(&c.Listen, v) },
		},
		{
			Env: "PEGEL_ADMIN_LISTEN", Default: "127.0.0.1:8081", Kind: "host:port",
			Help:  "admin listener: /admin, /dashboard, /metrics (no credential: keep it private), health",
			parse: func(c *Config, v string) error { return listenAddress(&c.AdminListen, v) },
		},
		{
			Env: "PEGEL_PROXY_LISTEN", Kind: "host:port",
			Help:  "reverse proxy listener; needs PEGEL_PROXY_UPSTREAM",
			parse: func(c *Config, v string) error { return listenAddress(&c.ProxyListen, v) },
		},
		{
			Env: "PEGEL_PROXY_UPSTREAM", Kind: "http(s) URL",
			Help:  "where the reverse proxy forwards what it lets through",
			parse: func(c *Config, v string) error { return upstreamURL(&c.ProxyUpstream, v) },
		},
		{
			Env: "PEGEL_RLS_LISTEN", Kind: "host:port or unix:/path",
			Help:  "Envoy rate-limit gRPC listener; a loopback address or a socket needs no token",
			parse: func(c *Config, v string) error { return listenAddressOrSocket(&c.RLSListen, v) },
		},
		{
			Env: "PEGEL_RLS_DOMAIN", Default: envoyrls.DefaultDomain, Kind: "text",
			Help:  "the domain of Envoy's rate-limit filter that limits hold in; calls for another are let through and counted",
			parse: func(c *Config, v string) error { return rlsDomain(&c.RLSDomain, v) },
		},
		{
			Env: "PEGEL_TLS_CERT_FILE", Kind: "path",
			Help:  "PEM certificate chain: TLS on all listeners; read again when it changes",
			parse: func(c *Config, v string) error { c.TLSCertFile = v; return nil },
		},
		{
			Env: "PEGEL_TLS_KEY_FILE", Kind: "path",
			Help:  "PEM private key of PEGEL_TLS_CERT_FILE",
			parse: func(c *Config, v string) error { c.TLSKeyFile = v; return nil },
		},
	}
}

func storeSettings() []Setting {
	return []Setting{
		{
			Env: "PEGEL_DATABASE_URL", Kind: "postgres:// URL", Secret: true,
			Help:  "Postgres: configuration, audit log, fallback counters; required",
			parse: func(c *Config, v string) error { return databaseURL(&c.DatabaseURL, v) },
		},
		{
			Env: "PEGEL_DATABASE_POOL_SIZE", Default: "16", Kind: "connections, 4…1000",
			Help:  "most connections each of the two pools (configuration, decisions) holds; 4 of the latter are kept warm",
			parse: func(c *Config, v string) error { return integer(&c.DatabasePoolSize, v, 4, 1000) },
		},
		{
			Env: "PEGEL_DATABASE_DECISION_TIMEOUT", Default: "150ms", Kind: "duration, 5ms…10s",
			Help:  "hard deadline of one decision in Postgres, waiting for a connection included",
			parse: func(c *Config, v string) error { return storeTimeout(&c.DatabaseDecisionTimeout, v) },
		},
		{
			Env: "PEGEL_REDIS_URL", Kind: "redis(s):// URL", Secret: true,
			Help:  "counters; empty: Postgres is the primary store; several, comma-separated: a cluster; Sentinel: redis+sentinel://host:26379,…/master",
			parse: func(c *Config, v string) error { return redisURL(&c.RedisURL, v) },
		},
		{
			Env: "PEGEL_REDIS_POOL_SIZE", Default: "100", Kind: "connections, 1…10000",
			Help:  "most connections to each Redis node",
			parse: func(c *Config, v string) error { return integer(&c.RedisPoolSize, v, 1, 10_000) },
		},
		{
			Env: "PEGEL_REDIS_TIMEOUT", Default: "50ms", Kind: "duration, 5ms…10s",
			Help:  "hard deadline of one decision in Redis, waiting for a connection and dialling included",
			parse: func(c *Config, v string) error { return storeTimeout(&c.RedisTimeout, v) },
		},
	}
}

func serviceSettings() []Setting {
	return []Setting{
		{
			Env: "PEGEL_ADMIN_TOKEN", Kind: fmt.Sprintf("text, at least %d characters", minAdminToken), Secret: true,
			Help:  "bootstrap administrator (role admin); `pegel admin-token create` makes the first one without it",
			parse: func(c *Config, v string) error { return adminToken(&c.AdminToken, v) },
		},
		{
			Env: "PEGEL_TRUSTED_PROXIES", Kind: "CIDRs, comma-separated",
			Help:  "peers whose forwarding facts are believed",
			parse: func(c *Config, v string) error { return networks(&c.TrustedProxies, v) },
		},
		{
			Env: "PEGEL_CLIENT_IP_HEADER", Default: "X-Forwarded-For", Kind: "header name",
			Help:  "the one header that a trusted proxy names the client in; all others are ignored",
			parse: func(c *Config, v string) error { return headerName(&c.ClientIPHeader, v) },
		},
		{
			Env: "PEGEL_TRUST_IDENTITY_HEADERS", Default: "false", Kind: "true or false",
			Help:  "believe X-Pegel-Tenant and X-Pegel-User from trusted proxies",
			parse: func(c *Config, v string) error { return boolean(&c.TrustIdentityHeaders, v) },
		},
		{
			Env: "PEGEL_IPV6_PREFIX", Default: "64", Kind: "bits, 16…128",
			Help:  "IPv6 addresses are grouped by their first so many bits",
			parse: func(c *Config, v string) error { return integer(&c.IPv6Prefix, v, 16, 128) },
		},
		{
			Env: "PEGEL_MODE", Default: "enforce", Kind: "enforce or shadow",
			Help:  "shadow: decide and record everything, refuse and delay nothing",
			parse: func(c *Config, v string) error { return oneOf(&c.Mode, v, "enforce", "shadow") },
		},
		{
			Env: "PEGEL_HELD_PER_TENANT", Default: "500", Kind: "requests, 1…1000000",
			Help:  "most requests of one tenant held in slow-down at one time, per replica; beyond it 429",
			parse: func(c *Config, v string) error { return integer(&c.HeldPerTenant, v, 1, 1_000_000) },
		},
		{
			Env: "PEGEL_HELD_TOTAL", Default: "5000", Kind: "requests, 1…1000000",
			Help:  "most requests held at one time in all, per replica",
			parse: func(c *Config, v string) error { return integer(&c.HeldTotal, v, 1, 1_000_000) },
		},
		{
			Env: "PEGEL_TRUST_TOKENS_FOR", Default: "24h", Kind: "duration, 1m…720h",
			Help:  "while Postgres is away: how long service and admin tokens count that it cannot confirm; PEGEL_ADMIN_TOKEN and API keys always do",
			parse: func(c *Config, v string) error { return duration(&c.TrustTokensFor, v, minTrust, maxTrust) },
		},
		{
			Env: "PEGEL_DRAIN_PAUSE", Default: "3s", Kind: "duration, 0s…5m",
			Help:  "after SIGTERM: how long /readyz says 503 before the listeners close, so that balancers notice",
			parse: func(c *Config, v string) error { return duration(&c.DrainPause, v, 0, maxDrain) },
		},
		{
			Env: "PEGEL_DRAIN_TIMEOUT", Default: "20s", Kind: "duration, 1s…5m",
			Help:  "after that pause: how long requests in flight may take to finish before they are cut",
			parse: func(c *Config, v string) error { return duration(&c.DrainTimeout, v, minDrainTimeout, maxDrain) },
		},
		{
			Env: "PEGEL_LOG_LEVEL", Default: "info", Kind: "debug, info, warn or error",
			Help:  "least level that is logged",
			parse: func(c *Config, v string) error { return logLevel(&c.LogLevel, v) },
		},
		{
			Env: "PEGEL_LOG_FORMAT", Kind: "json or text",
			Help:  "default: text on a terminal, otherwise json",
			parse: func(c *Config, v string) error { return oneOf(&c.LogFormat, v, "json", "text") },
		},
	}
}
