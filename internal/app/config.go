package app

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/pegel-dev/pegel/internal/decision"
)

// Config is every setting, checked. Get one from Load; New refuses what Load would have refused between settings.
type Config struct {
	// Listeners, as host:port. ProxyListen is empty when the proxy is off.
	Listen, AdminListen, ProxyListen string
	ProxyUpstream                    *url.URL // nil: off
	// RLSListen is host:port or unix:/path; empty: off. RLSDomain is the domain that limits hold in.
	RLSListen, RLSDomain string
	// TLS on all listeners when both are set.
	TLSCertFile, TLSKeyFile string

	DatabaseURL             Secret
	DatabasePoolSize        int // each of the two pools, ≥ 4
	DatabaseDecisionTimeout time.Duration

	// RedisURL in any of the forms of redisstore.Config; empty: Postgres is the primary store.
	RedisURL      Secret
	RedisPoolSize int
	RedisTimeout  time.Duration

	AdminToken           Secret // bootstrap administrator; empty: none
	TrustedProxies       []netip.Prefix
	ClientIPHeader       string
	TrustIdentityHeaders bool
	IPv6Prefix           int // bits
	Mode                 string

	// Sessions of the application: none count without a key set. TenantHosts is empty when no host names a tenant.
	JWKSFile, JWKSURL            string
	JWTIssuer, JWTAudience       string
	JWTTenantClaim, JWTUserClaim string
	TenantHosts                  decision.HostPatterns

	// Bounds on WebSockets through the proxy, per replica.
	WebSocketsPerTenant, WebSocketsTotal int
	WebSocketLifetime                    time.Duration

	// HeldPerTenant and HeldTotal cap the requests held in slow-down, per replica.
	HeldPerTenant, HeldTotal int

	// TrustTokensFor is how long service and admin tokens count without confirmation by Postgres.
	TrustTokensFor time.Duration

	DrainPause, DrainTimeout time.Duration

	// What is kept of decisions: see journalSettings.
	RequestLogRetention time.Duration
	RequestLogAnonymous string // a tenants.RequestLog
	SampleAllowed       int    // 0: none

	LogLevel  slog.Level
	LogFormat string // "json", "text", or empty: by the output

	// Alerts. Without SMTPURL nobody is mailed, without AlertWebhookURL nothing is posted; incidents are kept all the same.
	SMTPURL               Secret
	MailFrom, AlertTo     []string
	AlertTenantContact    bool
	AlertReminder         time.Duration // 0: none
	AlertWebhookURL       Secret
	AlertWebhookSecret    Secret
	AlertWebhookAllowHTTP bool
	DashboardURL          string // without a slash at its end; empty: not known

	// Origins says where each setting's value comes from, by its Env: "flag", "env", the file's path or "default".
	Origins map[string]string

	// TracingProtocol is how traces are exported: "grpc" or "http/protobuf"; empty: they are off. The rest of OTEL_* is the exporter's.
	TracingProtocol string

	// How long usage is kept in steps of minutes, hours and days.
	UsageMinutesRetention, UsageHoursRetention, UsageDaysRetention time.Duration

	values map[string]string // as text, of the settings that are not secret
}

// Bounds of the settings.
const (
	minAdminToken    = 32 // characters
	maxRecipients    = 50
	minTrust         = time.Minute
	maxTrust         = 30 * 24 * time.Hour
	minDrainTimeout  = time.Second
	maxDrain         = 5 * time.Minute
	minStoreTimeout  = 5 * time.Millisecond
	maxStoreTimeout  = 10 * time.Second
	maxSecretFile    = 64 << 10 // bytes
	maxConfigFile    = 1 << 20  // bytes
	redactedSecret   = "•••"
	sourceDefault    = "default"
	sourceEnv        = "env"
	sourceFlag       = "flag"
	databaseSetting  = "PEGEL_DATABASE_URL"
	proxySetting     = "PEGEL_PROXY_LISTEN"
	upstreamSetting  = "PEGEL_PROXY_UPSTREAM"
	certSetting      = "PEGEL_TLS_CERT_FILE"
	keySetting       = "PEGEL_TLS_KEY_FILE"
	listenSetting    = "PEGEL_LISTEN"
	rlsSetting       = "PEGEL_RLS_LISTEN"
	adminSetting     = "PEGEL_ADMIN_LISTEN"
	heldSetting      = "PEGEL_HELD_PER_TENANT"
	trustedSetting   = "PEGEL_TRUSTED_PROXIES"
	identitySetting  = "PEGEL_TRUST_IDENTITY_HEADERS"
	heldTotalSetting = "PEGEL_HELD_TOTAL"
)

