package dashboard

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/signin"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// exchange is one request to a page and its answer.
type exchange struct {
	d  *Dashboard
	w  http.ResponseWriter
	r  *http.Request
	id string // of the request, in logs and in the audit
	// session is nil on the pages for nobody.
	session *session
	// failed is the form that this answer shows again, with what is wrong with it.
	failed *form
	// away is the first answer that said the configuration store is away: what else the page reads from it is not waited for.
	away error
}

func (d *Dashboard) exchange(w http.ResponseWriter, r *http.Request, s *session) *exchange {
	return &exchange{d: d, w: w, r: r, id: w.Header().Get("X-Request-Id"), session: s}
}

// view is what every template gets.
type view struct {
	Page, Title string
	Who         *signin.Administrator
	// Operator and Admin: what the role allows besides reading.
	Operator, Admin bool
	Theme           string
	Path            string // of this page, with its query
	Done            string // what the last form did
	// Stream is where the live parts of the page come from; empty: it has none.
	Stream string
	Data   any
	Nav    []place

	failed *form
}

// place is an entry of the navigation.
type place struct {
	Name, To string
	Here     bool
}

// places are the pages of the navigation, by the page or pages each leads to.
func places(page string) []place {
	all := []struct{ name, to, pages string }{
		{"Overview", "/dashboard", "overview"},
		{"Tenants", "/dashboard/tenants", "tenants tenant"},
		{"Plans", "/dashboard/plans", "plans plan"},
		{"Addresses", addressesPage, "addresses"},
		{"Tokens", tokensPage, "tokens"},
		{"Decisions", "/dashboard/decisions", "decisions"},
		{"Audit", "/dashboard/audit", "audit"},
		{"Alerts", "/dashboard/alerts", "alerts"},
	}
	out := make([]place, len(all))
	for i, p := range all {
		out[i] = place{Name: p.name, To: p.to, Here: slices.Contains(strings.Fields(p.pages), page)}
	}
	return out
}

// Form is the form as it was sent when it could not be carried out, and an empty one otherwise.
func (v *view) Form(name string) *form {
	if v.failed != nil && v.failed.Name == name {
		return v.failed
	}
	return &form{Name: name}
}

func (x *exchange) view(page, title string, data any) *view {
	v := &view{
		Page: page, Title: title, Theme: theme(x.r), Path: x.r.URL.RequestURI(), Data: data,
		Done: doneText[x.r.URL.Query().Get("done")], failed: x.failed,
	}
	if x.r.Method != http.MethodGet {
		v.Path = "/dashboard"
	}
	if x.session != nil {
		v.Who, v.Nav = &x.session.who, places(page)
		v.Operator, v.Admin = v.Who.May(tenants.Operator), v.Who.May(tenants.Admin)
	}
	return v
}

// render answers a whole page.
func (x *exchange) render(status int, page, title string, data any) {
	x.show(status, x.view(page, title, data))
}

// show answers a whole page. It is written to memory first, so that a broken template is a 500 and not half a page.
func (x *exchange) show(status int, v *view) {
	var out bytes.Buffer
	if err := x.d.pages.write(&out, v.Page, "layout", v); err != nil {
		x.broken(err)
		return
	}
	x.html(status, out.Bytes())
}

// fragment answers a part of a page.
func (x *exchange) fragment(v *view, part string) {
	var out bytes.Buffer
	if err := x.d.pages.write(&out, v.Page, part, v); err != nil {
		x.broken(err)
		return
	}
	x.html(http.StatusOK, out.Bytes())
}

func (x *exchange) html(status int, body []byte) {
	x.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	x.w.WriteHeader(status)
	if _, err := x.w.Write(body); err != nil {
		x.d.Log.LogAttrs(x.r.Context(), slog.LevelDebug, "page not sent to its end", slog.String("request_id", x.id), slog.Any("error", err))
	}
}

func (x *exchange) broken(err error) {
	x.d.Log.LogAttrs(x.r.Context(), slog.LevelError, "page could not be made", slog.String("request_id", x.id), slog.Any("error", err))
	http.Error(x.w, "Something went wrong on our side. Request id: "+x.id, http.StatusInternalServerError)
}

// redirect sends the browser on with a GET.
func (x *exchange) redirect(to string) {
	http.Redirect(x.w, x.r, to, http.StatusSeeOther) //nolint:gosec // paths of our own, or what safeNext let through
}

// done ends a form that was carried out: the page is read anew, so that a reload repeats nothing.
func (x *exchange) done(path, what string) { x.redirect(path + "?done=" + what) }

