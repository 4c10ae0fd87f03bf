package usage

import "time"

const (
	windowSeconds = 60
	// calm is how long requests must stay below before a stretch of high utilisation ends.
	calm = 5 // seconds
	// peakSlots of peakSeconds are what LimitUsage.Peak looks back on.
	peakSlots   = 7
	peakSeconds = 10
)

// window is the last 60 s of something, in seconds, and their sum; without peaks, which cannot leave a sum.
type window struct {
	second int64 // the newest
	slots  *[windowSeconds]Counts
	sum    Counts
}

// add puts what came into the second; what is older than 60 s leaves. A clock that goes back counts in the newest second.
func (w *window) add(second int64, delta *Counts) {
	c := *delta
	c.Peak = 0
	if w.slots != nil {
		for gone := min(second-w.second, windowSeconds); gone > 0; gone-- {
			slot := &w.slots[(second-gone+1)%windowSeconds]
			w.sum = w.sum.minus(slot)
			*slot = Counts{}
		}
	}
	w.second = max(w.second, second)
	if c == (Counts{}) {
		if w.sum == (Counts{}) {
			w.slots = nil
		}
		return
	}
	if w.slots == nil {
		w.slots = new([windowSeconds]Counts)
	}
	w.slots[w.second%windowSeconds].Add(&c)
	w.sum.Add(&c)
}

// tenantWindow is what the collector knows of a tenant.
type tenantWindow struct {
	read    Counts
	last    window
	lastHit int64 // Unix seconds; 0: never
	minute  tally
}

// tally is the running minute of something, for history.
type tally struct {
	Counts

	unwritten bool
}

func (t *tally) add(c *Counts) {
	t.Add(c)
	t.unwritten = true
}

// limitWindow is what the collector knows of a limit of a tenant.
type limitWindow struct {
	read        Counts
	minute      tally
	used, quota int64
	utilization float64
	lastHit     int64
	highSince   int64 // Unix seconds; 0: it is not
	lastHigh    int64
	peaks       [peakSlots]float64
	peakSlot    int64
}

// collect takes what the limit's cell has gathered.
func (w *limitWindow) collect(c *limitCell, second int64) {
	now := c.total()
	delta := now.minus(&w.read)
	w.read = now
	mark := c.peak.Swap(0)
	w.turnPeaks(second / peakSeconds)
	if mark > 0 {
		w.used, w.quota, w.lastHit = c.used.Load(), c.quota.Load(), second
		w.utilization = (&LimitUse{Used: w.used, Quota: w.quota}).utilization()
		delta.Peak = w.utilization
		slot := &w.peaks[w.peakSlot%peakSlots]
		*slot = max(*slot, w.utilization)
	}
	if delta != (Counts{}) {
		w.minute.add(&delta)
	}
	w.trackHigh(mark > 0, second)
}

// trackHigh keeps since when the limit stands high. Single requests below do not end it.
func (w *limitWindow) trackHigh(hit bool, second int64) {
	switch {
	case hit && w.utilization >= highFrom:
		if w.highSince == 0 {
			w.highSince = second
		}
		w.lastHigh = second
	case hit && second-w.lastHigh >= calm, second-w.lastHit >= windowSeconds:
		w.highSince = 0
	}
}

func (w *limitWindow) turnPeaks(slot int64) {
	for gone := min(slot-w.peakSlot, peakSlots); gone > 0; gone-- {
		w.peaks[(slot-gone+1)%peakSlots] = 0
	}
	w.peakSlot = max(w.peakSlot, slot)
}

func (w *limitWindow) peak() (p float64) {
	for _, v := range w.peaks {
		p = max(p, v)
	}
	return p
}

// when is a time of the collector's.
func when(second int64) time.Time {
	if second == 0 {
		return time.Time{}
	}
	return time.Unix(second, 0).UTC()
}