// Secret is a value that no log, error or print shows.
type Secret string

// String hides the value.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redactedSecret
}

// GoString hides the value from %#v.
func (s Secret) GoString() string { return s.String() }

// LogValue hides the value from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText hides the value from encoders.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// SettingError is a setting that stops the start: one line that names it and never holds a value of a secret.
type SettingError struct {
	Name   string
	Reason string
}

func (e *SettingError) Error() string { return e.Name + ": " + e.Reason }

func settingErrorf(name, format string, args ...any) error {
	return &SettingError{Name: name, Reason: fmt.Sprintf(format, args...)}
}

// ErrNoDatabase is a configuration that names no Postgres.
var ErrNoDatabase = &SettingError{
	Name:   databaseSetting,
	Reason: "is required (or start `pegel dev`, which brings its own Postgres and Redis)",
}

// Validate checks what no setting can check alone, certificate files included.
func (c *Config) Validate() error {
	if c.DatabaseURL == "" {
		return ErrNoDatabase
	}
	for _, check := range []func() error{c.checkProxy, c.checkListeners, c.checkTLS, c.checkTrust, c.checkIdentity, c.checkAlerts} {
		if err := check(); err != nil {
			return err
		}
	}
	if c.HeldPerTenant > c.HeldTotal {
		return settingErrorf(heldSetting, "%d is more than %s (%d)", c.HeldPerTenant, heldTotalSetting, c.HeldTotal)
	}
	return nil
}

func (c *Config) checkProxy() error {
	switch {
	case c.ProxyListen != "" && c.ProxyUpstream == nil:
		return settingErrorf(upstreamSetting, "is required with %s", proxySetting)
	case c.ProxyListen == "" && c.ProxyUpstream != nil:
		return settingErrorf(proxySetting, "is required with %s", upstreamSetting)
	}
	return nil
}

// checkListeners finds two listeners that want one address.
func (c *Config) checkListeners() error {
	type listener struct{ name, host, port string }
	var seen []listener
	for _, l := range []struct{ name, addr string }{
		{listenSetting, c.Listen},
		{adminSetting, c.AdminListen},
		{proxySetting, c.ProxyListen},
		{rlsSetting, c.RLSListen},
	} {
		if l.addr == "" || strings.HasPrefix(l.addr, unixPrefix) {
			continue
		}
		host, port, err := net.SplitHostPort(l.addr)
		if err != nil {
			return settingErrorf(l.name, "is not host:port")
		}
		if port == "0" { // the system chooses: never the same
			continue
		}
		for _, other := range seen {
			if port == other.port && (host == other.host || anyAddress(host) || anyAddress(other.host)) {
				return settingErrorf(l.name, "%s is already taken by %s", l.addr, other.name)
			}
		}
		seen = append(seen, listener{l.name, host, port})
	}
	return nil
}

func anyAddress(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }

func (c *Config) checkTLS() error {
	switch {
	case c.TLSCertFile == "" && c.TLSKeyFile == "":
		return nil
	case c.TLSKeyFile == "":
		return settingErrorf(keySetting, "is required with %s", certSetting)
	case c.TLSCertFile == "":
		return settingErrorf(certSetting, "is required with %s", keySetting)
	}
	if _, err := tls.LoadX509KeyPair(c.TLSCertFile, c.TLSKeyFile); err != nil {
		return settingErrorf(certSetting, "the pair with %s cannot be used: %v", keySetting, err)
	}
	return nil
}

func (c *Config) checkTrust() error {
	if c.TrustIdentityHeaders && len(c.TrustedProxies) == 0 {
		return settingErrorf(trustedSetting, "is required with %s: there is nobody to believe", identitySetting)
	}
	return nil
}
