package decision

import (
	"time"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/usage"
)

// conclude makes the decision out of what the groups answered.
func (e *Engine) conclude(w *work, m moment) (*Decision, error) {
	if w.err != nil {
		if !w.all {
			e.observe(&w.hit, nil, w.err, m.now)
		}
		return nil, w.err
	}
	d := &w.decision
	d.ID = e.idOf(w, m.now)
	d.Limits = w.limits
	if w.refused[addressGroup] && !w.all {
		d.Limits = w.limits[w.tenantLimits:]
	}
	denied := w.refused[addressGroup] || w.refused[tenantGroup]
	var delay time.Duration
	for i := range d.Limits {
		l := &d.Limits[i]
		if l.Source == ratelimit.SourceNone {
			continue
		}
		if l.Override != nil && !w.all {
			e.overridden(l.Override, m.now)
		}
		l.Delay = l.delay(&w.hit).Round(time.Millisecond)
		if watches(l.Limit) {
			continue
		}
		delay = max(delay, l.Delay)
		denied = denied || m.shadow && l.Refused
	}
	switch {
	case denied:
		d.Verdict = Deny
	case delay > 0:
		d.Verdict, d.Delay = Slow, delay
	default:
		d.Verdict = Allow
	}
	d.Tightest = tightestOf(d.Limits, denied)
	d.CostExceeds = denied && d.Tightest >= 0 && d.Limits[d.Tightest].State.RetryAfter == ratelimit.Never
	d.Source = e.sourceOf(d)
	if m.shadow && d.Verdict != Allow {
		d.Shadowed, d.Would, d.Verdict, d.Delay, d.CostExceeds = true, d.Verdict, Allow, 0, false
	}
	if !w.peeks() {
		e.record(&w.hit, d, w.uses)
	}
	if !w.all {
		e.observe(&w.hit, d, nil, d.At)
	}
	return d, nil
}

// idOf is a new id, but for a repeated refusal the id of the one it repeats: what can be told of it was recorded under that.
func (e *Engine) idOf(w *work, now time.Time) string {
	if w.refusal == nil {
		return e.ids.Next(now)
	}
	if id := w.refusal.Name(); id != "" {
		return id
	}
	return w.refusal.Call(e.ids.Next(now))
}

// watches reports whether a limit is never part of the verdict.
func watches(l *ratelimit.Limit) bool { return l.Mode == ratelimit.Shadow }

// delay is what a limit adds to an admitted hit: its slow-down at the utilisation after the hit, or a leaky bucket's wait.
func (s *LimitState) delay(h *Hit) time.Duration {
	if s.Refused || s.Limit.Quota <= 0 {
		return 0
	}
	used := s.State.Used
	if h.Peek {
		used += s.Limit.UnitsPerHit(h.Cost) // what the hit would leave behind
	}
	return max(s.State.Delay, s.Limit.Slowdown.Delay(min(1, float64(used)/float64(s.Limit.Quota))))
}

// tightestOf is the index of the limit to report: of the refusing ones the one with the longest wait, else the one with the
// highest utilisation; of equals the first. Limits that only watch and limits that nobody decided are never reported.
func tightestOf(limits []LimitState, denied bool) int {
	best, bestRefuses := -1, false
	for i := range limits {
		l := &limits[i]
		if watches(l.Limit) || l.Source == ratelimit.SourceNone {
			continue
		}
		refuses := denied && l.Refused
		switch {
		case best < 0, refuses && !bestRefuses:
		case bestRefuses && !refuses:
			continue
		case refuses && l.State.RetryAfter <= limits[best].State.RetryAfter:
			continue
		case !refuses && l.Utilization() <= limits[best].Utilization():
			continue
		}
		best, bestRefuses = i, refuses
	}
	return best
}

// sourceOf is what decided: where the tightest limit counts, else where any limit does. With limits that nobody decided it is
// none; without limits it is the store that would have been asked.
func (e *Engine) sourceOf(d *Decision) ratelimit.Source {
	if d.Tightest >= 0 {
		return d.Limits[d.Tightest].Source
	}
	for i := range d.Limits {
		if d.Limits[i].Source != ratelimit.SourceNone {
			return d.Limits[i].Source
		}
	}
	if len(d.Limits) > 0 {
		return ratelimit.SourceNone
	}
	return e.store.Source()
}

// record hands a decision to usage: in shadow mode with the verdict it would have been. uses is memory for the limits.
func (e *Engine) record(h *Hit, d *Decision, uses []usage.LimitUse) {
	if e.recorder == nil {
		return
	}
	ev := usage.Event{
		Tenant: d.Tenant, Plan: d.Plan, At: d.At, Exempt: h.Standing == Exempt, Cost: h.Cost,
		Shadow: d.Shadowed, WrongCredential: h.WrongCredential, Held: d.Held,
	}
	if h.Tenant != nil {
		ev.TenantID, ev.User, ev.Key = h.Tenant.ID, h.User, h.Key
		ev.Limits = limitUses(d.Limits, uses)
	}
	verdict := d.Verdict
	if d.Shadowed {
		verdict = d.Would
	}
	switch verdict {
	case Slow:
		ev.Verdict = usage.Slowed
	case Deny:
		ev.Verdict = usage.Refused
	case Allow:
		ev.Verdict = usage.Allowed
	}
	if t := d.tightest(); t != nil && verdict == Deny && t.Limit.Scope == ratelimit.ScopeAddress {
		ev.Address = h.Address.Masked().String()
		if h.Own {
			ev.Service = h.Service
		}
	}
	e.recorder.Record(ev)
}

// limitUses are the numbers of the limits that are not an address's, which says nothing about how high a tenant stands. They
// come first.
func limitUses(limits []LimitState, uses []usage.LimitUse) []usage.LimitUse {
	for i := range limits {
		l := &limits[i]
		if l.Limit.Scope == ratelimit.ScopeAddress {
			break
		}
		if l.Source == ratelimit.SourceNone {
			continue
		}
		uses = append(uses, usage.LimitUse{
			Name: l.Limit.Name, Used: l.State.Used, Quota: l.Limit.Quota, Refused: l.Refused, Watches: watches(l.Limit),
		})
	}
	return uses
}
