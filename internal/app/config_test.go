package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const testDatabase = "postgres://pegel:secret@127.0.0.1:5432/pegel"

func load(t *testing.T, env ...string) (*Config, error) {
	t.Helper()
	return Load(Sources{Env: append([]string{"PEGEL_DATABASE_URL=" + testDatabase, "PATH=/bin"}, env...)})
}

func TestDefaultsAreTheContracts(t *testing.T) {
	t.Parallel()
	c, err := load(t)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:8080", c.Listen)
	require.Equal(t, "127.0.0.1:8081", c.AdminListen)
	require.Empty(t, c.ProxyListen)
	require.Empty(t, c.RedisURL)
	require.Equal(t, 100, c.RedisPoolSize)
	require.Equal(t, 16, c.DatabasePoolSize)
	require.Equal(t, 50*time.Millisecond, c.RedisTimeout)
	require.Equal(t, 150*time.Millisecond, c.DatabaseDecisionTimeout)
	require.Equal(t, 500, c.HeldPerTenant)
	require.Equal(t, 5000, c.HeldTotal)
	require.Empty(t, c.AdminToken)
	require.Empty(t, c.TrustedProxies)
	require.Equal(t, "X-Forwarded-For", c.ClientIPHeader)
	require.False(t, c.TrustIdentityHeaders)
	require.Equal(t, 64, c.IPv6Prefix)
	require.Equal(t, "enforce", c.Mode)
	require.Equal(t, slog.LevelInfo, c.LogLevel)
}

func TestFlagsBeatEnvBeatsFileBeatsDefaults(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "pegel.yaml", `
PEGEL_DATABASE_URL: `+testDatabase+`
listen: 127.0.0.1:1001
admin-listen: 127.0.0.1:1002
PEGEL_IPV6_PREFIX: 56
trust_identity_headers: true
trusted_proxies: [10.0.0.0/8, "fd00::/8", 192.0.2.1]
`)
	c, err := Load(Sources{
		File:  file,
		Env:   []string{"PEGEL_ADMIN_LISTEN=127.0.0.1:2002", "PEGEL_IPV6_PREFIX=48", "PEGEL_MODE="},
		Flags: map[string]string{"PEGEL_IPV6_PREFIX": "32"},
	})
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:1001", c.Listen)
	require.Equal(t, "127.0.0.1:2002", c.AdminListen)
	require.Equal(t, 32, c.IPv6Prefix)
	require.Equal(t, "enforce", c.Mode, "set to nothing is not set")
	require.True(t, c.TrustIdentityHeaders)
	require.Equal(t, []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("192.0.2.1/32"),
	}, c.TrustedProxies)
	require.Equal(t, map[string]string{"PEGEL_LISTEN": file, "PEGEL_ADMIN_LISTEN": "env", "PEGEL_IPV6_PREFIX": "flag", "PEGEL_MODE": "default"}, map[string]string{
		"PEGEL_LISTEN": c.Origins["PEGEL_LISTEN"], "PEGEL_ADMIN_LISTEN": c.Origins["PEGEL_ADMIN_LISTEN"],
		"PEGEL_IPV6_PREFIX": c.Origins["PEGEL_IPV6_PREFIX"], "PEGEL_MODE": c.Origins["PEGEL_MODE"],
	})
}

