package decision

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/textproto"
	"strings"

	"github.com/gaissmai/bart"
)

// AddressConfig says whose word on a client's address is believed.
type AddressConfig struct {
	// TrustedProxies are the networks whose forwarding header is believed (PEGEL_TRUSTED_PROXIES).
	TrustedProxies []netip.Prefix
	// Header is the ONE header read from them (PEGEL_CLIENT_IP_HEADER); empty: X-Forwarded-For.
	Header string
	// IPv6Prefix is the length IPv6 addresses are grouped by, 1…128; 0: 64.
	IPv6Prefix int
}

// AddressResolver finds a request's client address: the peer, or, when the peer is trusted, the rightmost untrusted entry
// over all lines of the one configured header. It is immutable and safe for concurrent use.
//
// Whatever is left of that entry was written by strangers and is never looked at. An entry that is no address ends the
// search: the proxy that reported it counts instead, so that garbage never makes a new client. When every entry is a
// trusted proxy, the leftmost is the client.
//
// A peer on a Unix socket has no address. It is somebody on this machine whom file permissions let in, so its header is
// believed; without a usable header the request has no address, and no address limit can hold for it.
type AddressResolver struct {
	trusted    bart.Lite
	header     string
	forwarded  bool
	ipv6Prefix int
}

// Bounds on what one request may make us read.
const (
	maxForwardedEntries = 64
	maxEntryBytes       = 512 // one entry, parameters of Forwarded included
	defaultIPv6Prefix   = 64
)

// NewAddressResolver checks the configuration and builds a resolver.
func NewAddressResolver(cfg AddressConfig) (*AddressResolver, error) {
	r := &AddressResolver{header: textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(cfg.Header)), ipv6Prefix: cfg.IPv6Prefix}
	if r.header == "" {
		r.header = "X-Forwarded-For"
	}
	if strings.ContainsAny(r.header, " \t,;:\r\n") {
		return nil, errors.New("client address header: not a header name")
	}
	r.forwarded = r.header == "Forwarded"
	if r.ipv6Prefix == 0 {
		r.ipv6Prefix = defaultIPv6Prefix
	}
	if r.ipv6Prefix < 1 || r.ipv6Prefix > 128 {
		return nil, fmt.Errorf("IPv6 prefix length %d is not 1…128", r.ipv6Prefix)
	}
	for _, p := range cfg.TrustedProxies {
		if !p.IsValid() {
			return nil, errors.New("trusted proxies: invalid network")
		}
		r.trusted.Insert(unmapPrefix(p))
	}
	return r, nil
}

// Header is the canonical name of the header that is read from trusted proxies.
func (r *AddressResolver) Header() string { return r.header }

// Resolve is the client's address with the length of the prefix it is counted by (host bits kept, see Caller.Address), and
// whether the peer is a trusted proxy.
func (r *AddressResolver) Resolve(req *http.Request) (prefix netip.Prefix, peerTrusted bool) {
	peer, isUnix := peerAddr(req.RemoteAddr)
	peerTrusted = isUnix || r.Trusted(peer)
	if !peerTrusted {
		return prefixOf(peer, r.ipv6Prefix), false
	}
	return prefixOf(r.behind(peer, req.Header[r.header]), r.ipv6Prefix), true
}

// Trusted reports whether an address is a configured proxy's.
func (r *AddressResolver) Trusted(a netip.Addr) bool {
	return a.IsValid() && r.trusted.Contains(a.Unmap().WithZone(""))
}

// behind walks the header from its right end.
func (r *AddressResolver) behind(peer netip.Addr, lines []string) netip.Addr {
	client, seen := peer, 0
	for i := len(lines) - 1; i >= 0; i-- {
		rest, more := lines[i], true
		for more {
			var entry string
			entry, rest, more = lastEntry(rest, r.forwarded)
			if seen++; seen > maxForwardedEntries || len(entry) > maxEntryBytes {
				return client
			}
			if r.forwarded {
				entry = forwardedFor(entry)
			}
			addr, ok := ParseAddress(entry)
			if !ok {
				return client
			}
			client = addr
			if !r.Trusted(addr) {
				return client
			}
		}
	}
	return client
}

// lastEntry cuts the last comma-separated entry off a line. With quotes, commas between them do not count; reading from the
// right, an open quote that a stranger put further left cannot swallow what the trusted proxy appended.
func lastEntry(line string, quotes bool) (entry, rest string, more bool) {
	inside := false
	for i := len(line) - 1; i >= 0; i-- {
		switch line[i] {
		case '"':
			inside = quotes && !inside
		case ',':
			if !inside {
				return line[i+1:], line[:i], true
			}
		}
	}
	return line, "", false
}

// forwardedFor is the one `for` of a Forwarded element (RFC 7239), unquoted; empty when there is none, more than one, or
// the element is malformed. Escapes have no place in an address.
func forwardedFor(element string) string {
	if strings.IndexByte(element, '\\') >= 0 || strings.Count(element, `"`)%2 != 0 {
		return ""
	}
	found := ""
	for pair := range strings.SplitSeq(element, ";") {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || !strings.EqualFold(strings.TrimSpace(name), "for") {
			continue
		}
		value = strings.TrimSpace(value)
		if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
			value = value[1 : len(value)-1]
		}
		if found != "" || strings.IndexByte(value, '"') >= 0 {
			return ""
		}
		found = value
	}
	return found
}

// ParseAddress reads an address as proxies write them: with or without port, brackets and zone, all of which are dropped,
// and with IPv4 mapped into IPv6 unmapped. Anything else is not an address: names, "unknown", octal or hexadecimal parts,
// the unspecified address.
func ParseAddress(text string) (addr netip.Addr, ok bool) {
	text = strings.TrimSpace(text)
	if len(text) > maxEntryBytes {
		return netip.Addr{}, false
	}
	if rest, bracketed := strings.CutPrefix(text, "["); bracketed {
		inside, port, closed := strings.Cut(rest, "]")
		if !closed || port != "" && !isPort(port) || strings.IndexByte(inside, ':') < 0 {
			return netip.Addr{}, false
		}
		text = inside
	} else if i := strings.IndexByte(text, ':'); i >= 0 && strings.LastIndexByte(text, ':') == i {
		if !isPort(text[i:]) {
			return netip.Addr{}, false
		}
		text = text[:i]
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, false
	}
	a = a.WithZone("").Unmap()
	return a, !a.IsUnspecified()
}

// isPort reads ":" and one to five digits.
func isPort(s string) bool {
	if len(s) < 2 || len(s) > 6 || s[0] != ':' {
		return false
	}
	for i := 1; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// peerAddr reads http.Request.RemoteAddr. isUnix: the connection came over a Unix socket, or from a test without a peer.
func peerAddr(remote string) (addr netip.Addr, isUnix bool) {
	if remote == "" || remote[0] == '@' || remote[0] == '/' {
		return netip.Addr{}, true
	}
	addr, ok := ParseAddress(remote)
	if !ok {
		return netip.Addr{}, false
	}
	return addr, false
}

// prefixOf gives an address the length of the prefix it is counted by.
func prefixOf(a netip.Addr, ipv6Prefix int) netip.Prefix {
	switch {
	case !a.IsValid():
		return netip.Prefix{}
	case a.Is4():
		return netip.PrefixFrom(a, 32)
	}
	return netip.PrefixFrom(a, ipv6Prefix)
}

// unmapPrefix turns ::ffff:10.0.0.0/104 into 10.0.0.0/8.
func unmapPrefix(p netip.Prefix) netip.Prefix {
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(a.Unmap(), p.Bits()-96).Masked()
	}
	return p.Masked()
}
