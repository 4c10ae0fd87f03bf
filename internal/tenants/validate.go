package tenants

import (
	"fmt"
	"net/mail"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// Bounds of what an operator may store. Lengths are in characters unless they say bytes.
const (
	MaxNameLength      = 200 // titles and names of tenants, keys and tokens
	MaxLimitNameLength = 64
	MaxReasonLength    = 500
	MaxEmailLength     = 254
	MaxIdentifier      = 256 // bytes of a user or key
	MaxLimits          = 64  // of a plan or of the address policy
	MaxPatterns        = 100 // methods or paths of one match
	MaxPatternLength   = 1024
	MaxMetadata        = 50
	MaxMetadataKey     = 64
	MaxMetadataValue   = 1000
	MinAlertFor        = time.Second
	MaxAlertFor        = 24 * time.Hour
	MaxSlowdown        = time.Minute
)

// FieldError says what is wrong with one part of the input, by JSON pointer into the request body. It never repeats the
// submitted value.
type FieldError struct {
	Pointer, Message string
}

// findings collects field errors in the order they are met.
type findings []FieldError

func (f *findings) add(pointer, message string) { *f = append(*f, FieldError{pointer, message}) }

func (f *findings) check(ok bool, pointer, message string) {
	if !ok {
		f.add(pointer, message)
	}
}

// What the messages say, once.
const (
	msgSlug     = "must be 1 to 63 lower-case letters, digits and hyphens, starting with a letter or digit"
	msgName     = "must be 1 to 200 characters of UTF-8 without NUL"
	msgPast     = "must be in the future"
	msgFarAway  = "must be before the year 10000"
	msgTitle    = "must be at most 200 characters of UTF-8 without NUL"
	msgReason   = "must be 1 to 500 characters of UTF-8 without NUL"
	msgIdentity = "must be unique"
)

// ValidSlug reports whether s may name a tenant or a plan: [a-z0-9][a-z0-9-]{0,62}.
func ValidSlug(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// ValidIdentifier reports whether s may name a user or key of a tenant: 1…256 bytes of UTF-8 without NUL, not normalised.
func ValidIdentifier(s string) bool {
	return s != "" && len(s) <= MaxIdentifier && validText(s)
}

// validText is text that every store and every output can hold.
func validText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// textWithin reports whether s is valid text of lo…hi characters, without counting a megabyte.
func textWithin(s string, lo, hi int) bool {
	if len(s) > hi*utf8.UTFMax || !validText(s) {
		return false
	}
	n := utf8.RuneCountInString(s)
	return lo <= n && n <= hi
}

// ValidateTenant checks a tenant as it is created. That its plan exists is the repository's to say.
func ValidateTenant(t *Tenant) []FieldError {
	return append(ValidateStoredTenant(t), validateName("/name", t.Name)...)
}

// ValidateStoredTenant checks what a tenant has to be to be served.
func ValidateStoredTenant(t *Tenant) []FieldError {
	var f findings
	f.check(ValidSlug(t.Slug), "/slug", msgSlug)
	f.tenantFields(&t.Name, &t.Plan, &t.ContactEmail, &t.Status, &t.Metadata)
	return f
}

// ValidateTenantPatch checks the fields that a patch names.
func ValidateTenantPatch(p *TenantPatch) []FieldError {
	var f findings
	f.tenantFields(p.Name, p.Plan, p.ContactEmail, p.Status, p.Metadata)
	if p.Name != nil {
		f = append(f, validateName("/name", *p.Name)...)
	}
	return f
}

// tenantFields checks what create and patch share; nil is not named.
func (f *findings) tenantFields(name, plan, email *string, status *Status, metadata *map[string]string) {
	if name != nil {
		f.check(textWithin(*name, 1, MaxNameLength), "/name", msgName)
	}
	if plan != nil {
		f.check(ValidSlug(*plan), "/plan", msgSlug)
	}
	if status != nil {
		f.check(*status == Active || *status == Suspended, "/status", "must be active or suspended")
	}
	if email != nil {
		f.check(*email == "" || validEmail(*email), "/contact_email", "must be one plain e-mail address, at most 254 characters")
	}
	if metadata != nil {
		f.metadata(*metadata)
	}
}

// validEmail accepts one bare address: no display name, no line break, no second recipient.
func validEmail(s string) bool {
	if len(s) > MaxEmailLength || !validText(s) || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return false
	}
	a, err := mail.ParseAddress(s)
	return err == nil && a.Name == "" && a.Address == s
}

func (f *findings) metadata(m map[string]string) {
	if len(m) > MaxMetadata {
		f.add("/metadata", fmt.Sprintf("must have at most %d entries", MaxMetadata))
		return
	}
	for k, v := range m {
		if !textWithin(k, 1, MaxMetadataKey) {
			// The key itself is submitted text, so the pointer stops at its parent.
			f.add("/metadata", fmt.Sprintf("every key must be 1 to %d characters of UTF-8 without NUL", MaxMetadataKey))
			return
		}
		if !textWithin(v, 0, MaxMetadataValue) {
			f.add("/metadata", fmt.Sprintf("every value must be at most %d characters of UTF-8 without NUL", MaxMetadataValue))
			return
		}
	}
}

// ValidateAPIKey checks a key as it is created.
func ValidateAPIKey(k *APIKey, now time.Time) []FieldError {
	var f findings
	f.check(textWithin(k.Name, 1, MaxNameLength), "/name", msgName)
	f.expiry(k.ExpiresAt, now)
	return append(f, validateName("/name", k.Name)...)
}

// ValidateServiceToken checks a service token as it is created.
func ValidateServiceToken(t *ServiceToken, now time.Time) []FieldError {
	return append(ValidateStoredServiceToken(t, now), validateName("/name", t.Name)...)
}

// ValidateStoredServiceToken checks what a service token has to be to be believed.
func ValidateStoredServiceToken(t *ServiceToken, now time.Time) []FieldError {
	var f findings
	f.check(textWithin(t.Name, 1, MaxNameLength), "/name", msgName)
	seen := map[string]bool{}
	for i, scope := range t.Exempt {
		pointer := fmt.Sprintf("/exempt/%d", i)
		f.check(scope == ratelimit.ScopeAddress, pointer, "must be address")
		f.check(!seen[string(scope)], pointer, msgIdentity)
		seen[string(scope)] = true
	}
	for i, may := range t.May {
		pointer := fmt.Sprintf("/may/%d", i)
		switch may {
		case MayCheck, MayStatus, MayRefund, MayIdentify:
		default:
			f.add(pointer, "must be check, status, refund or identify")
		}
		f.check(!seen["may "+string(may)], pointer, msgIdentity)
		seen["may "+string(may)] = true
	}
	f.expiry(t.ExpiresAt, now)
	return f
}

// ValidateAdminToken checks an admin token as it is created.
func ValidateAdminToken(t *AdminToken, now time.Time) []FieldError {
	return append(ValidateStoredAdminToken(t, now), validateName("/name", t.Name)...)
}

// ValidateStoredAdminToken checks what an admin token has to be to be believed.
func ValidateStoredAdminToken(t *AdminToken, now time.Time) []FieldError {
	var f findings
	f.check(textWithin(t.Name, 1, MaxNameLength), "/name", msgName)
	switch t.Role {
	case Viewer, Operator, Admin:
	default:
		f.add("/role", "must be viewer, operator or admin")
	}
	f.expiry(t.ExpiresAt, now)
	return f
}

// ValidateOverride checks an exception to one limit. A name that no limit of the tenant's plan has is allowed: the exception
// then waits for one.
func ValidateOverride(o *Override, now time.Time) []FieldError {
	var f findings
	f.check(validLimitName(o.LimitName), "/name", msgLimitName)
	f.quota(o.Quota, "/limit")
	f.check(textWithin(o.Reason, 1, MaxReasonLength), "/reason", msgReason)
	f.expiry(o.ExpiresAt, now)
	return f
}

// ValidateReason checks what is asked of a reason as it is written, and not of a stored one: that one can see it.
func ValidateReason(reason string) []FieldError {
	var f findings
	f.check(reason == "" || strings.TrimSpace(reason) != "", "/reason", "must not be only spaces")
	return f
}

// ValidateNetwork checks an entry of the network lists.
func ValidateNetwork(n *Network, now time.Time) []FieldError {
	var f findings
	f.check(n.CIDR.IsValid() && n.CIDR == n.CIDR.Masked() && !n.CIDR.Addr().Is4In6(), "/cidr", "must be a network in CIDR notation without host bits, such as 203.0.113.0/24")
	f.check(n.Action == Deny || n.Action == Allow, "/action", "must be deny or allow")
	f.check(textWithin(n.Reason, 0, MaxReasonLength), "/reason", "must be at most 500 characters of UTF-8 without NUL")
	f.expiry(n.ExpiresAt, now)
	return f
}

// ValidateMode checks the mode of the whole service.
func ValidateMode(m ratelimit.Mode) []FieldError {
	var f findings
	f.check(m == ratelimit.Enforce || m == ratelimit.Shadow, "/mode", msgMode)
	return f
}

func (f *findings) expiry(at, now time.Time) {
	switch {
	case at.IsZero():
	case !at.After(now):
		f.add("/expires_at", msgPast)
	case at.UTC().Year() > 9999:
		f.add("/expires_at", msgFarAway)
	}
}
