package envoyrls

import (
	extv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// element is one descriptor on its way to its status.
type element struct {
	hit decision.Hit
	// refund: the hit's cost is given back.
	refund bool
	// ignored: no limit can hold for it.
	ignored bool

	decision *decision.Decision
	err      error
}

// refusal is a descriptor that is refused before anybody is asked.
type refusal struct {
	slug   problem.Slug
	detail string
}

func (r *refusal) Error() string { return string(r.slug) + ": " + r.detail }

// facts are a descriptor's entries.
type facts struct {
	tenant, user, key, address, path, method string
	given                                    uint8 // one bit for each
}

// field is where an entry belongs, and its bit.
func (f *facts) field(entry string) (into *string, bit uint8) {
	switch entry {
	case "tenant":
		return &f.tenant, 1 << 0
	case "user":
		return &f.user, 1 << 1
	case "key":
		return &f.key, 1 << 2
	case "remote_address":
		return &f.address, 1 << 3
	case "path":
		return &f.path, 1 << 4
	case "method":
		return &f.method, 1 << 5
	}
	return nil, 0
}

// read turns a descriptor into a hit. addend is the call's own number of hits. A fact that comes twice or is empty is refused:
// clients write headers, headers become facts, and no client gets away with one that cannot be counted.
func (s *service) read(d *extv3.RateLimitDescriptor, addend uint32, caller *tenants.ServiceToken) element {
	var f facts
	for _, entry := range d.GetEntries() {
		into, bit := f.field(entry.GetKey())
		if into == nil {
			s.met.ignore(unknownEntry, entry.GetKey())
			continue
		}
		if f.given&bit != 0 || entry.GetValue() == "" {
			return element{err: &refusal{problem.Validation, "the fact " + entry.GetKey() + " is empty or comes more than once"}}
		}
		f.given |= bit
		*into = entry.GetValue()
	}
	if d.GetLimit() != nil {
		s.met.ignore(limitOverride, "")
	}
	if f.tenant == "" && f.address == "" {
		s.met.ignore(noSubject, "")
		return element{ignored: true}
	}
	e := element{hit: decision.Hit{User: f.user, Key: f.key, Method: f.method, Path: f.path, Door: decision.DoorEnvoy}}
	if caller != nil {
		e.hit.Service = caller.Name
	}
	e.count(d, addend)
	if e.err == nil {
		e.err = s.subjects(&e.hit, &f)
	}
	return e
}

// count is how many units the hit takes: the descriptor's own number, else the call's, else 1. An explicit 0 only looks
// whether one more would fit.
func (e *element) count(d *extv3.RateLimitDescriptor, addend uint32) {
	hits := uint64(max(addend, 1))
	explicit := d.GetHitsAddend()
	if explicit != nil {
		hits = explicit.GetValue()
	}
	switch {
	case hits > uint64(ratelimit.MaxCost):
		e.err = &refusal{problem.Validation, "hits_addend is above 1000000"}
	case hits == 0:
		e.hit.Cost, e.hit.Peek = 1, true
	default:
		e.hit.Cost, e.refund = int64(hits), d.GetIsNegativeHits()
	}
}

// subjects names who pays, by the rules of /v1/check.
func (s *service) subjects(h *decision.Hit, f *facts) error {
	if f.user != "" && !tenants.ValidIdentifier(f.user) || f.key != "" && !tenants.ValidIdentifier(f.key) {
		return &refusal{problem.Validation, "user and key must be 1 to 256 bytes of text"}
	}
	if f.address != "" {
		address, ok := s.engine.AddressPrefix(f.address)
		if !ok {
			return &refusal{problem.Validation, "remote_address must be an IPv4 or IPv6 address"}
		}
		h.Address, h.Standing = address, decision.NamedStanding(f.user, f.key)
	}
	if f.tenant == "" {
		return nil
	}
	tenant, ok := s.directory.Snapshot().Tenant(f.tenant)
	if !ok {
		return decision.ErrUnknownTenant
	}
	h.Tenant = tenant
	return nil
}
