package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// NewPublic is the public listener: decisions, health and the documentation.
func NewPublic(cfg PublicConfig) (http.Handler, error) {
	if cfg.Engine == nil || cfg.Directory == nil || cfg.Addresses == nil || cfg.Log == nil || cfg.Now == nil {
		return nil, errors.New("public interface: engine, directory, addresses, clock and logger are required")
	}
	return authzAsGet(headAsGet(publicRouter(cfg))), nil
}

func publicRouter(cfg PublicConfig) *gin.Engine {
	s := cfg.surface(listenerPublic, `Bearer realm="pegel"`)
	p := &public{surface: s, engine: cfg.Engine, directory: cfg.Directory, holder: cfg.Holder, trustIdentity: cfg.TrustIdentity}
	d := &docs{surface: s}
	router := s.router()
	cfg.probes(router, s)

	router.GET("/", func(c *gin.Context) { c.Redirect(http.StatusFound, "/docs") })
	router.GET("/openapi.yaml", d.document)
	router.GET("/docs", d.page)
	router.GET("/docs/:file", d.file)

	v1 := router.Group("/v1", p.loaded)
	v1.POST("/check", p.check)
	v1.POST("/check/batch", p.checkBatch)
	v1.POST("/refund", p.refund)
	v1.GET("/status", p.status)
	v1.GET("/ping", p.ping)

	doors := router.Group("/authz", p.loaded)
	doors.GET("/forward", p.authz(authzForward()))
	doors.GET("/nginx", p.authz(authzNginx()))
	return router
}

// NewAdmin is the admin listener: the administration, metrics and health. Each route of the administration passes
// authenticate (who), require (may they, by the role in this table) and validate (is it what the contract says), in this
// order, so that a stranger learns nothing from validation.
func NewAdmin(cfg AdminConfig) (http.Handler, error) {
	contract, err := loadContract()
	if err != nil {
		return nil, err
	}
	s := cfg.surface(listenerAdmin, `Bearer realm="pegel admin"`)
	a := &admin{
		surface: s, engine: cfg.Engine, directory: cfg.Directory, repository: cfg.Repository, journal: cfg.Journal, incidents: cfg.Incidents, usage: cfg.Usage, history: cfg.History, health: cfg.Health,
		mode: cfg.Mode, random: cfg.Random, changed: cfg.Changed, admins: cfg.SignIn, refused: cfg.Refused,
		large: make(chan struct{}, 1),
	}
	router := s.router()
	router.UseRawPath = true // a limit's name may hold a slash
	cfg.probes(router, s)
	if cfg.Metrics != nil {
		router.GET("/metrics", gin.WrapH(cfg.Metrics))
	}
	if cfg.Pages != nil {
		pages, err := cfg.Pages(router)
		if err != nil {
			return nil, err
		}
		router.GET("/", func(c *gin.Context) { c.Redirect(http.StatusFound, "/dashboard") })
		router.Any("/dashboard", gin.WrapH(pages))
		router.Any("/dashboard/*page", gin.WrapH(pages))
	}
	for _, r := range a.routes() {
		operation, err := contract.operation(r.method, r.path)
		if err != nil {
			return nil, fmt.Errorf("admin routes: %w", err)
		}
		router.Handle(r.method, r.path, a.authenticate, a.require(r.role), a.oneAtATime(operation), a.validate(operation), r.handler)
	}
	return headAsGet(router), nil
}

// adminRoute is a route of the administration and the least role that may use it.
type adminRoute struct {
	method, path string
	role         tenants.Role
	handler      gin.HandlerFunc
}

