package decision_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pegel-dev/pegel/internal/decision"
)

func resolver(tb testing.TB, name string, trusted ...string) *decision.AddressResolver {
	tb.Helper()
	cfg := decision.AddressConfig{Header: name}
	for _, p := range trusted {
		cfg.TrustedProxies = append(cfg.TrustedProxies, netip.MustParsePrefix(p))
	}
	r, err := decision.NewAddressResolver(cfg)
	require.NoError(tb, err)
	return r
}

func resolve(r *decision.AddressResolver, peer string, pairs ...string) string {
	p, _ := r.Resolve(&http.Request{RemoteAddr: peer, Header: header(pairs...)})
	if !p.IsValid() {
		return ""
	}
	return p.Masked().String()
}

func TestResolve(t *testing.T) {
	t.Parallel()
	const peer = "10.0.0.1:4711"
	for _, c := range []struct {
		name, header, peer string
		lines              []string
		want               string
	}{
		{"no header", "", peer, nil, "10.0.0.1/32"},
		{"one entry", "", peer, []string{"203.0.113.7"}, "203.0.113.7/32"},
		{"prepended by the client (B048)", "", peer, []string{"1.1.1.1, 203.0.113.7"}, "203.0.113.7/32"},
		{"prepended line", "", peer, []string{"1.1.1.1", "203.0.113.7"}, "203.0.113.7/32"},
		{"through two proxies", "", peer, []string{"1.1.1.1, 203.0.113.7, 10.0.0.2"}, "203.0.113.7/32"},
		{"through two proxies on two lines", "", peer, []string{"203.0.113.7", "10.0.0.2"}, "203.0.113.7/32"},
		{"all trusted", "", peer, []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3/32"},
		{"port", "", peer, []string{"203.0.113.7:5555"}, "203.0.113.7/32"},
		{"spaces", "", peer, []string{"\t 203.0.113.7 "}, "203.0.113.7/32"},
		{"IPv6", "", peer, []string{"2001:db8::1"}, "2001:db8::/64"},
		{"IPv6 with brackets and port", "", peer, []string{"[2001:db8::1]:443"}, "2001:db8::/64"},
		{"IPv6 with zone", "", peer, []string{"2001:db8::1%eth0"}, "2001:db8::/64"},
		{"mapped IPv4", "", peer, []string{"::ffff:203.0.113.7"}, "203.0.113.7/32"},
		{"mapped trusted proxy", "", peer, []string{"203.0.113.7, ::ffff:10.0.0.2"}, "203.0.113.7/32"},
		{"mapped peer", "", "[::ffff:10.0.0.1]:80", []string{"203.0.113.7"}, "203.0.113.7/32"},
		{"unknown", "", peer, []string{"203.0.113.7, unknown"}, "10.0.0.1/32"},
		{"hidden behind a second proxy", "", peer, []string{"203.0.113.7, _hidden, 10.0.0.2"}, "10.0.0.2/32"},
		{"empty", "", peer, []string{""}, "10.0.0.1/32"},
		{"empty entry at the end", "", peer, []string{"203.0.113.7,"}, "10.0.0.1/32"},
		{"hexadecimal", "", peer, []string{"0x7f.1"}, "10.0.0.1/32"},
		{"octal", "", peer, []string{"010.0.0.1"}, "10.0.0.1/32"},
		{"unspecified", "", peer, []string{"0.0.0.0"}, "10.0.0.1/32"},
		{"zone without end", "", peer, []string{"::1%" + strings.Repeat("A", 4000)}, "10.0.0.1/32"},
		{"port that is none", "", peer, []string{"203.0.113.7:http"}, "10.0.0.1/32"},
		{"too many hops", "", peer, []string{"203.0.113.7" + strings.Repeat(", 10.0.0.2", 100)}, "10.0.0.2/32"},
		{"untrusted peer", "", "198.51.100.9:1", []string{"203.0.113.7"}, "198.51.100.9/32"},
		{"untrusted IPv6 peer with zone", "", "[fe80::1%eth0]:1", []string{"203.0.113.7"}, "fe80::/64"},
		{"Unix socket", "", "@", []string{"203.0.113.7"}, "203.0.113.7/32"},
		{"Unix socket without a header", "", "", nil, ""},

		{"X-Real-IP", "X-Real-IP", peer, []string{"203.0.113.7"}, "203.0.113.7/32"},
		{"CF-Connecting-IP", "cf-connecting-ip", peer, []string{"2001:db8:0:1::9"}, "2001:db8:0:1::/64"},

		{"Forwarded", "Forwarded", peer, []string{"for=203.0.113.7;proto=https;by=10.0.0.1"}, "203.0.113.7/32"},
		{"Forwarded, any case and order", "Forwarded", peer, []string{`proto=https; FOR="203.0.113.7:99"`}, "203.0.113.7/32"},
		{"Forwarded IPv6", "Forwarded", peer, []string{`for="[2001:db8::1]:4711"`}, "2001:db8::/64"},
		{"Forwarded chain", "Forwarded", peer, []string{`for=1.1.1.1, for=203.0.113.7`, `for=10.0.0.2`}, "203.0.113.7/32"},
		{"Forwarded with an open quote before it", "Forwarded", peer, []string{`for=8.8.8.8;x=", for=203.0.113.7`}, "203.0.113.7/32"},
		{"Forwarded quote around the proxy's entry", "Forwarded", peer, []string{`for=8.8.8.8;x=", for="[2001:db8::1]"`}, "2001:db8::/64"},
		{"Forwarded twice in one element", "Forwarded", peer, []string{`for=1.1.1.1;for=2.2.2.2`}, "10.0.0.1/32"},
		{"Forwarded with an escape", "Forwarded", peer, []string{`for="203.0.113\.7"`}, "10.0.0.1/32"},
		{"Forwarded unknown", "Forwarded", peer, []string{`for=unknown`}, "10.0.0.1/32"},
		{"Forwarded obfuscated", "Forwarded", peer, []string{`for="_x:99"`}, "10.0.0.1/32"},
		{"Forwarded without for", "Forwarded", peer, []string{`by=203.0.113.7`}, "10.0.0.1/32"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			name := c.header
			if name == "" {
				name = "X-Forwarded-For"
			}
			var pairs []string
			for _, line := range c.lines {
				pairs = append(pairs, name, line)
			}
			require.Equal(t, c.want, resolve(resolver(t, c.header, "10.0.0.0/8"), c.peer, pairs...))
		})
	}
}