func TestSecretsFromFiles(t *testing.T) {
	t.Parallel()
	token := strings.Repeat("t", 32)
	c, err := Load(Sources{Env: []string{
		"PEGEL_DATABASE_URL_FILE=" + writeFile(t, "db", testDatabase+"\n"),
		"PEGEL_ADMIN_TOKEN_FILE=" + writeFile(t, "token", token+"\r\n"),
	}})
	require.NoError(t, err)
	require.Equal(t, testDatabase, string(c.DatabaseURL))
	require.Equal(t, token, string(c.AdminToken))

	for env, want := range map[string]string{
		"PEGEL_ADMIN_TOKEN_FILE=" + filepath.Join(t.TempDir(), "absent"):                   "PEGEL_ADMIN_TOKEN_FILE: read the file",
		"PEGEL_ADMIN_TOKEN_FILE=" + writeFile(t, "empty", "\n"):                            "PEGEL_ADMIN_TOKEN_FILE: ",
		"PEGEL_ADMIN_TOKEN_FILE=" + writeFile(t, "big", strings.Repeat("x", 65<<10)):       "PEGEL_ADMIN_TOKEN_FILE: ",
		"PEGEL_DATABASE_URL_FILE=" + writeFile(t, "both", testDatabase):                    "PEGEL_DATABASE_URL_FILE: and PEGEL_DATABASE_URL are both set",
		"PEGEL_LISTEN_FILE=" + writeFile(t, "notsecret", "127.0.0.1:1"):                    "PEGEL_LISTEN_FILE: there is no such setting",
		"PEGEL_REDIS_URL_FILE=" + writeFile(t, "redis", "redis://u:canary-5@/%zz"):         "PEGEL_REDIS_URL: ",
		"PEGEL_TLS_CERT_FILE=" + writeFile(t, "cert", "not a certificate, canary-6\nx"):    "PEGEL_TLS_KEY_FILE: is required with PEGEL_TLS_CERT_FILE",
		"PEGEL_ADMIN_TOKEN_FILE=" + writeFile(t, "short", "canary-7-too-short"):            "PEGEL_ADMIN_TOKEN: has 18 characters",
		"PEGEL_ADMIN_TOKEN_FILE=" + writeFile(t, "spaces", strings.Repeat("canary-8 ", 9)): "PEGEL_ADMIN_TOKEN: must be",
	} {
		_, err := load(t, env)
		requireOneLine(t, err, want)
	}
}

