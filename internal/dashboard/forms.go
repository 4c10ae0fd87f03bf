package dashboard

import (
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// form is a form as it was sent, with what is wrong with it.
type form struct {
	Name   string
	Values url.Values
	// Errors by JSON pointer, as the API reports them.
	Errors map[string]string
	// Summary says what went wrong as a whole; empty: nothing did.
	Summary string

	status int
}

// readForm reads the form of a POST.
func (x *exchange) readForm(name string) (*form, bool) {
	if err := x.r.ParseForm(); err != nil {
		x.fail(formError(err))
		return nil, false
	}
	return &form{Name: name, Values: x.r.PostForm}, true
}

// Sent reports whether the form is shown again.
func (f *form) Sent() bool { return f.Values != nil }

// Value is what was entered; fallback when the form is new.
func (f *form) Value(name string, fallback ...string) string {
	if f.Values == nil {
		return strings.Join(fallback, "")
	}
	return f.Values.Get(name)
}

// Has reports whether a box was ticked.
func (f *form) Has(name, value string) bool {
	for _, v := range f.Values[name] {
		if v == value {
			return true
		}
	}
	return false
}

// Error is what is wrong with a field, or with something inside it.
func (f *form) Error(pointer string) string {
	if message := f.Errors[pointer]; message != "" {
		return message
	}
	for at, message := range f.Errors {
		if strings.HasPrefix(at, pointer+"/") {
			return message
		}
	}
	return ""
}

// text is a field without space around it.
func (f *form) text(name string) string { return strings.TrimSpace(f.Values.Get(name)) }

// wrong notes what is wrong with a field before the API is asked.
func (f *form) wrong(pointer, message string) {
	if f.Errors == nil {
		f.Errors = map[string]string{}
	}
	f.Errors[pointer] = message
	f.Summary, f.status = "Not saved. The marked fields say why.", http.StatusUnprocessableEntity
}

// whole reads a whole number.
func (f *form) whole(name, pointer string) int64 {
	n, err := strconv.ParseInt(f.text(name), 10, 64)
	if err != nil {
		f.wrong(pointer, "must be a whole number, without separators")
	}
	return n
}

// lifetimes are what an expiry can be chosen from.
var lifetimes = []struct {
	Value, Label string
	Span         time.Duration
}{
	{"1h", "in 1 hour", time.Hour},
	{"8h", "in 8 hours", 8 * time.Hour},
	{"24h", "in 24 hours", 24 * time.Hour},
	{"7d", "in 7 days", 7 * 24 * time.Hour},
	{"30d", "in 30 days", 30 * 24 * time.Hour},
	{"90d", "in 90 days", 90 * 24 * time.Hour},
	{"365d", "in a year", 365 * 24 * time.Hour},
}

// dateForm is what <input type="datetime-local"> sends.
const dateForm = "2006-01-02T15:04"

// expiry reads when something ends; nil is never.
func (f *form) expiry(now time.Time) *time.Time {
	choice := f.text("expires_in")
	for _, l := range lifetimes {
		if l.Value == choice {
			at := now.Add(l.Span).UTC().Truncate(time.Second)
			return &at
		}
	}
	if choice == "" || choice == "never" {
		return nil
	}
	if choice != "at" {
		f.wrong("/expires_at", "must be one of the times offered")
		return nil
	}
	at, err := time.Parse(dateForm, f.text("expires_at"))
	if err != nil {
		f.wrong("/expires_at", "must be a date and a time")
		return nil
	}
	return &at
}

// take notes what the API refused, and reports whether the form can show it. Who is not signed in, or may not, gets another
// page, and so does a form that Postgres is away for: its own page could not be read either.
func (f *form) take(err error) bool {
	var e *apiError
	if !errors.As(err, &e) {
		return false
	}
	switch e.Status {
	case http.StatusBadRequest:
		for _, field := range e.Errors {
			f.wrong(field.Pointer, field.Message)
		}
		if len(e.Errors) == 0 {
			f.Summary = e.Detail
		}
		f.status = http.StatusUnprocessableEntity
	case http.StatusConflict:
		f.Summary, f.status = "Not saved: "+e.Detail+".", e.Status
	case http.StatusPreconditionFailed:
		f.Summary, f.status = "Not saved: somebody changed it since you opened this page. Open it again, and repeat your change on what is there now.", e.Status
	case http.StatusRequestEntityTooLarge:
		f.Summary, f.status = "Not saved: "+e.Detail+".", e.Status
	default:
		return false
	}
	return true
}

// refused answers a form that could not be carried out: by showing it again through page, or by an error's own page.
func (x *exchange) refused(f *form, err error, page func(status int)) {
	if err != nil && !f.take(err) {
		x.fail(err)
		return
	}
	x.failed = f
	page(f.status)
}

// OtherErrors are those no field of the form shows, given the pointers that do.
func (f *form) OtherErrors(shown ...string) []string {
	var rest []string
	for at, message := range f.Errors {
		mine := false
		for _, s := range shown {
			mine = mine || at == s || strings.HasPrefix(at, s+"/")
		}
		if !mine {
			rest = append(rest, strings.TrimPrefix(strings.TrimSpace(at+" "+message), "/"))
		}
	}
	return rest
}

// onceKey makes the Idempotency-Key of a form: sent twice, by a second click or a reload, it acts once.
func onceKey() string { return "dashboard-" + rand.Text() }
