package usage

import "time"

// maxPending bounds the rows of history that wait for Postgres: an hour of some 800 tenants, about 40 MB.
const maxPending = 200_000

// collected is what the collector knows of everything that is not one tenant's.
type collected struct {
	second    int64 // of the last collection, Unix, on a clock that never goes back
	shift     int64 // what that clock is ahead of the replica's, in whole minutes, since the replica's went back; what leaves is without it
	minute    int64 // the running minute's first second
	anonymous sum
	overflow  sum
	wrong     sum
	total     sum
	series    series
	pending   map[rowKey]Counts
	lost      int64
}

// sum is a cell as the collector sees it.
type sum struct {
	read   Counts
	last   window
	minute tally
}

// collect takes what came since the last time.
func (s *sum) collect(now Counts, second int64) Counts {
	delta := now.minus(&s.read)
	s.read = now
	s.add(&delta, second)
	return delta
}

func (s *sum) add(delta *Counts, second int64) {
	s.last.add(second, delta)
	if *delta != (Counts{}) {
		s.minute.add(delta)
	}
}

// Collect turns what was recorded since the last call into windows, minutes and the series; call it at the start of every
// second, so that what it takes is the second before, and whenever the latest is wanted. Time that goes back a little is the
// newest second known.
func (a *Aggregator) Collect(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.follow(now.Unix())
	second := max(now.Unix()+a.shift, a.second)
	if a.second == 0 {
		a.minute = second - second%60
	}
	var total Counts
	a.tenants.all(func(t *tenantCell) {
		delta := t.collect(second)
		total.Add(&delta)
	})
	for _, part := range []struct {
		sum  *sum
		cell *cell
	}{{&a.collected.anonymous, &a.anonymous}, {&a.collected.overflow, &a.overflow}} {
		delta := part.sum.collect(part.cell.total(), second)
		total.Add(&delta)
	}
	a.collected.wrong.collect(a.wrong.total(), second)
	a.total.add(&total, second)
	a.series.add(second, &total)
	a.second = second
	if minute := second - second%60; minute > a.minute {
		a.turn(minute)
	}
}

// follow notices that the clock was set back by more than a window: waiting for it would stop everything that slides. Ages
// stay as they are; the running minute ends with the name it had.
func (a *Aggregator) follow(now int64) {
	behind := a.second - a.shift - now
	if a.second == 0 || behind <= windowSeconds {
		return
	}
	a.drain(true)
	a.shift += (behind + 59) / 60 * 60
}

// collect takes what a tenant gathered.
func (t *tenantCell) collect(second int64) Counts {
	w := &t.seen
	now := t.total()
	delta := now.minus(&w.read)
	if delta == (Counts{}) && w.last.slots == nil && second-w.lastHit > 2*windowSeconds {
		return delta // nothing moves
	}
	w.read = now
	if delta != (Counts{}) {
		w.lastHit = second
	}
	for _, l := range *t.limits.Load() {
		l.seen.collect(l, second)
		if !l.watches.Load() && l.seen.lastHit == second {
			delta.Peak = max(delta.Peak, l.seen.utilization)
		}
	}
	w.last.add(second, &delta)
	if delta == (Counts{}) {
		return delta
	}
	w.minute.add(&delta)
	for _, names := range []*table{t.users.Load(), t.keys.Load()} {
		names.collect()
	}
	return delta
}

// collect takes what the table's names gathered.
func (t *table) collect() {
	if t == nil {
		return
	}
	for _, n := range *t.names.Load() {
		now := n.total()
		if delta := now.minus(&n.read); delta != (Counts{}) {
			n.read = now
			n.minute.add(&delta)
		}
	}
}

// turn ends the running minute: its rows wait for Postgres, and who was idle for long is forgotten.
func (a *Aggregator) turn(minute int64) {
	a.drain(true)
	a.minute = minute
	a.tenants.all(func(t *tenantCell) {
		if time.Duration(a.second-t.seen.lastHit)*time.Second >= idleAfter && t.total() == t.seen.read {
			a.tenants.remove(t.id)
			a.size.Add(-1)
			return
		}
		for _, names := range []*table{t.users.Load(), t.keys.Load()} {
			if names != nil {
				names.turn()
			}
		}
	})
	for _, shard := range a.addresses {
		shard.turn()
	}
	a.services.turn()
}

