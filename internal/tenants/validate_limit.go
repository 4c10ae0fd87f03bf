package tenants

import (
	"fmt"
	"strings"
	"time"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

const (
	msgLimitName = "must be 1 to 64 printable ASCII characters without quotes and backslashes, and without a space at either end"
	msgMode      = "must be enforce or shadow"
	msgWindow    = "must be whole milliseconds from 1s to 8784h (366 days)"
	msgEvery     = "must be whole milliseconds from 1ms to 8784h (366 days)"
)

// SetDefaults fills in what a request may leave out and brings the rest to its stored form.
func (p *Plan) SetDefaults() {
	p.Title = TidyName(p.Title)
	if p.Alert == (Alert{}) {
		p.Alert = Alert{At: 0.8, For: 10 * time.Minute}
	}
	if p.RequestLog == "" {
		p.RequestLog = LogDenied
	}
	for i := range p.Limits {
		p.Limits[i].setDefaults(ratelimit.ScopeTenant)
	}
}

// SetDefaults fills in what a request may leave out and brings the rest to its stored form.
func (p *AddressPolicy) SetDefaults() {
	for i := range p.Limits {
		p.Limits[i].setDefaults(ratelimit.ScopeAddress)
		if p.Limits[i].AppliesTo == "" {
			p.Limits[i].AppliesTo = AppliesToAnonymous
		}
	}
}

// SetDefaults fills in what a request may leave out and brings the rest to its stored form.
func (t *Tenant) SetDefaults() {
	t.Name = TidyName(t.Name)
	if t.Status == "" {
		t.Status = Active
	}
	if t.Metadata == nil {
		t.Metadata = map[string]string{}
	}
}

// setDefaults leaves a cost of 0 alone only where it cannot be meant: absent and 0 look alike here, so a front door that
// must tell them apart refuses 0 before.
func (r *Rule) setDefaults(scope ratelimit.Scope) {
	if r.Scope == "" {
		r.Scope = scope
	}
	if r.Algorithm == "" {
		r.Algorithm = ratelimit.SlidingWindowLog
	}
	if r.Cost == 0 {
		r.Cost = 1
	}
	if r.OnStoreFailure == "" {
		r.OnStoreFailure = ratelimit.FailOpen
	}
	if r.Mode == "" {
		r.Mode = ratelimit.Enforce
	}
	for i, method := range r.Match.Methods {
		r.Match.Methods[i] = strings.ToUpper(method)
	}
	for i, pattern := range r.Match.Paths {
		if canonical, ok := canonicalPattern(pattern); ok {
			r.Match.Paths[i] = canonical
		}
	}
}

// ValidatePlan checks a plan as it is written, after SetDefaults.
func ValidatePlan(p *Plan) []FieldError {
	return append(ValidateStoredPlan(p), validateName("/title", p.Title)...)
}

// ValidateStoredPlan checks what a plan has to be to be enforced.
func ValidateStoredPlan(p *Plan) []FieldError {
	var f findings
	f.check(ValidSlug(p.Name), "/name", msgSlug)
	f.check(textWithin(p.Title, 0, MaxNameLength), "/title", msgTitle)
	f.check(p.Alert.At > 0 && p.Alert.At <= 1, "/alert/at", "must be above 0 and at most 1")
	f.check(p.Alert.For >= MinAlertFor && p.Alert.For <= MaxAlertFor && wholeMillis(p.Alert.For), "/alert/for", "must be whole milliseconds from 1s to 24h")
	switch p.RequestLog {
	case LogOff, LogDenied, LogAllowed, LogSampled, LogAll:
	default:
		f.add("/request_log", "must be off, denied, allowed, sampled or all")
	}
	f.rules(p.Limits, false)
	return f
}

// ValidateAddressPolicy checks the address policy after SetDefaults.
func ValidateAddressPolicy(p *AddressPolicy) []FieldError {
	var f findings
	f.rules(p.Limits, true)
	return f
}

func (f *findings) rules(rules []Rule, address bool) {
	if len(rules) > MaxLimits {
		f.add("/limits", fmt.Sprintf("must have at most %d entries", MaxLimits))
		return
	}
	names := make(map[string]bool, len(rules))
	for i := range rules {
		at := fmt.Sprintf("/limits/%d", i)
		f.rule(&rules[i], at, address)
		f.check(!names[rules[i].Name], at+"/name", "must be unique in its list")
		names[rules[i].Name] = true
	}
}

func (f *findings) rule(r *Rule, at string, address bool) {
	f.check(validLimitName(r.Name), at+"/name", msgLimitName)
	switch {
	case address:
		f.check(r.Scope == ratelimit.ScopeAddress, at+"/scope", "must be address in the address policy")
		f.check(r.AppliesTo == AppliesToAnonymous || r.AppliesTo == AppliesToAll, at+"/applies_to", "must be anonymous or all")
	default:
		f.check(r.Scope == ratelimit.ScopeTenant || r.Scope == ratelimit.ScopeUser || r.Scope == ratelimit.ScopeKey, at+"/scope", "must be tenant, user or key")
		f.check(r.AppliesTo == "", at+"/applies_to", "is only for the address policy")
	}
	f.quota(r.Quota, at+"/limit")
	f.pace(&r.Limit, at)
	f.check(r.Cost >= 1 && r.Cost <= ratelimit.MaxCost, at+"/cost", fmt.Sprintf("must be an integer from 1 to %d", ratelimit.MaxCost))
	if s := r.Slowdown; s != nil {
		f.check(s.From >= 0 && s.From < 1, at+"/slowdown/from", "must be at least 0 and below 1")
		f.check(s.MaxDelay >= time.Millisecond && s.MaxDelay <= MaxSlowdown && wholeMillis(s.MaxDelay), at+"/slowdown/max_delay", "must be whole milliseconds from 1ms to 1m")
	}
	switch r.OnStoreFailure {
	case ratelimit.FailOpen, ratelimit.FailClosed, ratelimit.FailLocal:
	default:
		f.add(at+"/on_store_failure", "must be open, closed or local")
	}
	f.check(r.Mode == ratelimit.Enforce || r.Mode == ratelimit.Shadow, at+"/mode", msgMode)
	f.match(r.Match, at+"/match")
}

func (f *findings) quota(quota int64, pointer string) {
	f.check(quota >= 0 && quota <= ratelimit.MaxQuota, pointer, fmt.Sprintf("must be an integer from 0 to %d", ratelimit.MaxQuota))
}

// pace checks that a limit has either a window or a refill, as its algorithm asks, and that the numbers together stay within
// what every store can hold.
func (f *findings) pace(l *ratelimit.Limit, at string) {
	switch l.Algorithm {
	case ratelimit.SlidingWindowLog, ratelimit.SlidingWindowCounter, ratelimit.FixedWindow:
		f.check(l.Refill == (ratelimit.Rate{}), at+"/refill", "is only for token_bucket and leaky_bucket")
		if l.Window == 0 {
			f.add(at+"/window", "is required: "+strings.TrimPrefix(msgWindow, "must be "))
			return
		}
		f.check(l.Window >= ratelimit.MinWindow && l.Window <= ratelimit.MaxWindow && wholeMillis(l.Window), at+"/window", msgWindow)
	case ratelimit.TokenBucket, ratelimit.LeakyBucket:
		f.check(l.Window == 0, at+"/window", "is not for token_bucket and leaky_bucket: they take a refill")
		if l.Refill == (ratelimit.Rate{}) {
			f.add(at+"/refill/units", "is required: token_bucket and leaky_bucket take a refill of units and every")
			return
		}
		units := l.Refill.Units >= 1 && l.Refill.Units <= ratelimit.MaxQuota
		every := l.Refill.Every >= time.Millisecond && l.Refill.Every <= ratelimit.MaxWindow && wholeMillis(l.Refill.Every)
		f.check(units, at+"/refill/units", fmt.Sprintf("must be an integer from 1 to %d", ratelimit.MaxQuota))
		f.check(every, at+"/refill/every", msgEvery)
		if units && every {
			// Float: quota × every overflows int64 long before either is out of bounds.
			span := float64(l.Quota) * float64(l.Refill.Every) / float64(l.Refill.Units)
			f.check(span <= float64(ratelimit.MaxSpan), at+"/refill", "must refill the whole limit within 87840h (3660 days)")
		}
	case ratelimit.SlidingWindowSegments: // how Postgres counts; never configured
		fallthrough
	default:
		f.add(at+"/algorithm", "must be sliding_window_log, sliding_window_counter, fixed_window, token_bucket or leaky_bucket")
	}
}

func (f *findings) match(m Match, at string) {
	if len(m.Methods) > MaxPatterns || len(m.Paths) > MaxPatterns {
		f.add(at, fmt.Sprintf("must have at most %d methods and %d paths", MaxPatterns, MaxPatterns))
		return
	}
	for i, method := range m.Methods {
		f.check(validMethod(method), fmt.Sprintf("%s/methods/%d", at, i), "must be an HTTP method of at most 32 letters, digits and hyphens")
	}
	for i, pattern := range m.Paths {
		canonical, ok := canonicalPattern(pattern)
		f.check(ok && canonical == pattern && len(pattern) <= MaxPatternLength && starsAreSegments(pattern), fmt.Sprintf("%s/paths/%d", at, i),
			"must start with a slash, have at most 1024 bytes, no query, parameters or percent-encoding, and use * only as a whole segment")
	}
}

// validMethod is the part of RFC 9110's token that real methods use, in upper case.
func validMethod(s string) bool {
	if s == "" || len(s) > 32 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// starsAreSegments refuses "*" inside a segment, where it would be read as a letter.
func starsAreSegments(pattern string) bool {
	for segment := range strings.SplitSeq(pattern, "/") {
		if strings.Contains(segment, "*") && segment != "*" {
			return false
		}
	}
	return true
}

// validLimitName keeps limit names fit for a header's quoted string.
func validLimitName(s string) bool {
	if s == "" || len(s) > MaxLimitNameLength || s[0] == ' ' || s[len(s)-1] == ' ' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

func wholeMillis(d time.Duration) bool { return d%time.Millisecond == 0 }