// B048: without trusted proxies no header makes a new client; with them only the configured one does.
func TestOtherHeadersAreIgnored(t *testing.T) {
	t.Parallel()
	all := []string{"X-Forwarded-For", "9.9.9.9", "X-Real-IP", "9.9.9.9", "Forwarded", "for=9.9.9.9", "CF-Connecting-IP", "9.9.9.9", "True-Client-IP", "9.9.9.9"}
	require.Equal(t, "198.51.100.9/32", resolve(resolver(t, ""), "198.51.100.9:1", all...))
	require.Equal(t, "198.51.100.9/32", resolve(resolver(t, "X-Client", "198.51.100.0/24"), "198.51.100.9:1", all...))
}

// Whatever a client puts before what the trusted proxy appends, the answer is the same.
func TestNothingAClientWritesCounts(t *testing.T) {
	t.Parallel()
	forwardedFor, forwarded := resolver(t, "", "10.0.0.0/8"), resolver(t, "Forwarded", "10.0.0.0/8")
	rapid.Check(t, func(t *rapid.T) {
		written := rapid.OneOf(rapid.String(), rapid.StringMatching(`[0-9a-f:.,;="\\ \[\]forx%]{0,60}`)).Draw(t, "written by the client")
		separate := rapid.Bool().Draw(t, "on a line of its own")
		with := func(appended string) []string {
			if separate {
				return []string{written, appended}
			}
			return []string{written + ", " + appended}
		}
		req := &http.Request{RemoteAddr: "10.0.0.1:1", Header: http.Header{"X-Forwarded-For": with("203.0.113.7"), "Forwarded": with(`for="203.0.113.7:12"`)}}
		for _, r := range []*decision.AddressResolver{forwardedFor, forwarded} {
			p, trusted := r.Resolve(req)
			if !trusted || p.String() != "203.0.113.7/32" {
				t.Fatalf("%s: %q", r.Header(), p)
			}
		}
	})
}

func TestAddressConfigIsChecked(t *testing.T) {
	t.Parallel()
	for _, cfg := range []decision.AddressConfig{
		{Header: "X Forwarded"}, {Header: "a,b"}, {IPv6Prefix: 129}, {IPv6Prefix: -1}, {TrustedProxies: []netip.Prefix{{}}},
	} {
		_, err := decision.NewAddressResolver(cfg)
		require.Error(t, err, "%+v", cfg)
	}
	r, err := decision.NewAddressResolver(decision.AddressConfig{IPv6Prefix: 48})
	require.NoError(t, err)
	require.Equal(t, "2001:db8:1::/48", resolve(r, "[2001:db8:1:2::3]:1"))
}

func FuzzResolve(f *testing.F) {
	f.Add("203.0.113.7, [2001:db8::1]:9", `for="[::1]:9";by=x, for=_y`)
	f.Add("::1%zone:80", `for=",";for=`)
	a, b := resolver(f, "", "10.0.0.0/8"), resolver(f, "Forwarded", "10.0.0.0/8")
	f.Fuzz(func(t *testing.T, forwardedFor, forwarded string) {
		req := &http.Request{RemoteAddr: "10.0.0.1:1", Header: http.Header{"X-Forwarded-For": {forwardedFor}, "Forwarded": {forwarded}}}
		for _, r := range []*decision.AddressResolver{a, b} {
			p, trusted := r.Resolve(req)
			require.True(t, trusted && p.IsValid() && p.Addr().Zone() == "" && !p.Addr().Is4In6())
		}
	})
}
