package storetest

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// segments is the reference of a Segmented store: what README.md says of Postgres, in the plainest form, for one
// goroutine. Fixed windows are kept by ratelimit.Memory's rules.
type segments struct {
	now  func() int64
	rows map[ratelimit.Key]map[int64]int64 // start → units
}

func newSegments(now func() int64) *segments {
	return &segments{now: now, rows: make(map[ratelimit.Key]map[int64]int64)}
}

func (*segments) Source() ratelimit.Source { return ratelimit.SourcePostgres }

func (m *segments) Decide(_ context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
	for i := range charges {
		out[i] = m.charge(&charges[i])
	}
	return nil
}

// gauge is one counter read at one time.
type gauge struct {
	limit        *ratelimit.Limit
	units        int64
	rows         map[int64]int64
	live         []int64 // starts, oldest first
	used         int64
	span, length int64 // of the whole and of one row, µs
	most         int64 // the quota that decides
	now          int64
}

func (m *segments) gauge(c *ratelimit.Counter, cost int64) *gauge {
	l := c.Limit
	g := &gauge{limit: l, units: l.UnitsPerHit(cost), rows: m.rows[c.Key], now: m.now(), most: l.Quota}
	if l.Algorithm == ratelimit.FixedWindow {
		g.span = l.Window.Microseconds()
		g.length = g.span
	} else {
		g.span = max(l.Span(), time.Second).Microseconds()
		g.length = g.span / 8
	}
	if l.Algorithm.Bucket() {
		g.most = max(l.Quota, int64(float64(l.Refill.Units)*1e6/float64(l.Refill.Every.Microseconds())))
	}
	for start, units := range g.rows {
		live := start+g.length > g.now-g.span && start <= g.now+g.span+g.length
		if l.Algorithm == ratelimit.FixedWindow {
			live = start == g.start()
		}
		if live && units > 0 {
			g.live = append(g.live, start)
			g.used += units
		}
	}
	slices.Sort(g.live)
	return g
}

// start is where the row of now begins.
func (g *gauge) start() int64 { return g.now / g.length * g.length }

// leaves is when a row stops counting.
func (g *gauge) leaves(start int64) int64 {
	if g.limit.Algorithm == ratelimit.FixedWindow {
		return start + g.length
	}
	return start + g.length + g.span
}

func (g *gauge) fit(hits int64) int64 {
	switch {
	case g.limit.Quota <= 0 || g.units > g.limit.Quota:
		return 0
	case g.units == 0:
		return hits
	}
	return min(hits, max(0, g.most-g.used)/g.units)
}

func (m *segments) charge(c *ratelimit.Charge) ratelimit.Outcome {
	if c.Kind == ratelimit.Raise {
		return m.raise(c)
	}
	out := ratelimit.Outcome{Source: m.Source(), Admitted: c.Hits, Counters: make([]ratelimit.CounterState, len(c.Counters))}
	gauges := make([]*gauge, len(c.Counters))
	for i := range c.Counters {
		gauges[i] = m.gauge(&c.Counters[i], c.Cost)
		if !c.Counters[i].Shadow && c.Kind != ratelimit.Refund {
			out.Admitted = min(out.Admitted, gauges[i].fit(c.Hits))
		}
	}
	for i, g := range gauges {
		key := c.Counters[i].Key
		charged := int64(0)
		let := min(out.Admitted, g.fit(c.Hits))
		switch {
		case c.Kind == ratelimit.Refund:
			m.refund(key, g, c.Hits)
		case c.Kind == ratelimit.Take && c.Cost > 0 && let > 0:
			charged = let
			if m.rows[key] == nil {
				m.rows[key] = make(map[int64]int64)
			}
			m.rows[key][g.start()] += charged * g.units
		}
		before := g.used
		g = m.gauge(&c.Counters[i], c.Cost)
		out.Counters[i] = g.state()
		out.Counters[i].Charged = charged
		if c.Kind == ratelimit.Account {
			out.Portions = append(out.Portions, g.portions())
		}
		if g.limit.Algorithm == ratelimit.LeakyBucket && c.Kind != ratelimit.Refund && let > 0 {
			out.Counters[i].Delay = drain(g.limit, before)
			out.Counters[i].DelayStep = drain(g.limit, g.units)
		}
	}
	return out
}

