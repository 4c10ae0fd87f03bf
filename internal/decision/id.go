package decision

import (
	"crypto/rand"
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// IDSource makes ids of decisions and requests: UUIDv7 in the form of RFC 9562, 6.2 with a dedicated counter. 48 bits are the millisecond, 42 a
// counter that starts at random, 32 this process's random node. It costs one atomic addition; ids of one process sort in
// the order they were made, and two replicas meet only if they share node, millisecond and counter.
type IDSource struct {
	counter atomic.Uint64
	node    uint32
}

// NewIDSource makes one with a random node.
func NewIDSource() *IDSource {
	var seed [12]byte
	_, _ = rand.Read(seed[:]) // never fails: crypto/rand ends the process rather than return an error
	s := &IDSource{node: binary.LittleEndian.Uint32(seed[8:])}
	s.counter.Store(binary.LittleEndian.Uint64(seed[:8]))
	return s
}

// Next is a new id. Safe for concurrent use.
func (s *IDSource) Next(now time.Time) string {
	const lowBits = 30
	n := s.counter.Add(1)
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], uint64(max(0, now.UnixMilli()))<<16|0x7000|n>>lowBits&0xfff)
	binary.BigEndian.PutUint64(id[8:], 1<<63|n&(1<<lowBits-1)<<32|uint64(s.node))
	return id.String()
}
