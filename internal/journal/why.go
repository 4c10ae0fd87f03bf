package journal

import (
	"fmt"
	"strings"
	"time"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// Why tells a decision in words: what became of the hit, which limit made it so, by which numbers and whose word.
func (e *Explanation) Why() string {
	var b strings.Builder
	b.WriteString(e.verdict())
	if t := e.tightest(); t != nil {
		b.WriteString(t.exception())
	}
	if e.Shadow {
		b.WriteString(" The service was in shadow mode, so the hit was let through all the same.")
	}
	if e.Peek {
		b.WriteString(" It was only a look: nothing was consumed.")
	}
	for i := range e.Limits {
		if l := &e.Limits[i]; l.Watches && l.Refused {
			fmt.Fprintf(&b, " %s only watches; it would have refused (%s had used %d of %d).", l.Name, l.Subject, l.Used, l.Quota)
		}
	}
	return b.String()
}

// verdict is the sentence about what became of the hit.
func (e *Explanation) verdict() string {
	t := e.tightest()
	switch {
	case e.Reason == TooManyHeld:
		return "Refused: the hit was to wait, but too many of the same tenant or address were waiting already, or too many in all."
	case e.Reason == Unauthorized:
		return "Refused: no valid credential came with it."
	case t == nil && e.Verdict == decision.Deny:
		return "Refused."
	case t == nil && e.Source == ratelimit.SourceNone:
		return "Let through without counting: no store could decide, and the limits are open then."
	case t == nil:
		return "Let through: no limit holds for it."
	case e.Reason == CostExceedsLimit:
		return fmt.Sprintf("Refused: a cost of %d is more than %s ever allows (%s); waiting does not help.", e.Cost, t.Name, t.quota())
	case e.Verdict == decision.Deny:
		return fmt.Sprintf("Refused: %s had used %d of %s by %s, said %s; %s.", t.Subject, t.Used, t.quota(), t.Name, t.Source, e.wait())
	}
	standing := fmt.Sprintf("%s has used %d of %s by %s, said %s", t.Subject, t.Used, t.quota(), t.Name, t.Source)
	if e.Verdict == decision.Slow {
		return fmt.Sprintf("Let through after %s: %s; %s.", e.Delay, standing, t.slows())
	}
	return "Let through: " + standing + "."
}

func (e *Explanation) wait() string {
	if e.RetryAfter > 0 {
		return fmt.Sprintf("a hit of cost %d fits again %s later", e.Cost, e.RetryAfter.Round(time.Millisecond))
	}
	if t := e.tightest(); t != nil && t.Quota > 0 && t.RetryAfter > 0 && t.RetryAfter != ratelimit.Never { // shadow mode told no client to wait
		return fmt.Sprintf("a hit of cost %d fits again %s later", e.Cost, t.RetryAfter.Round(time.Millisecond))
	}
	return "waiting does not help"
}

// tightest is the line of the limit that the verdict came from; after a refusal a line that refused.
func (e *Explanation) tightest() *LimitLine {
	var found *LimitLine
	for i := range e.Limits {
		l := &e.Limits[i]
		if l.Name != e.LimitName || l.Watches || l.Source == ratelimit.SourceNone {
			continue
		}
		if found == nil || !found.Refused && l.Refused {
			found = l
		}
	}
	return found
}

// quota is the limit in words: "2000 units per 1m0s".
func (l *LimitLine) quota() string {
	if l.Window <= 0 {
		return fmt.Sprintf("%d units", l.Quota)
	}
	window := l.Window.String()
	if strings.HasSuffix(window, "m0s") {
		window = strings.TrimSuffix(window, "0s")
	}
	return fmt.Sprintf("%d units per %s", l.Quota, window)
}

// slows says why there is a delay.
func (l *LimitLine) slows() string {
	if l.Algorithm == ratelimit.LeakyBucket {
		return "the bucket lets hits out one after another"
	}
	return fmt.Sprintf("above %.0f %% every hit is delayed", 100*l.SlowFrom)
}

// exception says that the quota is not the plan's.
func (l *LimitLine) exception() string {
	if l.Override == nil {
		return ""
	}
	until := "until it is taken back"
	if !l.Override.ExpiresAt.IsZero() {
		until = "until " + l.Override.ExpiresAt.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf(" The quota is an exception to the plan's %d, %s: %s.", l.PlanQuota, until, strings.TrimSuffix(l.Override.Reason, "."))
}
