package decision

import (
	"fmt"
	"net"
	"strings"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// HostPatterns find a tenant in the name of the host that a request is for: `{tenant}.api.example.org`. A host is a name that
// anybody can send, so it says who pays and proves nothing: the caller's address is held to every address limit, and a name
// that is no tenant's names nobody.
type HostPatterns []hostPattern

type hostPattern struct{ before, after string }

// hostPlaceholder is where in a pattern the tenant's slug stands.
const hostPlaceholder = "{tenant}"

// MaxHostPatterns bounds what every request without a credential is compared with.
const MaxHostPatterns = 16

// NewHostPatterns reads patterns. Each is a host name in which {tenant} stands once, as a label or a part of one, before a dot.
func NewHostPatterns(patterns []string) (HostPatterns, error) {
	if len(patterns) > MaxHostPatterns {
		return nil, fmt.Errorf("has %d patterns; at most %d", len(patterns), MaxHostPatterns)
	}
	var all HostPatterns
	for _, text := range patterns {
		before, after, found := strings.Cut(strings.ToLower(text), hostPlaceholder)
		rest := before + after
		switch {
		case !found || strings.Contains(after, hostPlaceholder):
			return nil, fmt.Errorf("%q must have %s in it, once", text, hostPlaceholder)
		case !strings.Contains(after, ".") || strings.HasPrefix(before, ".") || strings.HasSuffix(after, ".") || strings.Contains(rest, "..") ||
			strings.Trim(rest, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "":
			return nil, fmt.Errorf("%q is not a host name such as %s.example.org (without port)", text, hostPlaceholder)
		}
		all = append(all, hostPattern{before, after})
	}
	return all, nil
}

// Tenant is the slug that a host names by the first pattern that fits; empty when none does. A port and a last dot make no
// difference, nor does case.
func (p HostPatterns) Tenant(host string) string {
	if len(p) == 0 || len(host) > maxHostBytes {
		return ""
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	for _, pattern := range p {
		rest, ok := strings.CutPrefix(host, pattern.before)
		if !ok {
			continue
		}
		if slug, ok := strings.CutSuffix(rest, pattern.after); ok && tenants.ValidSlug(slug) {
			return slug
		}
	}
	return ""
}

// maxHostBytes is the longest name there is, with a last dot and a port.
const maxHostBytes = 253 + len(".:65535")

// applyHost names the tenant by the host, when nobody has said who is asking. Nothing is proven: see HostPatterns.
func (c *Caller) applyHost(slug string, s session, snapshot *tenants.Snapshot) {
	if slug == "" || c.Tenant != nil || c.UnknownTenant || c.BadIdentity || s.tenant != "" {
		return
	}
	if found, ok := snapshot.Tenant(slug); ok {
		c.Tenant, c.User = found, s.user
	}
}
