package tenants

import (
	"net/netip"
	"slices"
	"time"

	"github.com/gaissmai/bart"
)

// LiveNetworks are the entries of the network lists that hold at a moment, the narrowest networks first: the first that
// holds an address decides. Of two of the same range only the deny is there.
func (s *Snapshot) LiveNetworks(now time.Time) []Network {
	var live []Network
	s.networks.all(func(_ int64, n *Network) bool {
		if n.aliveAt(now) {
			live = append(live, *n)
		}
		return true
	})
	slices.SortFunc(live, func(a, b Network) int {
		if c := b.CIDR.Bits() - a.CIDR.Bits(); c != 0 {
			return c
		}
		if c := a.CIDR.Addr().Compare(b.CIDR.Addr()); c != 0 {
			return c
		}
		if a.Action == b.Action {
			return 0
		}
		if a.Action == Deny {
			return -1
		}
		return 1
	})
	return slices.CompactFunc(live, func(a, b Network) bool { return a.CIDR == b.CIDR })
}

// DeniedRanges are the networks that are denied at a moment with the carved-out ones subtracted, in the order of addresses: for machines that
// know a list of denied networks and nothing else. They are as few as they can be without joining neighbours.
func (s *Snapshot) DeniedRanges(now time.Time) []netip.Prefix {
	table := new(bart.Table[NetworkAction])
	for _, n := range s.LiveNetworks(now) {
		table.Insert(n.CIDR, n.Action)
	}
	var denied []netip.Prefix
	for prefix, action := range table.AllSorted() {
		if action == Deny && !coveredBy(denied, prefix) {
			denied = append(denied, prefix)
		}
	}
	ranges := make([]netip.Prefix, 0, len(denied))
	for _, prefix := range denied {
		ranges = subtract(ranges, table, prefix, Deny)
	}
	return ranges
}

// coveredBy reports whether the last of some sorted prefixes holds another; what comes later can only lie in the last.
func coveredBy(sorted []netip.Prefix, p netip.Prefix) bool {
	return len(sorted) > 0 && sorted[len(sorted)-1].Overlaps(p)
}

// subtract appends what is denied of a range whose own action is given: all of it when no entry inside says otherwise, else
// what is denied of its halves.
func subtract(ranges []netip.Prefix, table *bart.Table[NetworkAction], p netip.Prefix, action NetworkAction) []netip.Prefix {
	if own, ok := table.Get(p); ok {
		action = own
	}
	mixed := false
	for _, inner := range table.Subnets(p) {
		if inner != action {
			mixed = true
			break
		}
	}
	switch {
	case !mixed && action == Deny:
		return append(ranges, p)
	case !mixed:
		return ranges
	}
	low, high := halves(p)
	return subtract(subtract(ranges, table, low, action), table, high, action)
}

// halves splits a prefix that is not a single address.
func halves(p netip.Prefix) (low, high netip.Prefix) {
	bits := p.Bits() + 1
	raw := p.Addr().AsSlice()
	raw[p.Bits()/8] |= 1 << (7 - p.Bits()%8)
	upper, _ := netip.AddrFromSlice(raw)
	return netip.PrefixFrom(p.Addr(), bits), netip.PrefixFrom(upper, bits)
}
