package decision_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
)

func TestHostPatterns(t *testing.T) {
	t.Parallel()
	hosts, err := decision.NewHostPatterns([]string{"{tenant}.api.example.org", "API-{tenant}.example.net"})
	require.NoError(t, err)
	for host, want := range map[string]string{
		"school-17.api.example.org": "school-17", "School-17.API.example.org": "school-17", "school-17.api.example.org:8443": "school-17",
		"school-17.api.example.org.": "school-17", "school-17.api.example.org.:80": "school-17", "api-school-17.example.net": "school-17",
		"api.example.org": "", ".api.example.org": "", "a.b.api.example.org": "", "school-17.api.example.org.evil.example": "", "-a.api.example.org": "",
		"school_17.api.example.org": "", "school-17.example.org": "", "": "", "[::1]:80": "", "127.0.0.1": "", "api-.example.net": "",
		strings.Repeat("a", 64) + ".api.example.org": "", strings.Repeat("a.", 4<<10) + "api.example.org": "",
	} {
		require.Equal(t, want, hosts.Tenant(host), host)
	}
	require.Empty(t, decision.HostPatterns(nil).Tenant("school-17.api.example.org"))
	for _, bad := range []string{"", "api.example.org", "{tenant}", "{tenant}.{tenant}.org", "{tenant}.org:80", "{tenant}..org", ".{tenant}.org", "{tenant}.org.", "*.{tenant}.org", "api.{tenant}"} {
		_, err := decision.NewHostPatterns([]string{bad})
		require.Error(t, err, bad)
	}
	_, err = decision.NewHostPatterns(make([]string, 17))
	require.Error(t, err)
}

// Whatever host a stranger sends, what it names could be a tenant's slug.
func FuzzHostPatterns(f *testing.F) {
	hosts, err := decision.NewHostPatterns([]string{"{tenant}.api.example.org"})
	require.NoError(f, err)
	f.Add("school-17.api.example.org:80")
	f.Add("[::1].api.example.org")
	f.Fuzz(func(t *testing.T, host string) {
		slug := hosts.Tenant(host)
		require.Equal(t, strings.ToLower(slug), slug)
		require.NotContains(t, slug, ".")
		require.LessOrEqual(t, len(slug), 63)
	})
}
