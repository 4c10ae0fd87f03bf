package ratelimit

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// ledgerShards is a power of two well above the number of cores.
	ledgerShards = 64
	// ledgerCounters bounds how many counters a ledger remembers: about 40 MB.
	ledgerCounters = 1 << 18
	// ledgerSweepEvery is how often, in µs, a full shard looks for counters that can be forgotten.
	ledgerSweepEvery = int64(time.Second / time.Microsecond)
	// mirroredFrom is the share of its quota, 1 ÷ mirroredFrom, from which on a counter is mirrored.
	mirroredFrom = 5
)

// ledger is what this replica remembers of the counters that its first store decided: the last use it was told of, whether
// the fallback knows of it, and whether the first store knows all that the fallback does. Safe for concurrent use; an
// operation locks one shard of many for well below a microsecond.
type ledger struct {
	seed   maphash.Seed
	shards [ledgerShards]ledgerShard

	tracked atomic.Int64
	pending atomic.Int64 // counters whose use is to be mirrored
	owing   atomic.Int64 // counters that the fallback decided since the first store last had a top-up
	dropped atomic.Int64 // uses that should have been mirrored and found no place
}

type ledgerShard struct {
	mu      sync.Mutex
	entries map[Key]*ledgerEntry
	swept   int64
	_       [64]byte // shards do not share a cache line
}

// ledgerEntry is one counter. Times are µs on the handover's clock.
type ledgerEntry struct {
	limit  *Limit
	used   int64 // as the first store last said, at noted; nothing is left of it from whole on
	noted  int64
	whole  int64
	keep   int64  // until when the entry says anything at all
	settle uint64 // the epoch in which the first store was told what it may lack
	change uint32 // counts the uses noted
	told   uint32 // the change that the fallback knows of
	again  int64  // until when the first store owes nothing, though not all has been told
	dirty  bool   // the fallback is to be told of the last one
	owes   bool   // the fallback has decided since: the first store lacks that
}

func newLedger() *ledger {
	l := &ledger{seed: maphash.MakeSeed()}
	for i := range l.shards {
		l.shards[i].entries = make(map[Key]*ledgerEntry)
	}
	return l
}

func (l *ledger) shard(k Key) *ledgerShard {
	return &l.shards[maphash.String(l.seed, string(k))%ledgerShards]
}

