package dashboard

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/signin"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/usage"
)

// Bounds.
const (
	// maxForm is the largest form that is read, in bytes: a plan of 64 limits fits many times.
	maxForm = 1 << 20
	// maxStreams is how many pages one replica keeps up to date at a time; later ones are told to come back.
	maxStreams = 128
	// maxStreamsEach is how many of them one administrator may have, so that nobody's forgotten tabs take everybody's live pages.
	maxStreamsEach = 32
	// streamEvery is how often a live page is renewed.
	streamEvery = 2 * time.Second
)

// Engine is what the dashboard asks of *decision.Engine: how full limits are, without consuming anything.
type Engine interface {
	Status(ctx context.Context, h decision.Hit) (*decision.Decision, error)
}

// AddressResolver finds the client's address and whether the peer is a trusted proxy (*decision.AddressResolver).
type AddressResolver interface {
	Resolve(r *http.Request) (prefix netip.Prefix, peerTrusted bool)
}

// Config is what the dashboard needs; every field is required, but Done.
type Config struct {
	// API is the admin listener's: the routes under /admin, and /readyz.
	API    http.Handler
	SignIn *signin.Verifier
	Engine Engine
	// Live is what is used now, History what was.
	Live      usage.Live
	History   usage.History
	Directory *tenants.Directory
	Addresses AddressResolver
	// Now is this replica's clock.
	Now func() time.Time
	Log *slog.Logger
	// Done ends live pages when the replica drains; nil: they end with their connections.
	Done <-chan struct{}
}

// Dashboard answers everything under /dashboard. It is safe for concurrent use and owns no goroutine.
type Dashboard struct {
	Config

	pages   *pages
	origin  *http.CrossOriginProtection
	streams streamCount
}

// New builds the dashboard; it fails only for a template or a file that is broken.
func New(cfg Config) (http.Handler, error) {
	if cfg.API == nil || cfg.SignIn == nil || cfg.Engine == nil || cfg.Live == nil || cfg.History == nil || cfg.Directory == nil || cfg.Addresses == nil || cfg.Now == nil || cfg.Log == nil {
		return nil, errors.New("dashboard: API, sign-in, engine, live usage, history, directory, addresses, clock and logger are required")
	}
	pages, err := loadPages(cfg.Now)
	if err != nil {
		return nil, err
	}
	d := &Dashboard{Config: cfg, pages: pages, origin: http.NewCrossOriginProtection()}
	assets, err := serveAssets()
	if err != nil {
		return nil, err
	}
	return d.secure(d.routes(assets)), nil
}

// routes is every page and every form. A form posts to its own page's path or below it. Who may is the API's to say: a page
// only leaves out what it knows to be refused.
func (d *Dashboard) routes(assets http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /dashboard/static/", assets)
	mux.HandleFunc("GET /dashboard/sign-in", d.anybody(d.signInPage))
	mux.HandleFunc("POST /dashboard/sign-in", d.anybody(d.signIn))
	mux.HandleFunc("POST /dashboard/sign-out", d.anybody(d.signOut))
	mux.HandleFunc("POST /dashboard/theme", d.anybody(d.setTheme))

	for pattern, handle := range map[string]func(*exchange){
		"GET /dashboard":       d.overview,
		"GET /dashboard/{$}":   d.overview,
		"GET /dashboard/live":  d.overviewLive,
		"POST /dashboard/mode": d.setMode,

		"GET /dashboard/tenants":                       d.tenants,
		"POST /dashboard/tenants":                      d.createTenant,
		"GET /dashboard/tenants/{tenant}":              d.tenant,
		"GET /dashboard/tenants/{tenant}/live":         d.tenantLive,
		"POST /dashboard/tenants/{tenant}":             d.changeTenant,
		"POST /dashboard/tenants/{tenant}/delete":      d.deleteTenant,
		"POST /dashboard/tenants/{tenant}/reset":       d.resetTenant,
		"POST /dashboard/tenants/{tenant}/keys":        d.createKey,
		"POST /dashboard/tenants/{tenant}/keys/rotate": d.rotateKey,
		"POST /dashboard/tenants/{tenant}/keys/revoke": d.revokeKey,
		"POST /dashboard/tenants/{tenant}/overrides":   d.putOverride,
		"POST /dashboard/tenants/{tenant}/unoverride":  d.deleteOverride,

		"GET /dashboard/plans":                d.plans,
		"GET /dashboard/plans/new":            d.newPlan,
		"POST /dashboard/plans/new":           d.createPlan,
		"GET /dashboard/plans/{plan}":         d.plan,
		"POST /dashboard/plans/{plan}":        d.putPlan,
		"POST /dashboard/plans/{plan}/delete": d.deletePlan,

		"GET /dashboard/addresses":                  d.addresses,
		"POST /dashboard/addresses":                 d.putPolicy,
		"POST /dashboard/addresses/networks":        d.createNetwork,
		"POST /dashboard/addresses/networks/delete": d.deleteNetwork,

		"GET /dashboard/tokens":                  d.tokens,
		"POST /dashboard/tokens/services":        d.createServiceToken,
		"POST /dashboard/tokens/services/rotate": d.rotateServiceToken,
		"POST /dashboard/tokens/services/revoke": d.revokeServiceToken,
		"POST /dashboard/tokens/admins":          d.createAdminToken,
		"POST /dashboard/tokens/admins/revoke":   d.revokeAdminToken,

		"GET /dashboard/decisions":   d.decisions,
		"GET /dashboard/audit":       d.audit,
		"GET /dashboard/alerts":      d.alerts,
		"POST /dashboard/alerts/ack": d.acknowledge,
	} {
		mux.HandleFunc(pattern, d.signedIn(handle))
	}
	mux.HandleFunc("/dashboard/", d.signedIn(func(x *exchange) { x.notFound() }))
	return mux
}

// contentPolicy lets pages load their own files and talk to their own host, and nothing else.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// secure sets the headers of every answer and refuses what another site's page sends. A change must say where it comes from:
// every browser does, so a request that says nothing has no business with a session cookie.
func (d *Dashboard) secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentPolicy)
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		silent := r.Method == http.MethodPost && r.Header.Get("Sec-Fetch-Site") == "" && r.Header.Get("Origin") == ""
		if silent || d.origin.Check(r) != nil {
			http.Error(w, "A change must come from the dashboard's own pages: open it again and repeat what you did.", http.StatusForbidden)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		next.ServeHTTP(w, r)
	})
}
