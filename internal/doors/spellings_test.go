package doors_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// spellings are ways to write a path: B052's thirteen and a few more.
func spellings() []string {
	return []string{
		"/login", "/login/", "//login", "/LOGIN", "/%6Cogin", "/./login", "/x/../login", "/x/%2e%2E/login", "/login;a=b", "/login?x", "/login?a=/../b",
		"http://api.example.org/login", "/login%2F", "/login%00", "/login.json", "/%E2%85%BCogin", "/a\\..\\login", "/%252e%252e/login",
	}
}

// Guarantee (B052): whatever the spelling of a limited path, it is either the same counter, or another path for the application
// too, or refused; through every door.
func TestSpellingsOfAPathThroughEveryDoor(t *testing.T) {
	t.Parallel()
	f := startFleet(t, stores(t)...)
	f.policy()
	limit := map[string]any{"name": "login", "limit": 1000, "window": "1h", "match": map[string]any{"methods": []string{"POST"}, "paths": []string{"/login"}}}
	for name, d := range f.doors() {
		if !d.paths {
			continue
		}
		t.Run(name, func(t *testing.T) {
			a := ask{method: "POST"}
			a.tenant, a.key = f.tenant(limit)
			used := 0
			for _, path := range spellings() {
				a.path, a.address = path, randomAddress(t) // nginx's own limit is another matter
				counted, refused := f.spell(t, d, name, a, used)
				canonical, ok := tenants.CanonicalPath(path)
				switch {
				case counted:
					used++
				case refused:
					require.False(t, ok, "%s is a path like any other", path)
				default:
					require.True(t, ok, path)
					require.NotEqual(t, "/login", canonical, "%s got past the limit", path)
				}
			}
			require.GreaterOrEqual(t, used, 10, "they were one counter")
			require.Equal(t, used, f.usedBy(t, a.key))
		})
	}
}

// spell asks for one spelling, and says whether the limit counted it or the door refused it.
func (f *fleet) spell(t *testing.T, d door, name string, a ask, used int) (counted, refused bool) {
	t.Helper()
	if addr := map[string]string{"proxy": f.proxy, "nginx": f.nginx, "caddy": f.caddy}[name]; addr != "" {
		// Servers refuse some by themselves, in words of their own.
		got := send(t, addr, question{method: a.method, target: a.path, header: a.headers()})
		if got.status == http.StatusBadRequest || got.status == http.StatusForbidden {
			return false, true
		}
		remaining := got.header.Get("X-RateLimit-Remaining")
		uri := got.reached(t).URI
		canonical, ok := tenants.CanonicalPath(uri)
		require.True(t, ok, uri)
		require.Equal(t, canonical == "/login", remaining != "", "%s was forwarded as %s", a.path, uri)
		if remaining != "" {
			require.Equal(t, fmt.Sprint(1000-used-1), remaining, a.path)
		}
		return remaining != "", false
	}
	v := d.ask(t, a)
	switch {
	case v.Says != "allow":
		require.Contains(t, []string{"forbidden", "validation"}, v.Says, a.path)
		return false, true
	case v.Remaining == "":
		return false, false
	}
	require.Equal(t, fmt.Sprint(1000-used-1), v.Remaining, a.path)
	return true, false
}

func (f *fleet) usedBy(t *testing.T, key string) int {
	t.Helper()
	a := send(t, f.public, question{method: "POST", target: "/v1/check", header: []string{"Authorization", "Bearer " + key}, body: []byte(`{"method":"POST","path":"/login","cost":0}`)})
	var used int
	_, rest, found := strings.Cut(string(a.body), `"used":`)
	require.True(t, found, "%s", a.body)
	_, err := fmt.Sscan(strings.SplitN(rest, ",", 2)[0], &used)
	require.NoError(t, err)
	return used
}

// Guarantee (B048, B050): however a proxy writes an address, with port, brackets, zone or mapped into IPv6, it is one client; what
// the client wrote to the left of it is nobody's.
func TestNotationsOfAnAddressThroughEveryDoor(t *testing.T) {
	t.Parallel()
	f := startFleet(t, stores(t)...)
	f.policy(map[string]any{"name": "per-minute", "limit": 100, "window": "1h"})
	six := func(n int) string { return fmt.Sprintf("2001:db8:%x:1::", n) }
	n := 0
	for name, d := range f.doors() {
		n++
		t.Run(name, func(t *testing.T) {
			four := fmt.Sprintf("44.9.9.%d", n)
			for client, notations := range map[string][]string{
				"IPv4": {four, four + ":5555", "::ffff:" + four, "[::ffff:" + four + "]:80", " " + four + " "},
				"IPv6": {six(n) + "1", "[" + six(n) + "2]:443", six(n) + "3%eth0", "[" + six(n) + "4%25eth0]:1", strings.ToUpper(six(n)) + "ABCD"},
			} {
				used := 0
				for _, address := range notations {
					for _, header := range f.chain(name, address) {
						v := d.ask(t, ask{method: "GET", path: "/", address: header})
						used++
						require.Equal(t, allow("100", fmt.Sprint(100-used)), v, "%s as %q", client, header)
					}
				}
				require.GreaterOrEqual(t, used, 3)
			}
		})
	}
}

// chain is what the header may say of a client at an address: as it is, and behind what the client itself wrote. Doors that are
// told one address take no list, and nginx reads no zones.
func (f *fleet) chain(door, address string) []string {
	switch door {
	case "check", "envoy":
		return []string{address}
	case "nginx":
		if strings.ContainsAny(address, "%") {
			return nil
		}
	}
	return []string{address, "10.1.2.3, garbage, " + address, "\"' --, 1.2.3.4:99999, " + address + " , 127.0.0.9"}
}
