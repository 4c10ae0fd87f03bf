package proxy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// Whatever path a stranger sends, the one that is forwarded is matched by the same limits, holds nothing that is left to resolve, and
// is forwarded as it is when it comes again.
func FuzzForwardedPath(f *testing.F) {
	for _, s := range []string{"/login", "/x/../login;a=b/", "//a/%2e%2e/b%20c", "/a;%2f/b", "/%C3%BC/.", "/a%3Bb/;x/..", "/..;/a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		matched, ok := tenants.CanonicalPath(raw)
		if !ok || strings.ContainsAny(raw, "?#") || !strings.HasPrefix(raw, "/") {
			return
		}
		forwarded, ok := forwardedPath(raw)
		if !ok {
			return
		}
		again, ok := tenants.CanonicalPath(forwarded)
		require.True(t, ok, forwarded)
		require.Equal(t, matched, again)
		require.NotContains(t, forwarded, "//")
		require.NotContains(t, forwarded+"/", "/./")
		require.NotContains(t, forwarded+"/", "/../")
		second, ok := forwardedPath(forwarded)
		require.True(t, ok)
		require.Equal(t, forwarded, second)
	})
}
