package jwt

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// proof is what a verified token says.
type proof struct {
	tenant, user string
	keys         uint64    // the generation of the key set that verified it
	until        time.Time // it counts before that
}

const (
	cacheShards = 16
	// cacheEntries is how many verified tokens a shard remembers at most, twice over: 16,384 to 32,768 in all, of a few
	// hundred bytes each.
	cacheEntries = 1024
)

// cache remembers verified tokens by their SHA-256. Of each shard the newer half is kept when it is full. Only what verified
// gets in: a stranger cannot fill it.
type cache struct{ shards [cacheShards]cacheShard }

type cacheShard struct {
	mu         sync.Mutex
	newer, old map[[32]byte]proof
}

func (c *cache) init() {
	for i := range c.shards {
		c.shards[i].newer = make(map[[32]byte]proof)
	}
}

func (c *cache) get(id [32]byte) (proof, bool) {
	s := &c.shards[id[0]%cacheShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.newer[id]
	if !ok {
		if found, ok = s.old[id]; ok {
			s.put(id, found) // still in use
		}
	}
	return found, ok
}

func (c *cache) put(id [32]byte, p proof) {
	s := &c.shards[id[0]%cacheShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(id, p)
}

func (s *cacheShard) put(id [32]byte, p proof) {
	if len(s.newer) >= cacheEntries {
		s.old, s.newer = s.newer, make(map[[32]byte]proof)
	}
	s.newer[id] = p
}

const (
	// failuresPerSecond is how many wrong signatures of one address are checked within a second. At 50 µs to 0.5 ms each, by
	// algorithm, that is at most a hundredth of a core.
	failuresPerSecond = 20
	failureSlots      = 4096
)

// failures counts wrong signatures by address, in slots that addresses share by chance: whoever shares one with a flood is
// anonymous for a second, unless the token is known already.
type failures struct {
	seed  maphash.Seed
	slots [failureSlots]atomic.Uint64 // Unix second << 16 | failures within it
}

func (f *failures) init() { f.seed = maphash.MakeSeed() }

func (f *failures) slot(from netip.Prefix) *atomic.Uint64 {
	return &f.slots[maphash.Comparable(f.seed, from.Masked())%failureSlots]
}

func (f *failures) room(from netip.Prefix, now time.Time) bool {
	value := f.slot(from).Load()
	return value>>16 != second(now) || value&0xffff < failuresPerSecond
}

func (f *failures) add(from netip.Prefix, now time.Time) {
	slot := f.slot(from)
	for {
		value := slot.Load()
		next := second(now)<<16 | 1
		if value>>16 == second(now) {
			next = min(value+1, value|0xffff)
		}
		if slot.CompareAndSwap(value, next) {
			return
		}
	}
}

func second(now time.Time) uint64 {
	return uint64(now.Unix()) & (1<<48 - 1) //nolint:gosec // a number to compare, whatever its sign
}