// doneText is what the pages say after a change. The address names the key, so nobody's link can put words here.
var doneText = map[string]string{
	"tenant-created":   "Tenant created.",
	"tenant-changed":   "Saved. Every replica follows within a second.",
	"tenant-suspended": "Suspended. Its requests are refused within a second.",
	"tenant-activated": "Active again, within a second.",
	"tenant-deleted":   "Tenant deleted.",
	"tenant-reset":     "Counters cleared. Every replica follows within a second.",
	"key-revoked":      "API key revoked. It ends within a second.",
	"override-set":     "Override saved. It acts within a second.",
	"override-deleted": "Override removed. The plan's limit holds again within a second.",
	"plan-saved":       "Plan saved. Every tenant on it is held to it within a second.",
	"plan-deleted":     "Plan deleted.",
	"policy-saved":     "Address policy saved. It acts within a second.",
	"network-created":  "Network added. It acts within a second.",
	"network-deleted":  "Network removed.",
	"token-revoked":    "Token revoked. It ends within a second, and so do its sessions.",
	"mode-set":         "Mode changed. Every replica follows within a second.",
	"acknowledged":     "Acknowledged.",
}

// failure is an error as a page shows it.
type failure struct {
	Status        int
	Title, Detail string
	RequestID     string
	// Away: the configuration store did not answer; what is live goes on.
	Away bool
}

// failureOf is nil for no error.
func (x *exchange) failureOf(err error) *failure {
	if err == nil {
		return nil
	}
	var e *apiError
	if !errors.As(err, &e) {
		x.d.Log.LogAttrs(x.r.Context(), slog.LevelError, "dashboard request failed", slog.String("request_id", x.id), slog.Any("error", err))
		return &failure{Status: http.StatusInternalServerError, Title: "Something went wrong", Detail: "It is not your doing. The request id finds it in the logs.", RequestID: x.id}
	}
	f := &failure{Status: e.Status, Title: e.Title, Detail: e.Detail, RequestID: x.id}
	switch e.Status {
	case http.StatusForbidden:
		if x.session != nil {
			f.Title, f.Detail = "Not with your role", "You signed in as "+string(x.session.who.Role)+"; "+e.Detail+"."
		}
	case http.StatusBadRequest:
		if len(e.Errors) > 0 { // what an address asks for, such as ?status=
			f.Title, f.Detail = "That cannot be asked for", ""
			for _, field := range e.Errors {
				f.Detail = strings.TrimSpace(f.Detail + " " + path.Base(field.Pointer) + " " + field.Message + ".")
			}
		}
	case http.StatusNotFound:
		f.Title, f.Detail = "Not found", "There is nothing by this name. It may have been deleted."
	case http.StatusServiceUnavailable:
		f.Title, f.Away = "Postgres does not answer", true
		f.Detail = "Configuration can be neither read nor changed now. Decisions and live numbers go on."
	}
	return f
}

// fail answers an error with a page of its own.
func (x *exchange) fail(err error) {
	var e *apiError
	if errors.As(err, &e) && e.Status == http.StatusUnauthorized {
		x.mustSignIn()
		return
	}
	f := x.failureOf(err)
	if f.Status == http.StatusServiceUnavailable {
		x.w.Header().Set("Retry-After", "2")
		if kept := x.sent(); kept != nil && x.session != nil { // a sign-in's own form holds a token, and never comes back
			x.again(f.Status, &againView{Form: kept, Title: "Not saved: Postgres does not answer", Detail: "What you entered is kept on this page. Decisions go on; send it again in a moment."})
			return
		}
	}
	x.render(f.Status, "problem", f.Title, f)
}

func (x *exchange) notFound() {
	x.fail(&apiError{Problem: problem.New(problem.NotFound, "there is no such page", x.id)})
}

const themeCookie = "pegel_theme"

// theme is the reader's choice; empty: the system's.
func theme(r *http.Request) string {
	if c, err := r.Cookie(themeCookie); err == nil && (c.Value == "light" || c.Value == "dark") {
		return c.Value
	}
	return ""
}

// setTheme is POST /dashboard/theme. It needs no session: the sign-in page has the switch too.
func (d *Dashboard) setTheme(x *exchange) {
	f, ok := x.readForm("theme")
	if !ok {
		return
	}
	c := &http.Cookie{ //nolint:gosec // Secure where there is TLS
		Name: themeCookie, Value: f.text("theme"), Path: "/dashboard", MaxAge: 365 * 24 * 3600, HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: d.overTLS(x.r),
	}
	if c.Value != "light" && c.Value != "dark" {
		c.Value, c.MaxAge = "", -1
	}
	http.SetCookie(x.w, c)
	back := f.text("back")
	if back == "/dashboard/sign-in" {
		x.redirect(back)
		return
	}
	x.redirect(safeNext(back))
}