// A setting that is wrong stops the start with one line that names it; the canaries stand for secrets.
func TestBadSettingsStopTheStart(t *testing.T) {
	t.Parallel()
	for env, want := range map[string]string{
		"PEGEL_FOO=x":                                                           "PEGEL_FOO: there is no such setting; `pegel serve --help` lists them",
		"PEGEL_LISTN=x":                                                         "PEGEL_LISTN: there is no such setting; did you mean PEGEL_LISTEN?",
		"PEGEL_COMPLETELY_DIFFERENT=x":                                          "PEGEL_COMPLETELY_DIFFERENT: there is no such setting",
		"PEGEL_LISTEN=8080":                                                     "PEGEL_LISTEN: ",
		"PEGEL_LISTEN=127.0.0.1:65536":                                          "PEGEL_LISTEN: ",
		"PEGEL_LISTEN=127.0.0.1:http":                                           "PEGEL_LISTEN: ",
		"PEGEL_ADMIN_LISTEN=127.0.0.1:8080":                                     "PEGEL_ADMIN_LISTEN: 127.0.0.1:8080 is already taken by PEGEL_LISTEN",
		"PEGEL_ADMIN_LISTEN=:8080":                                              "PEGEL_ADMIN_LISTEN: :8080 is already taken by PEGEL_LISTEN",
		"PEGEL_PROXY_LISTEN=127.0.0.1:9":                                        "PEGEL_PROXY_UPSTREAM: is required",
		"PEGEL_PROXY_UPSTREAM=http://x":                                         "PEGEL_PROXY_LISTEN: is required",
		"PEGEL_PROXY_UPSTREAM=ftp://x":                                          "PEGEL_PROXY_UPSTREAM: ",
		"PEGEL_PROXY_UPSTREAM=http://u:canary-1@x":                              "PEGEL_PROXY_UPSTREAM: ",
		"PEGEL_RLS_LISTEN=:8080":                                                "PEGEL_RLS_LISTEN: :8080 is already taken by PEGEL_LISTEN",
		"PEGEL_RLS_LISTEN=unix:rls.sock":                                        "PEGEL_RLS_LISTEN: is not unix: and an absolute path",
		"PEGEL_RLS_LISTEN=/run/rls.sock":                                        "PEGEL_RLS_LISTEN: is not host:port",
		"PEGEL_RLS_DOMAIN=two words":                                            "PEGEL_RLS_DOMAIN: must be",
		"PEGEL_SMTP_URL=smtp://u:canary-2@mail":                                 "PEGEL_MAIL_FROM: is required with PEGEL_SMTP_URL",
		"PEGEL_SMTP_URL=mail:canary-3":                                          "PEGEL_SMTP_URL: is not an smtp",
		"PEGEL_SMTP_URL=smtp://u:canary-2@mail?tls=maybe":                       "PEGEL_SMTP_URL: has a tls parameter",
		"PEGEL_SMTP_URL=smtps://mail:canary-2":                                  "PEGEL_SMTP_URL: is not an smtp",
		"PEGEL_MAIL_FROM=a@example.org":                                         "PEGEL_SMTP_URL: is required with PEGEL_MAIL_FROM",
		"PEGEL_MAIL_FROM=a@example.org\r\nBcc: b@example.org":                   "PEGEL_MAIL_FROM: is not a mail address",
		"PEGEL_ALERT_TO=nobody":                                                 "PEGEL_ALERT_TO: is not a mail address",
		"PEGEL_ALERT_TO=a@example.org,b@example.org":                            "PEGEL_SMTP_URL: is required with PEGEL_ALERT_TO",
		"PEGEL_ALERT_REMINDER=1s":                                               "PEGEL_ALERT_REMINDER: ",
		"PEGEL_ALERT_WEBHOOK_URL=https://x/canary-4":                            "PEGEL_ALERT_WEBHOOK_SECRET: is required with PEGEL_ALERT_WEBHOOK_URL",
		"PEGEL_ALERT_WEBHOOK_URL=ftp://x/canary-4":                              "PEGEL_ALERT_WEBHOOK_URL: is not an http",
		"PEGEL_ALERT_WEBHOOK_SECRET=canary-5":                                   "PEGEL_ALERT_WEBHOOK_SECRET: has 8 bytes",
		"PEGEL_ALERT_WEBHOOK_SECRET=whsec_canary-5":                             "PEGEL_ALERT_WEBHOOK_SECRET: begins with whsec_",
		"PEGEL_ALERT_WEBHOOK_SECRET=whsec_Y2FuYXJ5LTUtY2FuYXJ5LTUtY2FuYXJ5LTU=": "PEGEL_ALERT_WEBHOOK_URL: is required",
		"PEGEL_DASHBOARD_URL=pegel.example.org":                                 "PEGEL_DASHBOARD_URL: ",
		"PEGEL_DATABASE_URL=mysql://u:canary-6@x/y":                             "PEGEL_DATABASE_URL: ",
		"PEGEL_DATABASE_URL=postgres://u:canary-7@x:y/z":                        "PEGEL_DATABASE_URL: ",
		"PEGEL_DATABASE_URL=postgres://u:p@ss/canary-8%@x":                      "PEGEL_DATABASE_URL: ",
		"PEGEL_DATABASE_POOL_SIZE=3":                                            "PEGEL_DATABASE_POOL_SIZE: ",
		"PEGEL_DATABASE_POOL_SIZE=1e3":                                          "PEGEL_DATABASE_POOL_SIZE: ",
		"PEGEL_DATABASE_DECISION_TIMEOUT=0s":                                    "PEGEL_DATABASE_DECISION_TIMEOUT: ",
		"PEGEL_REDIS_URL=localhost:6379":                                        "PEGEL_REDIS_URL: ",
		"PEGEL_REDIS_URL=redis://u:canary-9@x:y":                                "PEGEL_REDIS_URL: ",
		"PEGEL_REDIS_URL=redis://:canary-10@a,other://:b@c":                     "PEGEL_REDIS_URL: ",
		"PEGEL_REDIS_URL=redis://a/1,redis://b/1":                               "PEGEL_REDIS_URL: ",
		"PEGEL_REDIS_URL=redis+sentinel://u:canary-13@x:1":                      "PEGEL_REDIS_URL: ",
		"PEGEL_REDIS_TIMEOUT=50":                                                "PEGEL_REDIS_TIMEOUT: ",
		"PEGEL_REDIS_TIMEOUT=1ms":                                               "PEGEL_REDIS_TIMEOUT: ",
		"PEGEL_REDIS_POOL_SIZE=0":                                               "PEGEL_REDIS_POOL_SIZE: ",
		"PEGEL_HELD_PER_TENANT=5001":                                            "PEGEL_HELD_PER_TENANT: 5001 is more than PEGEL_HELD_TOTAL (5000)",
		"PEGEL_HELD_TOTAL=-1":                                                   "PEGEL_HELD_TOTAL: ",
		"PEGEL_ADMIN_TOKEN=canary-12-is-short":                                  "PEGEL_ADMIN_TOKEN: has 18 characters; at least 32",
		"PEGEL_TRUSTED_PROXIES=10.0.0.0/33":                                     "PEGEL_TRUSTED_PROXIES: ",
		"PEGEL_TRUSTED_PROXIES=10.0.0.1/8":                                      `PEGEL_TRUSTED_PROXIES: "10.0.0.1/8" has bits beyond its length; did you mean 10.0.0.0/8?`,
		"PEGEL_TRUSTED_PROXIES=::ffff:10.0.0.0/104":                             "PEGEL_TRUSTED_PROXIES: ",
		"PEGEL_CLIENT_IP_HEADER=X Forwarded":                                    "PEGEL_CLIENT_IP_HEADER: ",
		"PEGEL_TRUST_IDENTITY_HEADERS=yes":                                      "PEGEL_TRUST_IDENTITY_HEADERS: ",
		"PEGEL_TRUST_IDENTITY_HEADERS=true":                                     "PEGEL_TRUSTED_PROXIES: is required",
		"PEGEL_IPV6_PREFIX=129":                                                 "PEGEL_IPV6_PREFIX: ",
		"PEGEL_MODE=off":                                                        "PEGEL_MODE: ",
		"PEGEL_LOG_LEVEL=loud":                                                  "PEGEL_LOG_LEVEL: ",
		"PEGEL_LOG_FORMAT=xml":                                                  "PEGEL_LOG_FORMAT: ",
		"PEGEL_DRAIN_TIMEOUT=1h":                                                "PEGEL_DRAIN_TIMEOUT: ",
		"PEGEL_TLS_KEY_FILE=/nowhere":                                           "PEGEL_TLS_CERT_FILE: is required with PEGEL_TLS_KEY_FILE",
	} {
		_, err := load(t, env)
		requireOneLine(t, err, want)
		require.ErrorAs(t, err, new(*SettingError), env)
	}
	_, err := Load(Sources{})
	requireOneLine(t, err, "PEGEL_DATABASE_URL: is required")
}

