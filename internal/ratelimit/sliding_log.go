package ratelimit

import (
	"sort"
	"time"
)

const (
	// logExact is the largest quota whose log keeps every charge apart; above it, charges of one slot are merged.
	logExact = 1024
	// logSlots is into how many slots the window of a merging log is cut: its memory is bounded by this many entries,
	// and it is at most 1/logSlots of a window stricter than an exact one, never looser.
	logSlots = 900
	// logCum wraps the running total, so that it stays exact as a double.
	logCum = int64(1)<<52 - 1
)

// logEntry is one charge, or all charges of one slot.
type logEntry struct {
	score  int64 // when it counts from; strictly rising
	cum    int64 // units ever charged up to and including this entry, modulo 2^52
	weight int64
}

// logState is a sliding log, oldest first. Entries that are no longer live may still be in front.
type logState struct{ entries []logEntry }

// live are the entries that count at now: an entry exactly one window old does not, and neither does anything when the
// newest is more than a window ahead (the clock was wrong when it was written).
func (s logState) live(window, now int64) []logEntry {
	n := len(s.entries)
	if n == 0 || s.entries[n-1].score > now+window || s.entries[n-1].score <= now-window {
		return nil
	}
	if s.entries[0].score > now-window {
		return s.entries
	}
	return s.entries[sort.Search(n, func(i int) bool { return s.entries[i].score > now-window }):]
}

func usedOfLog(live []logEntry) int64 {
	if len(live) == 0 {
		return 0
	}
	return (live[len(live)-1].cum - live[0].cum + live[0].weight) & logCum
}

func (s logState) look(l *Limit, now, units int64) look {
	return look{fit: hitsThatFit(l.Quota, usedOfLog(s.live(windowOf(l), now)), units)}
}

func (s logState) take(l *Limit, now, units int64) logState {
	if units <= 0 {
		return s
	}
	window := windowOf(l)
	live := s.live(window, now)
	next := logEntry{score: now, cum: units & logCum, weight: units}
	if n := len(s.entries); n > 0 && s.entries[n-1].score <= now+window {
		last := s.entries[n-1]
		next.score = max(now, last.score+1)
		next.cum = (last.cum + units) & logCum
		slot := max(1, window/logSlots)
		if l.Quota > logExact && len(live) > 0 && last.score/slot == next.score/slot {
			next.weight += last.weight
			live = live[:len(live)-1]
			if len(live) == 0 {
				return logState{entries: append(s.entries[:0], next)}
			}
		}
	}
	if len(live) == 0 {
		live = s.entries[:0]
	}
	return logState{entries: append(live, next)}
}

func (s logState) refund(l *Limit, now, units int64) logState {
	window := windowOf(l)
	if units <= 0 || len(s.entries) == 0 || s.entries[len(s.entries)-1].score > now+window {
		return s
	}
	live := s.live(window, now)
	if len(live) == 0 { // nothing to give back: what a step back of the clock would bring to life again stays
		return s
	}
	for len(live) > 0 && units > 0 {
		if live[0].weight > units {
			live[0].weight -= units
			break
		}
		units -= live[0].weight
		live = live[1:]
	}
	return logState{entries: live}
}

// raise appends the youngest of what is known, as far as it is missing: each portion at its own time, or right behind the
// newest entry when it is older than that, which can only be stricter. It trims nothing: a step back of the clock brings to
// life again what was there.
func (s logState) raise(l *Limit, now int64, known []Portion) logState {
	window := windowOf(l)
	missing := sinceThen(known, window) - usedOfLog(s.live(window, now))
	if missing <= 0 {
		return s
	}
	var last logEntry
	entries := s.entries[:0]
	if n := len(s.entries); n > 0 && s.entries[n-1].score <= now+window {
		last, entries = s.entries[n-1], s.entries
	}
	var added []Portion
	for _, p := range known {
		units := min(p.Units, missing)
		if units <= 0 || p.Age.Microseconds() >= window {
			continue
		}
		added = append(added, Portion{p.Age, units})
		missing -= units
	}
	for i := len(added) - 1; i >= 0; i-- {
		last.score = max(now-added[i].Age.Microseconds(), last.score+1)
		last.weight = added[i].Units
		last.cum = (last.cum + last.weight) & logCum
		entries = append(entries, last)
	}
	return logState{entries: entries}
}

func (s logState) report(l *Limit, now, units int64, out *CounterState) {
	window := windowOf(l)
	live := s.live(window, now)
	used := usedOfLog(live)
	fill(out, l, used)
	if len(live) == 0 {
		out.RetryAfter = neverUnlessFits(l, units)
		return
	}
	last := live[len(live)-1]
	out.ResetAfter = waitOf(last.score + window - now)
	switch {
	case neverUnlessFits(l, units) == Never:
		out.RetryAfter = Never
	case units > 0 && used > l.Quota-units:
		// One more hit fits once the first entry is gone after which no more than quota − units came.
		first := sort.Search(len(live), func(i int) bool { return (last.cum-live[i].cum)&logCum <= l.Quota-units })
		out.RetryAfter = waitOf(live[first].score + window - now)
	}
}

func (s logState) deadAt(l *Limit, now int64) int64 {
	window := windowOf(l)
	if n := len(s.entries); n > 0 {
		return s.entries[n-1].score + window + 2*max(1000, window/logSlots)
	}
	return now
}

// neverUnlessFits is Never for a hit that fits no empty counter, else 0.
func neverUnlessFits(l *Limit, units int64) time.Duration {
	if l.Quota <= 0 || units > l.Quota {
		return Never
	}
	return 0
}