// routes is the administration: viewers read, operators change what tenants get, admins decide who else gets in.
func (a *admin) routes() []adminRoute {
	const get, post, put, patch, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete
	const viewer, operator, administrator = tenants.Viewer, tenants.Operator, tenants.Admin
	bound := gen.ServerInterfaceWrapper{Handler: a, ErrorHandler: a.bindError}
	return []adminRoute{
		{get, "/admin/plans", viewer, bound.ListPlans},
		{post, "/admin/plans", operator, bound.CreatePlan},
		{get, "/admin/plans/:plan", viewer, bound.GetPlan},
		{put, "/admin/plans/:plan", operator, bound.PutPlan},
		{del, "/admin/plans/:plan", operator, bound.DeletePlan},

		{get, "/admin/tenants", viewer, bound.ListTenants},
		{post, "/admin/tenants", operator, bound.CreateTenant},
		{get, "/admin/tenants/:tenant", viewer, bound.GetTenant},
		{patch, "/admin/tenants/:tenant", operator, bound.PatchTenant},
		{del, "/admin/tenants/:tenant", operator, bound.DeleteTenant},
		{post, "/admin/tenants/:tenant/reset", operator, bound.ResetTenant},

		{get, "/admin/tenants/:tenant/keys", viewer, bound.ListKeys},
		{post, "/admin/tenants/:tenant/keys", operator, bound.CreateKey},
		{del, "/admin/tenants/:tenant/keys/:id", operator, bound.RevokeKey},
		{post, "/admin/tenants/:tenant/keys/:id/rotate", operator, bound.RotateKey},

		{get, "/admin/tenants/:tenant/overrides", viewer, bound.ListOverrides},
		{put, "/admin/tenants/:tenant/overrides/:limit", operator, bound.PutOverride},
		{del, "/admin/tenants/:tenant/overrides/:limit", operator, bound.DeleteOverride},

		{get, "/admin/service-tokens", viewer, bound.ListServiceTokens},
		{post, "/admin/service-tokens", administrator, bound.CreateServiceToken},
		{del, "/admin/service-tokens/:id", administrator, bound.RevokeServiceToken},
		{post, "/admin/service-tokens/:id/rotate", administrator, bound.RotateServiceToken},

		{get, "/admin/admin-tokens", viewer, bound.ListAdminTokens},
		{post, "/admin/admin-tokens", administrator, bound.CreateAdminToken},
		{del, "/admin/admin-tokens/:id", administrator, bound.RevokeAdminToken},

		{get, "/admin/address-policy", viewer, bound.GetAddressPolicy},
		{put, "/admin/address-policy", operator, bound.PutAddressPolicy},
		{get, "/admin/networks", viewer, bound.ListNetworks},
		{post, "/admin/networks", operator, bound.CreateNetwork},
		{del, "/admin/networks/:id", operator, bound.DeleteNetwork},
		{get, "/admin/configuration", viewer, bound.GetConfiguration},
		{post, "/admin/configuration", operator, bound.ApplyConfiguration},
		{get, "/admin/mode", viewer, bound.GetMode},
		{put, "/admin/mode", operator, bound.PutMode},

		{get, "/admin/rate-limits", viewer, bound.GetRateLimits},
		{get, "/admin/tenants/:tenant/usage", viewer, bound.GetTenantUsage},
		{get, "/admin/decisions/:id", viewer, bound.GetDecision},
		{get, "/admin/requests", viewer, bound.ListRequests},
		{get, "/admin/requests/export", viewer, bound.ExportRequests},
		{get, "/admin/audit", viewer, bound.ListAudit},
		{get, "/admin/alerts", viewer, bound.ListAlerts},
		{post, "/admin/alerts/:id/ack", operator, bound.AckAlert},
		{get, "/admin/audit/export", viewer, bound.ExportAudit},
	}
}

// bindError answers what validate let through and the generated code could not bind: nothing that is known.
func (a *admin) bindError(c *gin.Context, err error, _ int) {
	a.fail(c, fmt.Errorf("bind validated parameters: %w", err))
}

// router has what every route has in common: an id and an address first, so that everything after it can be logged and
// answered under them, then the log, panics and headers.
func (s *surface) router() *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	router.HandleMethodNotAllowed = true
	router.RedirectTrailingSlash = false
	router.RedirectFixedPath = false
	router.Use(s.identify, s.accessLog, s.recoverPanics, s.secureHeaders)
	router.NoRoute(s.noRoute)
	router.NoMethod(s.noMethod)
	return router
}

// probes adds health and readiness.
func (c *Common) probes(router *gin.Engine, s surface) {
	h := &health{surface: s, view: c.Health}
	router.GET("/healthz", h.live)
	router.GET("/readyz", h.ready)
}

func (c *Common) surface(listener, challenge string) surface {
	return surface{
		addresses: c.Addresses, now: c.Now, log: c.Log, listener: listener, challenge: challenge, ids: decision.NewIDSource(),
		buffers: &sync.Pool{New: func() any { return new([]byte) }},
	}
}
