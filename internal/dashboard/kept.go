package dashboard

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// maxKept is the longest form that is kept across a sign-in, in bytes as a form travels: a plan of 64 limits fits many times,
// and three times as much, which it can grow to inside another form, is within maxForm.
const maxKept = maxForm / 4

// keptForm is a form that could not be carried out now, for a reason that is not in it: nobody is signed in any more, or Postgres
// is away. It comes back whole, so that nothing has to be typed again, and is sent again by whoever presses the button: never by
// itself, for the administrator may be another by then, and the world has changed.
type keptForm struct {
	// To is where the form goes, a path of the dashboard with a form.
	To     string
	Values url.Values
}

// Text is the form as it travels through the sign-in; empty when it is too long.
func (k *keptForm) Text() string {
	if text := k.Values.Encode(); len(text) <= maxKept {
		return text
	}
	return ""
}

// keptField is one value of the form.
type keptField struct {
	Name, Value string
	// Shown is false for what nobody typed.
	Shown bool
}

// Fields are the values in order of their names.
func (k *keptForm) Fields() []keptField {
	unseen := []string{"once", "etag", "limits"}
	var fields []keptField
	for name, values := range k.Values {
		for _, value := range values {
			fields = append(fields, keptField{Name: name, Value: value, Shown: value != "" && !slices.Contains(unseen, name)})
		}
	}
	slices.SortStableFunc(fields, func(a, b keptField) int { return compareNames(a.Name, b.Name) })
	return fields
}

// compareNames puts limits.2.name before limits.10.name.
func compareNames(a, b string) int {
	if n := len(a) - len(b); n != 0 && strings.HasPrefix(a, "limits.") && strings.HasPrefix(b, "limits.") {
		first, _, _ := strings.Cut(a[len("limits."):], ".")
		second, _, _ := strings.Cut(b[len("limits."):], ".")
		if n := len(first) - len(second); n != 0 {
			return n
		}
	}
	return strings.Compare(a, b)
}

// sent is the form of this request; nil when there is none, or when it cannot be read.
func (x *exchange) sent() *keptForm {
	if x.r.Method != http.MethodPost || x.r.ParseForm() != nil || len(x.r.PostForm) == 0 {
		return nil
	}
	return &keptForm{To: x.r.URL.EscapedPath(), Values: x.r.PostForm}
}

// keptIn is the form that travelled through a sign-in's own form; nil: none did.
func keptIn(f *form) *keptForm {
	to, text := f.Values.Get("kept_for"), f.Values.Get("kept")
	values, err := url.ParseQuery(text)
	if to == "" || text == "" || err != nil || len(text) > maxKept || safeNext(to) != to {
		return nil
	}
	return &keptForm{To: to, Values: values}
}

// againView is the page of a form that is kept.
type againView struct {
	Form          *keptForm
	Title, Detail string
}

// again shows a form that is kept.
func (x *exchange) again(status int, v *againView) {
	x.render(status, "again", v.Title, v)
}

// signedInAgain shows the form that had to wait for a sign-in.
func (x *exchange) signedInAgain(kept *keptForm) {
	detail := "You are signed in. What you had entered has not been saved yet: look it over, and send it again."
	if !x.session.who.May(tenants.Operator) {
		detail = "You are signed in, as one who may only read. What had been entered has not been saved."
	}
	x.again(http.StatusOK, &againView{Form: kept, Title: "Not saved yet", Detail: detail})
}
