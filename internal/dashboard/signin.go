package dashboard

import (
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/pegel-dev/pegel/internal/problem"
)

// signInView is the page that asks for a token.
type signInView struct {
	Next    string
	Wrong   string // what was wrong with the last attempt
	Loading bool   // the configuration has not been loaded: nobody can be told from anybody
	// Kept is a form that was sent without a session; it comes back after signing in. Lost: there was one, too long to keep.
	Kept *keptForm
	Lost bool
}

// signInPage is GET /dashboard/sign-in.
func (d *Dashboard) signInPage(x *exchange) {
	next := safeNext(x.r.URL.Query().Get("next"))
	if d.current(x.r) != nil {
		x.redirect(next)
		return
	}
	x.render(http.StatusOK, "sign-in", "Sign in", signInView{Next: next, Loading: !d.SignIn.Loaded()})
}

// signIn is POST /dashboard/sign-in.
func (d *Dashboard) signIn(x *exchange) {
	f, ok := x.readForm("sign-in")
	if !ok {
		return
	}
	token, next, kept := f.text("token"), safeNext(f.text("next")), keptIn(f)
	who, expires, right := d.SignIn.Verify(token)
	if !right {
		status, wrong := d.refuseSignIn(x, token)
		x.render(status, "sign-in", "Sign in", signInView{Next: next, Wrong: wrong, Kept: kept})
		return
	}
	now := d.Now()
	value, err := d.seal(&who, token, now)
	if err != nil {
		x.fail(err)
		return
	}
	if len(value) > maxCookie {
		x.render(http.StatusBadRequest, "sign-in", "Sign in", signInView{Next: next, Kept: kept, Wrong: "This token is too long for a browser's cookie. Sign in with one made by `pegel admin-token create`."})
		return
	}
	life := sessionLife
	if left := expires.Sub(now); !expires.IsZero() && left < life {
		life = left
	}
	http.SetCookie(x.w, d.cookie(x.r, value, life))
	d.Log.LogAttrs(x.r.Context(), slog.LevelInfo, "administrator signed in to the dashboard",
		slog.String("actor", who.Actor.Name), slog.String("actor_id", who.Actor.ID), slog.String("request_id", x.id), slog.String("address", d.address(x.r)))
	if kept != nil {
		x.session = &session{who: who, token: token, ends: now.Add(life)}
		x.signedInAgain(kept)
		return
	}
	x.redirect(next)
}

// refuseSignIn sends the wrong token to the API, where it is counted against its address like any wrong credential, and says
// what came back.
func (d *Dashboard) refuseSignIn(x *exchange, token string) (status int, wrong string) {
	x.session = &session{token: token}
	defer func() { x.session = nil }()
	err := x.get("/admin/mode", nil, nil)
	var refused *apiError
	switch {
	case errors.As(err, &refused) && refused.Status == http.StatusTooManyRequests:
		if retry := refused.header.Get("Retry-After"); retry != "" {
			x.w.Header().Set("Retry-After", retry)
			return refused.Status, "Too many attempts from your address. Try again in " + retry + " s."
		}
		return refused.Status, "Too many attempts from your address. Try again later."
	case errors.As(err, &refused) && refused.Status == http.StatusForbidden:
		return refused.Status, "Your address is in the deny list."
	case errors.As(err, &refused) && refused.Status == http.StatusServiceUnavailable:
		return refused.Status, "This replica has not loaded its configuration yet, so it cannot know your token. Try again in a moment."
	}
	return http.StatusUnauthorized, "This is not a valid admin token."
}

// signOut is POST /dashboard/sign-out.
func (d *Dashboard) signOut(x *exchange) {
	http.SetCookie(x.w, d.cookie(x.r, "", 0))
	x.redirect("/dashboard/sign-in")
}

// anybody lets everybody through, also without a session.
func (d *Dashboard) anybody(handle func(*exchange)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { handle(d.exchange(w, r, nil)) }
}

// signedIn lets only sessions through; everybody else signs in first and comes back.
func (d *Dashboard) signedIn(handle func(*exchange)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s := d.current(r)
		if s == nil {
			d.exchange(w, r, nil).mustSignIn() //nolint:contextcheck // the request's, which the exchange holds
			return
		}
		handle(d.exchange(w, r, s))
	}
}

// mustSignIn sends a browser to the sign-in page, also one that asked for a part of a page. What a form held comes along.
func (x *exchange) mustSignIn() {
	if kept := x.sent(); kept != nil {
		x.session = nil
		v := signInView{Next: "/dashboard", Kept: kept, Loading: !x.d.SignIn.Loaded()}
		if kept.Text() == "" {
			v.Kept, v.Lost = nil, true
		}
		x.render(http.StatusUnauthorized, "sign-in", "Sign in", v)
		return
	}
	next := "/dashboard"
	if x.r.Method == http.MethodGet && x.r.Header.Get("HX-Request") == "" && !strings.HasSuffix(x.r.URL.Path, "/live") {
		next = x.r.URL.RequestURI()
	}
	to := "/dashboard/sign-in?next=" + url.QueryEscape(safeNext(next))
	switch {
	case x.r.Header.Get("HX-Request") != "":
		x.w.Header().Set("HX-Redirect", to)
		x.w.WriteHeader(http.StatusUnauthorized)
	case x.r.Header.Get("Accept") == eventStream:
		x.w.WriteHeader(http.StatusUnauthorized)
	default:
		x.redirect(to)
	}
}

// safeNext keeps a way back inside the dashboard.
func safeNext(next string) string {
	u, err := url.Parse(next)
	inside := err == nil && u.Scheme == "" && u.Host == "" && u.Opaque == "" && (u.Path == "/dashboard" || strings.HasPrefix(u.Path, "/dashboard/"))
	if !inside || path.Clean(u.Path) != u.Path || len(next) > 2000 || strings.HasPrefix(u.Path, "/dashboard/sign-") || strings.ContainsAny(next, "\\\r\n") {
		return "/dashboard"
	}
	return next
}

func (d *Dashboard) address(r *http.Request) string {
	prefix, _ := d.Addresses.Resolve(r)
	if !prefix.IsValid() {
		return ""
	}
	return prefix.Addr().String()
}

// formError is a form that could not be read.
func formError(err error) error {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return &apiError{Problem: problem.New(problem.PayloadTooLarge, "a form may have at most 1 MiB", "")}
	}
	return &apiError{Problem: problem.New(problem.Validation, "the form could not be read", "")}
}
