package deploy_test

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// traefikFile is what of Traefik's configuration is used here, by the names of its reference (v3.7). Any other name is an error.
type traefikFile struct {
	EntryPoints map[string]struct {
		Address          string `yaml:"address"`
		ForwardedHeaders struct {
			TrustedIPs []string `yaml:"trustedIPs"`
		} `yaml:"forwardedHeaders"`
	} `yaml:"entryPoints"`
	Providers struct {
		File struct {
			Filename string `yaml:"filename"`
			Watch    bool   `yaml:"watch"`
		} `yaml:"file"`
	} `yaml:"providers"`
	HTTP struct {
		Routers map[string]struct {
			Rule        string   `yaml:"rule"`
			EntryPoints []string `yaml:"entryPoints"`
			Service     string   `yaml:"service"`
			Middlewares []string `yaml:"middlewares"`
		} `yaml:"routers"`
		Middlewares map[string]struct {
			Headers struct {
				CustomRequestHeaders map[string]string `yaml:"customRequestHeaders"`
			} `yaml:"headers"`
			ForwardAuth struct {
				Address                  string `yaml:"address"`
				TrustForwardHeader       bool   `yaml:"trustForwardHeader"`
				AuthResponseHeadersRegex string `yaml:"authResponseHeadersRegex"`
				MaxResponseBodySize      int64  `yaml:"maxResponseBodySize"`
			} `yaml:"forwardAuth"`
		} `yaml:"middlewares"`
		Services map[string]struct {
			LoadBalancer struct {
				Servers []struct {
					URL string `yaml:"url"`
				} `yaml:"servers"`
			} `yaml:"loadBalancer"`
		} `yaml:"services"`
	} `yaml:"http"`
}

func loadTraefik(t *testing.T, name string) (file traefikFile) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("traefik", name))
	require.NoError(t, err)
	decoder := yaml.NewDecoder(bytes.NewReader(raw))
	decoder.KnownFields(true)
	require.NoError(t, decoder.Decode(&file), name)
	return file
}

// Guarantee: Traefik asks the right door, with facts that no client wrote, and the application gets no credential of ours.
// Traefik itself cannot be built from the module proxy; what it sends is replayed in internal/httpapi and internal/doors.
func TestTraefikConfiguration(t *testing.T) {
	t.Parallel()
	static, file := loadTraefik(t, "traefik.yml"), loadTraefik(t, "dynamic.yml")
	require.Empty(t, static.EntryPoints["web"].ForwardedHeaders.TrustedIPs, "nobody is believed until somebody is named")
	require.Equal(t, "/etc/traefik/dynamic.yml", static.Providers.File.Filename)

	router := file.HTTP.Routers["api"]
	require.Contains(t, static.EntryPoints, router.EntryPoints[0])
	require.Contains(t, file.HTTP.Services, router.Service)
	require.Equal(t, []string{"pegel-facts", "pegel", "pegel-ends"}, router.Middlewares)
	require.Len(t, file.HTTP.Middlewares, 3)

	// Traefik fills these in when they are absent, and believes them when they are there.
	facts := file.HTTP.Middlewares["pegel-facts"].Headers.CustomRequestHeaders
	for _, name := range []string{"X-Forwarded-Method", "X-Forwarded-Uri", "X-Original-Method", "X-Original-Uri", "X-Original-Url"} {
		value, dropped := facts[name]
		require.True(t, dropped && value == "", name)
	}
	auth := file.HTTP.Middlewares["pegel"].ForwardAuth
	require.Equal(t, "http://127.0.0.1:8080/authz/forward", auth.Address)
	require.True(t, auth.TrustForwardHeader)
	dropped, err := regexp.Compile(auth.AuthResponseHeadersRegex)
	require.NoError(t, err)
	for _, name := range []string{"X-Pegel-Service-Token", "X-Pegel-Tenant", "X-Pegel-User", "X-API-Key"} {
		require.True(t, dropped.MatchString(http.CanonicalHeaderKey(name)), name)
	}
	require.False(t, dropped.MatchString("Authorization"))
}