// note remembers what the first store said of a counter, in the given epoch.
func (l *ledger) note(c *Counter, state *CounterState, epoch uint64, now int64) {
	worth := state.Used > 0 && state.Used*mirroredFrom >= c.Limit.Quota
	s := l.shard(c.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[c.Key]
	if e == nil {
		if state.Used == 0 {
			return
		}
		if e = l.begin(s, c.Key, worth, now); e == nil {
			return
		}
		e.settle = epoch
	}
	changed := state.Charged > 0 || e.used != state.Used || e.limit != c.Limit
	e.limit, e.used, e.noted = c.Limit, state.Used, now
	e.whole = now + state.ResetAfter.Microseconds()
	e.keep = max(e.keep, e.whole)
	if !changed {
		return
	}
	e.change++
	l.setDirty(e, worth)
}

// begin makes an entry; nil when there is no room. Counters that are not to be mirrored leave half of the room to the others.
func (l *ledger) begin(s *ledgerShard, k Key, worth bool, now int64) *ledgerEntry {
	most := ledgerCounters / ledgerShards
	if !worth {
		most /= 2
	}
	if len(s.entries) >= most {
		if now-s.swept >= ledgerSweepEvery {
			l.sweep(s, now)
		}
		if len(s.entries) >= most {
			if worth {
				l.dropped.Add(1)
			}
			return nil
		}
	}
	e := &ledgerEntry{}
	s.entries[k] = e
	l.tracked.Add(1)
	return e
}

func (l *ledger) setDirty(e *ledgerEntry, dirty bool) {
	if e.dirty != dirty {
		e.dirty = dirty
		l.pending.Add(plusOrMinus(dirty))
	}
}

func (l *ledger) setOwes(e *ledgerEntry, owes bool) {
	if e.owes != owes {
		e.owes = owes
		l.owing.Add(plusOrMinus(owes))
	}
}

func plusOrMinus(plus bool) int64 {
	if plus {
		return 1
	}
	return -1
}

// sweep drops what says nothing any more.
func (l *ledger) sweep(s *ledgerShard, now int64) {
	s.swept = now
	for k, e := range s.entries {
		if e.keep > now {
			continue
		}
		l.setDirty(e, false)
		l.setOwes(e, false)
		delete(s.entries, k)
		l.tracked.Add(-1)
	}
	if len(s.entries) == 0 {
		s.entries = make(map[Key]*ledgerEntry) // gives the memory back
	}
}

// owes reports whether the first store may lack what the fallback, or this replica, knows of a counter: all that was
// decided before the epoch began, at since, or what the fallback has decided in it.
func (l *ledger) owes(c *Counter, epoch uint64, since, now int64) bool {
	lives := now-since < keepsFor(c.Limit)
	if !lives && l.owing.Load() == 0 {
		return false
	}
	s := l.shard(c.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[c.Key]
	if e == nil {
		return lives
	}
	return now >= e.again && (e.owes || (lives && e.settle != epoch))
}

// keepsFor is how long after a use a store may still count it, in µs.
func keepsFor(l *Limit) int64 {
	span := max(l.Span(), time.Second).Microseconds()
	return span + span/8
}

// toppedUp notes that the first store has been told all there was to tell of a counter; or not all, because the second did
// not say what it knows: then it is to be asked again, but not with every charge.
func (l *ledger) toppedUp(c *Counter, epoch uint64, all bool, now int64) {
	l.mark(c, now, func(e *ledgerEntry) {
		if !all {
			e.again = now + readAgain
			return
		}
		e.settle = epoch
		l.setOwes(e, false)
	})
}

// fellBack notes that the fallback decided about a counter.
func (l *ledger) fellBack(c *Counter, now int64) {
	l.mark(c, now, func(e *ledgerEntry) { l.setOwes(e, true) })
}

// mark changes a counter's entry, which it makes where there is room for it.
func (l *ledger) mark(c *Counter, now int64, change func(*ledgerEntry)) {
	s := l.shard(c.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[c.Key]
	if e == nil {
		if e = l.begin(s, c.Key, true, now); e == nil {
			return
		}
		e.limit, e.noted, e.whole = c.Limit, now, now
	}
	e.keep = max(e.keep, now+keepsFor(c.Limit))
	change(e)
}

// remembered is what this replica knows of a counter's use, as one portion; none when nothing is left of it.
func (l *ledger) remembered(k Key, now int64) (Portion, bool) {
	s := l.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[k]; e != nil && e.lasts(now) {
		return e.portion(now), true
	}
	return Portion{}, false
}

// lasts reports whether the use noted still counts for something elsewhere. What a fixed window used in its last second does
// not: by another store's clock it may belong to the next one, and it would count there for a whole window.
func (e *ledgerEntry) lasts(now int64) bool {
	if e.used == 0 || e.whole <= now {
		return false
	}
	return e.limit.Algorithm != FixedWindow || e.whole-e.noted > time.Second.Microseconds()
}

func (e *ledgerEntry) portion(now int64) Portion {
	return Portion{Age: time.Duration(max(0, now-e.noted)) * time.Microsecond, Units: e.used}
}

// unmirrored is a counter whose use the fallback has to be told.
type unmirrored struct {
	key    Key
	limit  *Limit
	use    Portion
	change uint32
}

// unmirroredOf is what the fallback does not know of a counter, below the share from which counters are mirrored, too.
func (l *ledger) unmirroredOf(k Key, now int64) (unmirrored, bool) {
	s := l.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[k]
	if e == nil || e.told == e.change || !e.lasts(now) {
		return unmirrored{}, false
	}
	return unmirrored{k, e.limit, e.portion(now), e.change}, true
}

// takeUnmirrored collects what is to be mirrored of one shard, and forgets what says nothing any more.
func (l *ledger) takeUnmirrored(shard int, now int64, all []unmirrored) []unmirrored {
	s := &l.shards[shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	l.sweep(s, now)
	for k, e := range s.entries {
		switch {
		case !e.dirty:
		case !e.lasts(now):
			l.setDirty(e, false)
		default:
			all = append(all, unmirrored{k, e.limit, e.portion(now), e.change})
		}
	}
	return all
}

// mirrored notes that the fallback knows of a use; there may have been another one since.
func (l *ledger) mirrored(u *unmirrored) {
	s := l.shard(u.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[u.key]
	if e == nil {
		return
	}
	e.told = u.change
	if e.change == u.change {
		l.setDirty(e, false)
	}
}