func requireOneLine(t *testing.T, err error, prefix string) {
	t.Helper()
	require.Error(t, err, prefix)
	require.True(t, strings.HasPrefix(err.Error(), prefix), "%q does not start with %q", err, prefix)
	require.NotContains(t, err.Error(), "\n")
	require.NotContains(t, err.Error(), "canary")
}

func TestBadFilesStopTheStart(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"listen: [127.0.0.1:1, [2]]": "PEGEL_LISTEN: is neither",
		"listen: {a: b}":             "PEGEL_LISTEN: is neither",
		"listn: x":                   "PEGEL_LISTN: there is no such setting; did you mean PEGEL_LISTEN?",
		"listen: 127.0.0.1:1\nPEGEL_LISTEN: 127.0.0.1:1": "PEGEL_LISTEN: is there twice",
		"admin_token: 'canary\n":                         "is not YAML of the form",
		"- canary":                                       "is not YAML of the form",
	} {
		_, err := Load(Sources{File: writeFile(t, "pegel.yaml", content)})
		require.ErrorContains(t, err, want)
		requireOneLine(t, err, "--config: ")
	}
	_, err := Load(Sources{File: filepath.Join(t.TempDir(), "absent.yaml")})
	requireOneLine(t, err, "--config: read the file")
}

func TestNamesOfOthersAreIgnored(t *testing.T) {
	t.Parallel()
	_, err := load(t,
		"PEGEL_SERVICE_HOST=10.0.0.1", "PEGEL_SERVICE_PORT=8080", "PEGEL_SERVICE_PORT_HTTP=8080", "PEGEL_PORT=tcp://10.0.0.1:8080",
		"PEGEL_PORT_8080_TCP=tcp://10.0.0.1:8080", "PEGEL_PORT_8080_TCP_PROTO=tcp", "PEGEL_PORT_8080_TCP_PORT=8080",
		"PEGEL_ADMIN_PORT_8081_TCP_ADDR=10.0.0.1", "PEGEL_ADMIN_SERVICE_HOST=10.0.0.1",
		"PEGEL_DEV_PG_BIN=/x", "PEGEL_TEST_REDIS_URL=redis://x", "PEGELSTAND=high")
	require.NoError(t, err)
	_, err = load(t, "PEGEL_PORTAL=x")
	requireOneLine(t, err, "PEGEL_PORTAL: there is no such setting")
}