// drain moves what changed in the running minute to the rows that wait; end also ends it.
func (a *Aggregator) drain(end bool) {
	take := func(tenant int64, kind Kind, name string, t *tally) {
		if t.unwritten {
			a.pend(rowKey{minute: a.minute - a.shift, tenant: tenant, kind: kind, name: name}, t.Counts, true)
		}
		t.unwritten = false
		if end {
			t.Counts = Counts{}
		}
	}
	take(0, KindTenant, "", &a.collected.anonymous.minute)
	take(0, KindTotal, "", &a.total.minute)
	a.tenants.all(func(t *tenantCell) {
		take(t.id, KindTenant, "", &t.seen.minute)
		for _, l := range *t.limits.Load() {
			take(t.id, KindLimit, l.name, &l.seen.minute)
		}
		for kind, names := range map[Kind]*table{KindUser: t.users.Load(), KindKey: t.keys.Load()} {
			if names == nil {
				continue
			}
			for _, n := range *names.names.Load() {
				take(t.id, kind, n.name, &n.minute)
			}
		}
	})
}

// pend has a row wait; newer says whether it knows more than one that waits already.
func (a *Aggregator) pend(key rowKey, c Counts, newer bool) {
	_, waits := a.pending[key]
	switch {
	case waits && !newer:
	case !waits && len(a.pending) >= maxPending:
		a.lost++
	default:
		a.pending[key] = c
	}
}

type rowKey struct {
	minute, tenant int64
	kind           Kind
	name           string
}

// Row is a minute of something in this run of the process so far: a later row of the same minute and name replaces it.
type Row struct {
	Minute   time.Time
	TenantID int64
	Kind     Kind
	Name     string
	Counts
}

// Take is what history has not been told of. What could not be written comes back by Return.
func (a *Aggregator) Take() []Row {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drain(false)
	rows := make([]Row, 0, len(a.pending))
	for key, c := range a.pending {
		rows = append(rows, Row{Minute: when(key.minute), TenantID: key.tenant, Kind: key.kind, Name: key.name, Counts: c})
	}
	clear(a.pending)
	return rows
}

// Return takes rows back that were not written, or perhaps not.
func (a *Aggregator) Return(rows []Row) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range rows {
		r := &rows[i]
		a.pend(rowKey{minute: r.Minute.Unix(), tenant: r.TenantID, kind: r.Kind, name: r.Name}, r.Counts, false)
	}
}

// Lost is how many rows of history found no room while Postgres was away, Waiting how many wait for it.
func (a *Aggregator) Lost() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lost
}

// Waiting is how many rows of history wait for Postgres.
func (a *Aggregator) Waiting() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.pending)
}

// seriesPoints are the steps of an hour, and the running one.
const seriesPoints = int64(SeriesLength/SeriesStep) + 1

// flow is admitted, slowed, refused.
type flow [3]int64

// series is the last hour in steps.
type series struct {
	first, step int64 // steps since 1970: of the first collection, and the running one
	points      [seriesPoints]flow
}

func (s *series) add(second int64, c *Counts) {
	step := second / int64(SeriesStep/time.Second)
	if s.first == 0 {
		s.first, s.step = step, step
	}
	for gone := min(step-s.step, seriesPoints); gone > 0; gone-- {
		s.points[(step-gone+1)%seriesPoints] = flow{}
	}
	s.step = max(s.step, step)
	p := &s.points[s.step%seriesPoints]
	p[0] += c.Admitted
	p[1] += c.Slowed
	p[2] += c.Refused
}

// full is the full steps, oldest first, and the number of the first.
func (s *series) full() (first int64, points []flow) {
	first = max(s.first, s.step-seriesPoints+1)
	for step := first; step < s.step; step++ {
		points = append(points, s.points[step%seriesPoints])
	}
	return first, points
}
