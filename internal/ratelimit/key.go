package ratelimit

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// keyVersion is part of every counter's identity: raise it when the stored form of a counter changes.
const keyVersion = 1

// Subject is one concrete counter owner, with the group it shares a cluster slot with.
type Subject struct {
	// Group is the installation and the tenant's immutable id, or for ScopeAddress the address prefix as text. All
	// counters of one group hash to one slot.
	Group string
	// Generation is the group's reset generation: a reset is one increment, and no cached, Redis or Postgres counter
	// survives it.
	Generation int64
	Scope      Scope
	// ID is the user or key within the tenant, or the address; empty for ScopeTenant. Any bytes.
	ID string
}

// Key is where a counter lives: printable ASCII, "pegel:{<group>}:<identity>", 41 bytes. The part in braces is the hash
// tag of Redis Cluster. It holds no credential and no name in clear text.
type Key string

// CounterKey is the identity of a limit's counter for a subject: a SHA-256 over the length-prefixed tuple (format
// version, group, generation, scope, id, limit name, algorithm, span), cut to 128 bits, so that no two tuples meet
// whatever bytes they hold. The quota is not part of it: a changed quota acts on the live counter.
func CounterKey(s Subject, l *Limit) Key {
	var scratch [256]byte
	b := scratch[:0]
	b = append(b, keyVersion)
	b = appendField(b, s.Group)
	b = binary.AppendVarint(b, s.Generation)
	b = appendField(b, string(s.Scope))
	b = appendField(b, s.ID)
	b = appendField(b, l.Name)
	b = appendField(b, string(l.Algorithm))
	b = binary.AppendVarint(b, l.identitySpan().Microseconds())
	sum := sha256.Sum256(b)
	group := sha256.Sum256([]byte(s.Group))

	out := make([]byte, 0, 41)
	out = append(out, "pegel:{"...)
	out = hex.AppendEncode(out, group[:5])
	out = append(out, "}:"...)
	out = base64.RawURLEncoding.AppendEncode(out, sum[:16])
	return Key(out)
}

// SameCounter reports whether two limits of one subject share a counter, so that a change from one to the other keeps what was
// used.
func SameCounter(a, b *Limit) bool {
	return a.Name == b.Name && a.Scope == b.Scope && a.Algorithm == b.Algorithm && a.identitySpan() == b.identitySpan()
}

// identitySpan is the window that belongs to a counter's identity. A bucket's capacity and rate may both change on the
// live counter, so none of it is identity.
func (l *Limit) identitySpan() time.Duration {
	if l.Algorithm.Bucket() {
		return 0
	}
	return l.Window
}

func appendField(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}