// Traces are off unless the standard environment of OpenTelemetry says where they go.
func TestTracingIsSetByTheStandardEnvironment(t *testing.T) {
	t.Parallel()
	for want, environments := range map[string][][]string{
		"": {
			nil,
			{"OTEL_SERVICE_NAME=x"},
			{"OTEL_EXPORTER_OTLP_ENDPOINT=http://x", "OTEL_SDK_DISABLED=true"},
			{"OTEL_EXPORTER_OTLP_ENDPOINT=http://x", "OTEL_TRACES_EXPORTER=none"},
			{"OTEL_EXPORTER_OTLP_PROTOCOL=grpc"},
		},
		"http/protobuf": {{"OTEL_EXPORTER_OTLP_ENDPOINT=http://x"}, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://x"}, {"OTEL_TRACES_EXPORTER=otlp"}},
		"grpc": {
			{"OTEL_TRACES_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"},
			{"OTEL_TRACES_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=grpc"},
		},
	} {
		for _, env := range environments {
			c, err := load(t, env...)
			require.NoError(t, err, "%v", env)
			require.Equal(t, want, c.TracingProtocol, "%v", env)
		}
	}
	_, err := load(t, "OTEL_TRACES_EXPORTER=jaeger")
	requireOneLine(t, err, "OTEL_TRACES_EXPORTER: must be otlp or none")
	_, err = load(t, "OTEL_TRACES_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_PROTOCOL=http/json")
	requireOneLine(t, err, "OTEL_EXPORTER_OTLP_PROTOCOL: must be grpc")
}

func TestRedisURLForms(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"redis://one", "rediss://u:p@one:1/2", "redis://u:p@one:1,two:2", "redis://one:1,redis://two:2",
		"redis+sentinel://:p@one:26379,two:26379/main/3?sentinel_password=s",
	} {
		c, err := load(t, "PEGEL_REDIS_URL="+url)
		require.NoError(t, err, url)
		require.Equal(t, url, string(c.RedisURL))
	}
}

// However a configuration is printed, its secrets do not show.
func TestSecretsDoNotPrint(t *testing.T) {
	t.Parallel()
	c, err := load(t, "PEGEL_ADMIN_TOKEN=canary-"+strings.Repeat("x", 32), "PEGEL_REDIS_URL=redis://:canary@x",
		"PEGEL_DATABASE_URL=postgres://u:canary@x/y")
	require.NoError(t, err)
	var out bytes.Buffer
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		_, _ = fmt.Fprintf(&out, format, c)
	}
	require.NoError(t, json.NewEncoder(&out).Encode(c))
	NewLogger(c, &out).Info("config", slog.Any("config", c), slog.Any("token", c.AdminToken))
	require.NoError(t, c.Describe(&out))
	require.NotContains(t, out.String(), "canary")
}

func TestLoggerFormats(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"json": `"msg":"hello"`, "text": "msg=hello", "": `"msg":"hello"`} {
		var out bytes.Buffer
		NewLogger(&Config{LogFormat: format}, &out).Info("hello")
		require.Contains(t, out.String(), want)
	}
	var out io.Writer = os.Stdout
	if null, err := os.Open(os.DevNull); err == nil {
		defer func() { _ = null.Close() }()
		out = null
	}
	require.False(t, IsTerminal(out))
}

// Guarantee: a duration reads the same in JSON as in text, and an error of several lines is one line in either.
func TestLogsAreReadable(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := NewLogger(&Config{LogFormat: "json"}, &out)
	log.Info("back", slog.Duration("after", 7974*time.Millisecond), slog.Any("error", errors.New("cannot connect:\n\tno such host\n\tno such host\n\trefused")))
	require.Contains(t, out.String(), `"after":"7.974s"`)
	require.Contains(t, out.String(), `"error":"cannot connect: no such host; refused"`)
}

func TestFlagNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, s := range Settings() {
		require.False(t, seen[s.Env], "%s is there twice", s.Env)
		seen[s.Env] = true
		require.NotEmpty(t, s.Help, s.Env)
		require.NotEmpty(t, s.Kind, s.Env)
	}
	s := Setting{Env: "PEGEL_TLS_CERT_FILE"}
	require.Equal(t, "tls-cert-file", s.Flag())
}

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}
