package tenants_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// B052: every spelling of the path that an upstream may serve is one path, and what two servers could read as two is refused.
func TestCanonicalPath(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"/login": "/login", "/login/": "/login", "//login": "/login", "/LOGIN": "/login", "/%6Cogin": "/login", "/%6cogin": "/login",
		"/./login": "/login", "/x/../login": "/login", "/x/%2e%2E/login": "/login", "/login;a=b": "/login", "/login;": "/login", "/;x/login": "/login",
		"/login?x": "/login", "/login?a=/../b": "/login", "/login#f": "/login", "http://host/login": "/login", "HTTP://user@host:80/login?x": "/login",
		"http://host": "/", "http://host?x": "/", "/": "/", "//": "/", "/.": "/", "/a/..": "/", "/login.json": "/login.json", "/a..b": "/a..b", "/...": "/...",
		"/a/b/": "/a/b", "/a//b///c": "/a/b/c", "/v1/messages": "/v1/messages", "/%3Bx": "/;x", "/a%20b": "/a b", "/gr%C3%BC%C3%9Fe": "/grüße",
		"/ⅼogin": "/ⅼogin", "/a=b,c+d:e@f~g_h-i": "/a=b,c+d:e@f~g_h-i", "/%2A": "/*", "/http://x": "/http:/x", "/login%3fx": "/login?x",
	} {
		got, ok := tenants.CanonicalPath(raw)
		require.True(t, ok, raw)
		require.Equal(t, want, got, raw)
	}
	for _, raw := range []string{
		"", "login", "?x", "/login%2F", "/login%2f..", "/a%5Cb", `/a\b`, "/login%00", "/login\x00", "/a%0Ab", "/a\nb", "/a%7f", "/%", "/%6", "/%zz", "/%2561",
		"/..", "/../login", "/x/../../login", "/%FF", "/a\xff", "/" + strings.Repeat("a", 8192),
	} {
		got, ok := tenants.CanonicalPath(raw)
		require.False(t, ok, raw)
		require.Empty(t, got, raw)
	}
}

func TestCommonPathsCostNoAllocation(t *testing.T) {
	match := tenants.Match{Methods: []string{"POST"}, Paths: []string{"/*/login", "/v1/exports/*"}}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		path, ok := tenants.CanonicalPath("/v1/exports/reports/2026-11.csv")
		if !ok || !match.Holds("POST", path) {
			t.Error("no match")
		}
	}))
}

func TestMatchHolds(t *testing.T) {
	t.Parallel()
	login := tenants.Match{Methods: []string{"POST"}, Paths: []string{"/login", "/*/login"}}
	exports := tenants.Match{Paths: []string{"/v1/exports/*"}}
	for _, c := range []struct {
		match        tenants.Match
		method, path string
		want         bool
	}{
		{tenants.Match{}, "", "", true},
		{login, "POST", "/login", true},
		{login, "post", "/login", true},
		{login, "POST", "/v1/login", true},
		{login, "POST", "/v1/v2/login", false},
		{login, "POST", "/login/x", false},
		{login, "POST", "/", false},
		{login, "GET", "/login", false},
		{login, "", "/login", false},
		{login, "POST", "", false},
		{exports, "GET", "/v1/exports/a", true},
		{exports, "", "/v1/exports/a/b/c", true},
		{exports, "GET", "/v1/exports", false},
		{exports, "GET", "/v1/exportsx/a", false},
		{tenants.Match{Paths: []string{"/*"}}, "GET", "/a/b", true},
		{tenants.Match{Paths: []string{"/*"}}, "GET", "/", false},
		{tenants.Match{Paths: []string{"/"}}, "GET", "/", true},
		{tenants.Match{Paths: []string{"/a/*/c"}}, "GET", "/a/b/c", true},
		{tenants.Match{Paths: []string{"/a/*/c"}}, "GET", "/a/b/b/c", false},
		{tenants.Match{Paths: []string{"/a/*/*"}}, "GET", "/a/b", false},
		{tenants.Match{Paths: []string{"/a/*/*"}}, "GET", "/a/b/c/d", true},
		{tenants.Match{Methods: []string{"GET"}}, "GET", "", true},
	} {
		require.Equal(t, c.want, c.match.Holds(c.method, c.path), "%+v %s %s", c.match, c.method, c.path)
	}
	require.True(t, tenants.Match{}.Empty())
	require.False(t, login.Empty())
}

// A canonical path is its own canonical form once its special characters are escaped again, whatever it came from.
func FuzzCanonicalPath(f *testing.F) {
	for _, s := range []string{"/login", "/a/../b", "//x;y/%41?z", "http://h/x", "/%2e%2e/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		path, ok := tenants.CanonicalPath(raw)
		if !ok {
			return
		}
		require.True(t, strings.HasPrefix(path, "/"))
		for segment := range strings.SplitSeq(path[1:], "/") {
			require.NotContains(t, []string{".", ".."}, segment)
		}
		again, ok := tenants.CanonicalPath((&url.URL{Path: path}).EscapedPath())
		if ok && !strings.ContainsAny(path, ";%") {
			require.Equal(t, path, again)
		}
	})
}
