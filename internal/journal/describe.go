package journal

import (
	"errors"
	"strings"

	"github.com/google/uuid"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// Bounds of texts that clients choose, in bytes.
const (
	maxPath = 512
	maxText = 256
)

// refused reports whether the client was refused, or would have been but for shadow mode.
func refused(o *decision.Observation) bool {
	return o.Decision == nil || o.Hit.Unauthorized || verdictOf(o.Decision) == decision.Deny
}

// verdictOf is what was decided, shadow mode or not.
func verdictOf(d *decision.Decision) decision.Verdict {
	if d.Shadowed {
		return d.Would
	}
	return d.Verdict
}

// factsOf describes a hit and what became of it. The texts are copies: a path must not keep a request alive.
func factsOf(o *decision.Observation, replica string) Facts {
	h, d := o.Hit, o.Decision
	f := Facts{
		Verdict: decision.Deny, User: clean(h.User, maxText), Key: clean(h.Key, maxText), Service: clean(h.Service, maxText),
		Method: clean(h.Method, maxText), Path: pathOf(h.Path), Door: h.Door, Cost: h.Cost, Replica: replica,
	}
	if h.Tenant != nil {
		f.Tenant, f.Plan = h.Tenant.Slug, h.Tenant.Tenant.Plan
		if h.Tenant.Plan != nil {
			f.Plan = h.Tenant.Plan.Name
		}
	}
	if h.Address.IsValid() {
		f.Address = h.Address.Masked().String()
	}
	if d == nil {
		f.Reason = reasonOf(o.Err)
		return f
	}
	if h.Unauthorized { // no limit refused it, and calls that differ in a count only are to share a row
		f.Reason = Unauthorized
		return f
	}
	f.Source = d.Source
	if t, ok := d.TightestLimit(); ok {
		f.LimitName, f.Used, f.Quota = t.Limit.Name, t.State.Used, t.Limit.Quota
	}
	f.Verdict, f.Shadow, f.Delay = verdictOf(d), d.Shadowed, d.Delay
	if f.Verdict == decision.Deny {
		f.Reason = denialOf(d)
	}
	return f
}

func reasonOf(err error) Reason {
	switch {
	case errors.Is(err, decision.ErrSuspended):
		return TenantSuspended
	case errors.Is(err, decision.ErrNetworkDenied):
		return NetworkDenied
	}
	return StoreUnavailable
}

func denialOf(d *decision.Decision) Reason {
	if d.Held {
		return TooManyHeld
	}
	if t, ok := d.TightestLimit(); ok && t.State.RetryAfter == ratelimit.Never {
		return CostExceedsLimit
	}
	return RateLimitExceeded
}

// explanationOf is everything that can be told of a decision.
func explanationOf(id uuid.UUID, o *decision.Observation, facts *Facts) Explanation {
	h, d := o.Hit, o.Decision
	e := Explanation{ID: id, At: o.At, LastAt: o.At, Count: 1, Facts: *facts, Peek: !h.Consumes(), Limits: make([]LimitLine, len(d.Limits))}
	e.Path = ""
	if wait, ok := d.RetryAfter(); ok {
		e.RetryAfter = wait
	}
	path, _ := tenants.CanonicalPath(h.Path)
	for i := range d.Limits {
		e.Limits[i] = lineOf(&d.Limits[i], facts, path)
	}
	return e
}

func lineOf(s *decision.LimitState, f *Facts, path string) LimitLine {
	l := LimitLine{
		Name: s.Limit.Name, Scope: s.Limit.Scope, Subject: subjectOf(s.Limit.Scope, f), Algorithm: s.Limit.Algorithm, Effective: s.State.Effective,
		Quota: s.Limit.Quota, PlanQuota: s.Limit.Quota, Window: s.Limit.Span(),
		Used: s.State.Used, Remaining: s.State.Remaining, Delay: s.Delay, ResetAfter: s.State.ResetAfter, RetryAfter: s.State.RetryAfter,
		Refused: s.Refused, Watches: s.Limit.Mode == ratelimit.Shadow, Source: s.Source,
	}
	if s.Limit.Slowdown != nil {
		l.SlowFrom = s.Limit.Slowdown.From
	}
	if s.Rule != nil {
		l.PlanQuota, l.Methods, l.Pattern = s.Rule.Quota, s.Rule.Match.Methods, s.Rule.Match.PatternOf(path)
	}
	if s.Override != nil {
		l.Override = &OverrideLine{Reason: s.Override.Reason, ExpiresAt: s.Override.ExpiresAt}
	}
	return l
}

// subjectOf says in words whose counter a limit has.
func subjectOf(scope ratelimit.Scope, f *Facts) string {
	switch scope {
	case ratelimit.ScopeUser:
		return "user " + f.User + " of " + f.Tenant
	case ratelimit.ScopeKey:
		return "key " + f.Key + " of " + f.Tenant
	case ratelimit.ScopeAddress:
		return "address " + f.Address
	case ratelimit.ScopeTenant:
	}
	return "tenant " + f.Tenant
}

// pathOf is a path as the log keeps it: canonical, without query, cut, and empty when it has no canonical form.
func pathOf(raw string) string {
	path, ok := tenants.CanonicalPath(raw)
	if !ok {
		return ""
	}
	return clean(path, maxPath)
}

// clean makes foreign text fit for Postgres and of a size. A text with a credential of ours in it, wherever a client put it, is
// not kept at all.
func clean(s string, most int) string {
	if s == "" || holdsCredential(s) {
		return ""
	}
	s = strings.ToValidUTF8(s[:min(len(s), most)], "")
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "")
	}
	return strings.Clone(s)
}

// holdsCredential looks for anything that could be the beginning of a credential, in either case: paths come in lower case.
func holdsCredential(s string) bool {
	for rest := s; ; {
		_, after, found := strings.Cut(rest, "pg")
		if !found {
			return false
		}
		if tenants.IsCredential("pg" + after) {
			return true
		}
		rest = after
	}
}
