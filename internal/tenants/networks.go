package tenants

import (
	"net/netip"
	"time"

	"github.com/gaissmai/bart"
)

// networkPair is what the lists say of exactly one range.
type networkPair struct{ deny, allow *Network }

func networkTable(entries *layered[int64, Network]) *bart.Table[networkPair] {
	if entries.len() == 0 {
		return nil
	}
	table := new(bart.Table[networkPair])
	entries.all(func(_ int64, n *Network) bool {
		table.Modify(n.CIDR, func(pair networkPair, _ bool) (networkPair, bool) {
			if n.Action == Deny {
				pair.deny = n
			} else {
				pair.allow = n
			}
			return pair, false
		})
		return true
	})
	return table
}

// NetworkDenied reports whether the network lists refuse an address at a moment: the narrowest live entry that holds it decides.
// An allow entry only carves out of a broader deny: beside a deny of exactly the same range the deny wins. Addresses no
// entry holds are not denied.
func (s *Snapshot) NetworkDenied(addr netip.Addr, now time.Time) bool {
	if s.networksByRange == nil || !addr.IsValid() {
		return false
	}
	addr = addr.Unmap().WithZone("")
	if _, covered := s.networksByRange.Lookup(addr); !covered {
		return false
	}
	for _, pair := range s.networksByRange.Supernets(netip.PrefixFrom(addr, addr.BitLen())) {
		switch {
		case pair.deny.aliveAt(now):
			return true
		case pair.allow.aliveAt(now):
			return false
		}
	}
	return false
}

func (n *Network) aliveAt(now time.Time) bool {
	return n != nil && (n.ExpiresAt.IsZero() || now.Before(n.ExpiresAt))
}
