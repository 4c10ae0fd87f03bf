package usage

import (
	"sync"
	"time"
)

// Numbers are kept in slots of five seconds for two minutes: enough for the last 60 s and for the last full minute.
const (
	slotSeconds = 5
	slotCount   = 24
	minuteSlots = 60 / slotSeconds
)

// Counts is what happened to hits.
type Counts struct {
	Admitted int64 // at full speed
	Slowed   int64 // let through after a delay
	Refused  int64
	Exempt   int64 // of all of them: spared the address limits by a service token
	Units    int64 // the cost of those let through
	Peak     float64
}

// Hits is how many hits there were.
func (c *Counts) Hits() int64 { return c.Admitted + c.Slowed + c.Refused }

func (c *Counts) add(o *Counts) {
	c.Admitted += o.Admitted
	c.Slowed += o.Slowed
	c.Refused += o.Refused
	c.Exempt += o.Exempt
	c.Units += o.Units
	c.Peak = max(c.Peak, o.Peak)
}

type slot struct {
	at int64 // number of the slot since 1970; a slot of another round is empty
	Counts
}

// tenantUsage is one tenant's numbers.
type tenantUsage struct {
	mu        sync.Mutex
	slots     [slotCount]slot
	last      Event
	highSince time.Time
}

func slotOf(t time.Time) int64 { return t.Unix() / slotSeconds }

func (t *tenantUsage) record(ev *Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := slotOf(ev.At)
	s := &t.slots[n%slotCount]
	if s.at != n {
		*s = slot{at: n}
	}
	switch {
	case ev.Held: // counted as slowed when it was decided
		s.Refused++
		s.Slowed = max(0, s.Slowed-1)
		s.Units = max(0, s.Units-ev.Cost)
		return
	case ev.Verdict == Refused:
		s.Refused++
	case ev.Verdict == Slowed:
		s.Slowed++
		s.Units += ev.Cost
	default:
		s.Admitted++
		s.Units += ev.Cost
	}
	if ev.Exempt {
		s.Exempt++
	}
	u := ev.utilization()
	s.Peak = max(s.Peak, u)
	t.trackHigh(n, u, ev.At)
	if ev.LimitName == "" { // no limit of the tenant's own was asked: the numbers known last still stand
		ev.LimitName, ev.Used, ev.Quota = t.last.LimitName, t.last.Used, t.last.Quota
	}
	t.last = *ev
}

// trackHigh keeps since when utilisation has been high: slot by slot, by the slot's peak, so that single events of a lower
// limit do not end a stretch. A stretch ends with a slot that stayed low or with a minute of silence.
func (t *tenantUsage) trackHigh(n int64, utilization float64, at time.Time) {
	if !t.highSince.IsZero() {
		before := slotOf(t.last.At)
		if n-before >= minuteSlots || n > before && t.peakOf(before) < highFrom {
			t.highSince = time.Time{}
		}
	}
	if utilization >= highFrom && t.highSince.IsZero() {
		t.highSince = at
	}
}

func (t *tenantUsage) peakOf(n int64) float64 {
	if s := &t.slots[n%slotCount]; s.at == n {
		return s.Peak
	}
	return 0
}

// sum adds the slots in (from, to].
func (t *tenantUsage) sum(from, to int64) (c Counts) {
	for i := range t.slots {
		if s := &t.slots[i]; s.at > from && s.at <= to {
			c.add(&s.Counts)
		}
	}
	return c
}

func (t *tenantUsage) idleSince(now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return now.Sub(t.last.At)
}

// view is the tenant's numbers at a moment.
func (t *tenantUsage) view(now time.Time) TenantUsage {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := slotOf(now)
	v := TenantUsage{
		TenantID: t.last.TenantID, Tenant: t.last.Tenant, Plan: t.last.Plan, LimitName: t.last.LimitName,
		Used: t.last.Used, Limit: t.last.Quota, Utilization: t.last.utilization(), LastAt: t.last.At,
		Last60s: t.sum(n-minuteSlots, n),
	}
	if !t.highSince.IsZero() && now.Sub(t.last.At) < time.Minute {
		v.HighSince = t.highSince
	}
	return v
}

// utilization is used ÷ quota of the tightest limit, 1 for a quota of 0, and 0 when no limit applied.
func (ev *Event) utilization() float64 {
	switch {
	case ev.LimitName == "":
		return 0
	case ev.Quota <= 0:
		return 1
	}
	return min(1, float64(ev.Used)/float64(ev.Quota))
}
