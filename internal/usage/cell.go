package usage

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// cell counts on the hot path. It is only ever added to; whoever collects remembers what it had read before.
type cell struct {
	admitted, slowed, refused, exempt, units atomic.Int64
}

// add counts an event.
func (c *cell) add(ev *Event) {
	switch {
	case ev.Held: // counted as slowed when it was decided
		c.refused.Add(1)
		c.slowed.Add(-1)
		c.units.Add(-ev.Cost)
		return
	case ev.Verdict == Refused:
		c.refused.Add(1)
	case ev.Verdict == Slowed:
		c.slowed.Add(1)
		c.units.Add(ev.Cost)
	default:
		c.admitted.Add(1)
		c.units.Add(ev.Cost)
	}
	if ev.Exempt {
		c.exempt.Add(1)
	}
}

// total is everything so far. What is added meanwhile comes with the next reading.
func (c *cell) total() Counts {
	return Counts{
		Admitted: c.admitted.Load(), Slowed: c.slowed.Load(), Refused: c.refused.Load(), Exempt: c.exempt.Load(), Units: c.units.Load(),
	}
}

// limitCell is a tenant's limit on the hot path.
type limitCell struct {
	cell

	name    string
	watches atomic.Bool
	// peak is the highest utilisation since it was last collected, in millionths, plus 1; 0: no request met the limit. used
	// and quota are that request's.
	peak        atomic.Int64
	used, quota atomic.Int64

	seen limitWindow // the collector's
}

const million = 1_000_000

// note remembers the request that stands highest. Two at one time may mix their numbers up; they are of one moment.
func (c *limitCell) note(l *LimitUse) {
	if c.watches.Load() != l.Watches {
		c.watches.Store(l.Watches)
	}
	mark := int64(l.utilization()*million) + 1
	for {
		old := c.peak.Load()
		if mark <= old {
			return
		}
		if c.peak.CompareAndSwap(old, mark) {
			c.used.Store(l.Used)
			c.quota.Store(l.Quota)
			return
		}
	}
}

// add counts an event under one of the limits it met: under one without room as refused. A hit that others refused does not
// count here.
func (c *limitCell) add(ev *Event, l *LimitUse) {
	c.note(l)
	if ev.Verdict == Refused && !l.Refused && !ev.Held {
		return
	}
	if l.Refused && l.Watches {
		c.refused.Add(1)
		return
	}
	c.cell.add(ev)
}

// table counts names in bounded memory by the space-saving algorithm (Metwally, Agrawal, El Abbadi 2005), for a minute and the
// one before: when it is full, a new name takes the place of the least counted and inherits its count as its error. Whoever has
// more than 1/size of all hits of a minute is certainly in it. A name that is in the table is counted without a lock.
type table struct {
	size  int
	seed  maphash.Seed
	names atomic.Pointer[[]place]
	mu    sync.Mutex // of whoever changes names
}

// place is where a name is. The hash beside it saves looking at every name.
type place struct {
	hash uint64
	*named
}

// named is a name in a table.
type named struct {
	cell

	name string
	// inherited is how many hits it has from whom it replaced; base is its hits before the minute before.
	inherited, base atomic.Int64

	// The collector's: what it had read, hits at the last turn of the minute, and the running minute.
	read     Counts
	lastHits int64
	minute   tally
}

func newTable(size int) *table {
	t := &table{size: size, seed: maphash.MakeSeed()}
	t.names.Store(&[]place{})
	return t
}

func (n *named) hits() int64 { return n.admitted.Load() + n.slowed.Load() + n.refused.Load() }

// rank is the hits of this minute and the one before, and those inherited.
func (n *named) rank() int64 { return n.hits() - n.base.Load() + n.inherited.Load() }

// find is the name's place, which it takes when it has none.
func (t *table) find(name string) *named {
	hash := maphash.String(t.seed, name)
	for _, p := range *t.names.Load() {
		if p.hash == hash && p.name == name {
			return p.named
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	list := *t.names.Load()
	least := 0
	for i, p := range list {
		if p.hash == hash && p.name == name {
			return p.named
		}
		if p.rank() < list[least].rank() {
			least = i
		}
	}
	fresh := place{hash, &named{name: strings.Clone(name)}} // the text may be part of something large
	if len(list) < t.size {
		list = append(slices.Clip(list), fresh)
	} else {
		fresh.inherited.Store(list[least].rank())
		list = slices.Clone(list)
		list[least] = fresh
	}
	t.names.Store(&list)
	return fresh.named
}

// turn begins a minute: names without a hit in the last two leave.
func (t *table) turn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := []place{}
	for _, n := range *t.names.Load() {
		hits := n.hits()
		n.base.Store(n.lastHits)
		n.inherited.Store(0)
		if hits > n.lastHits || hits == 0 {
			kept = append(kept, n)
		}
		n.lastHits = hits
	}
	t.names.Store(&kept)
}

// most are the n names counted most.
func most(list []Refusals, n int) []Refusals {
	slices.SortFunc(list, func(x, y Refusals) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), cmp.Compare(x.Name, y.Name))
	})
	return list[:min(max(n, 0), len(list))]
}

// refusals lists the table.
func (t *table) refusals(into []Refusals) []Refusals {
	for _, n := range *t.names.Load() {
		if count := n.rank(); count > 0 {
			into = append(into, Refusals{Name: n.name, Count: count, Error: n.inherited.Load()})
		}
	}
	return into
}