// refund takes from the oldest live rows first.
func (m *segments) refund(key ratelimit.Key, g *gauge, hits int64) {
	units := hits * g.units
	for _, start := range g.live {
		off := min(g.rows[start], units)
		m.rows[key][start] -= off
		units -= off
	}
}

// raise takes what is known together, at the age of the youngest.
func (m *segments) raise(c *ratelimit.Charge) ratelimit.Outcome {
	for i := range c.Counters {
		g := m.gauge(&c.Counters[i], 1)
		fixed := g.limit.Algorithm == ratelimit.FixedWindow
		units, age := int64(0), int64(math.MaxInt64)
		for _, p := range c.Known[i] {
			if old := p.Age.Microseconds(); p.Units > 0 && (fixed || old < g.span) {
				units, age = units+p.Units, min(age, old)
			}
		}
		row := (g.now - age) / g.length * g.length
		if units == 0 || (fixed && row < g.start()) {
			continue
		}
		if missing := units - g.shows(); missing > 0 {
			if m.rows[c.Counters[i].Key] == nil {
				m.rows[c.Counters[i].Key] = make(map[int64]int64)
			}
			m.rows[c.Counters[i].Key][row] += missing
		}
	}
	return ratelimit.Outcome{Source: m.Source(), Admitted: c.Hits, Counters: make([]ratelimit.CounterState, len(c.Counters))}
}

// shows is what a raise finds: what the limit's own algorithm would make of the rows, as well as they say.
func (g *gauge) shows() int64 {
	used, level, before := int64(0), 0.0, int64(0)
	for _, start := range g.live {
		units, end := g.rows[start], min(start+g.length, g.now)
		switch {
		case g.limit.Algorithm.Bucket():
			level = max(0, level-g.drained(end-before)) + float64(units)
			before = end
		case g.limit.Algorithm != ratelimit.FixedWindow && start < g.now-g.span:
			used += int64(math.Floor(float64(units) * float64(start+g.length-g.now+g.span) / float64(g.length)))
		default:
			used += units
		}
	}
	if g.limit.Algorithm.Bucket() && len(g.live) > 0 {
		return int64(math.Floor(max(0, level-g.drained(g.now-before))))
	}
	return used
}

func (g *gauge) drained(us int64) float64 {
	return float64(float64(us)*float64(g.limit.Refill.Units)) / float64(g.limit.Refill.Every.Microseconds())
}

func (g *gauge) portions() []ratelimit.Portion {
	var all []ratelimit.Portion
	for _, start := range slices.Backward(g.live) {
		age := max(0, g.now-start-g.length)
		if g.limit.Algorithm == ratelimit.FixedWindow {
			age = (g.now - start) / 2
		}
		all = append(all, ratelimit.Portion{Age: time.Duration(age) * time.Microsecond, Units: g.rows[start]})
	}
	return all
}

func (g *gauge) state() ratelimit.CounterState {
	s := ratelimit.CounterState{Used: min(g.used, g.limit.Quota), Effective: ratelimit.SlidingWindowSegments}
	if g.limit.Algorithm == ratelimit.FixedWindow {
		s.Effective = ratelimit.FixedWindow
	}
	s.Remaining = g.limit.Quota - s.Used
	if n := len(g.live); n > 0 {
		s.ResetAfter = time.Duration(g.leaves(g.live[n-1])-g.now) * time.Microsecond
	}
	if g.limit.Quota <= 0 || g.units > g.limit.Quota {
		s.RetryAfter = ratelimit.Never
		return s
	}
	left := g.used
	for _, start := range g.live {
		if g.units == 0 || left+g.units <= g.most {
			break
		}
		left -= g.rows[start]
		s.RetryAfter = time.Duration(g.leaves(start)-g.now) * time.Microsecond
	}
	return s
}

// drain is how long a bucket's outflow takes for so many units.
func drain(l *ratelimit.Limit, units int64) time.Duration {
	us := math.Ceil(float64(units) * float64(l.Refill.Every.Microseconds()) / float64(l.Refill.Units))
	if us > float64(ratelimit.MaxSpan.Microseconds()) {
		return ratelimit.MaxSpan
	}
	return time.Duration(us) * time.Microsecond
}
