package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/trace"

	"github.com/pegel-dev/pegel/internal/alert"
	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/envoyrls"
	"github.com/pegel-dev/pegel/internal/httpapi"
	"github.com/pegel-dev/pegel/internal/journal"
	"github.com/pegel-dev/pegel/internal/jwt"
	"github.com/pegel-dev/pegel/internal/metrics"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/proxy"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/signin"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/usage"
)

// The names of the listeners, for Addr.
const (
	publicListener = "public"
	adminListener  = "admin"
	proxyListener  = "proxy"
	rlsListener    = "rls"
)

// Options are what the process brings, besides its settings.
type Options struct {
	Log *slog.Logger
	// Now is this replica's clock: time.Now.
	Now func() time.Time
	// Version of the binary.
	Version string
	// Name of this replica among the others; empty: the host's.
	Name string
}

// App is one replica: New builds it and takes its addresses, Run serves until told to stop. It holds every part of the
// service, and nobody else builds one.
type App struct {
	cfg  *Config
	log  *slog.Logger
	now  func() time.Time
	name string
	// version of the binary.
	version string

	listeners  listeners
	pool       *pgxpool.Pool // configuration, audit, migrations
	stores     *stores
	directory  *tenants.Directory
	repository *postgres.Repository
	lastUsed   *tenants.LastUsed
	refusals   *audit.Refusals
	poller     *tenants.Poller
	usage      *usage.Aggregator
	reporter   *usage.Reporter
	tracing    trace.TracerProvider // nil: off
	journal    *journal.Journal
	recorded   *postgres.Journal // what the journal wrote, on every replica
	alerts     *alert.Service
	metrics    *prometheus.Registry
	health     *health
	rls        *envoyrls.Server // nil: off
	sessions   *jwt.Verifier    // nil: no token counts
	ready      chan struct{}    // closed when the replica first can decide
	draining   chan struct{}    // closed when the drain begins: live pages end
}

// New builds a replica and binds its listeners. It asks no store: Postgres and Redis may be down. An error is one line;
// nothing is left open then.
func New(ctx context.Context, cfg *Config, opts Options) (*App, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if opts.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("find the name of this machine: %w", err)
		}
		opts.Name = host
	}
	a := &App{
		cfg: cfg, log: opts.Log, now: opts.Now, name: opts.Name, version: opts.Version, ready: make(chan struct{}), draining: make(chan struct{}),
		directory: tenants.NewDirectory(cfg.TrustTokensFor), usage: usage.NewAggregator(0), metrics: newMetrics(opts.Version),
	}
	a.listeners.log = opts.Log
	err := a.openTracing(ctx)
	if err == nil {
		err = a.openStores(ctx)
	}
	if err == nil {
		err = a.openSessions(ctx)
	}
	if err == nil {
		err = a.openListeners(ctx)
	}
	if err != nil {
		a.close(context.WithoutCancel(ctx))
		return nil, err
	}
	return a, nil
}

// openStores makes pools and clients; none connects before it is used.
func (a *App) openStores(ctx context.Context) error {
	var err error
	a.pool, err = postgres.NewPool(string(a.cfg.DatabaseURL), postgres.PoolOptions{ //nolint:contextcheck // a pool lives until it is closed
		MaxConns: int32(a.cfg.DatabasePoolSize), MinIdle: 1, Name: "pegel configuration", Tracing: a.tracing, //nolint:gosec // at most 1,000
	})
	if err != nil {
		return fmt.Errorf("open the configuration pool: %w", err)
	}
	a.repository = postgres.NewRepository(a.pool)
	a.lastUsed = tenants.NewLastUsed(a.repository, 0, a.log)
	a.refusals = audit.NewRefusals(a.repository.RecordRefusals, a.now, a.log)
	a.poller = tenants.NewPoller(a.directory, newCountedLoader(a.repository, a.metrics), tenants.PollerOptions{
		Clock: a.now, Log: a.log, OnBroken: countBroken(a.metrics),
	})
	a.metrics.MustRegister(newBrokenRows(a.poller.Broken))
	a.stores, err = openStores(ctx, a.cfg, a.now, a.log, countFlights(a.metrics), newStoreMetrics(a.metrics), a.tracing)
	if err != nil {
		return err
	}
	a.openJournal()
	a.health = &health{name: a.name, stores: a.stores, journal: a.journal}
	a.reporter = a.newReporter()
	return a.openAlerts()
}

// openListeners binds every address and says what is served on it.
func (a *App) openListeners(ctx context.Context) error {
	var cert *certificate
	if a.Secure() {
		var err error
		if cert, err = newCertificate(a.cfg.TLSCertFile, a.cfg.TLSKeyFile, a.now, a.log); err != nil {
			return &SettingError{Name: certSetting, Reason: err.Error()}
		}
	}
	addresses, err := decision.NewAddressResolver(decision.AddressConfig{
		TrustedProxies: a.cfg.TrustedProxies, Header: a.cfg.ClientIPHeader, IPv6Prefix: a.cfg.IPv6Prefix,
	})
	if err != nil {
		return &SettingError{Name: "PEGEL_CLIENT_IP_HEADER", Reason: err.Error()}
	}
	engine := decision.New(decision.Config{
		Store: a.stores.denials, Directory: a.directory, Recorder: a.usage, Observer: observers{metrics.NewDecisions(a.metrics, a.now), a.journal},
		Used: a.lastUsed.Note, UsedOverride: a.lastUsed.NoteOverride,
		Tokens: a.tokens(), Hosts: a.cfg.TenantHosts,
		Now: a.now, Mode: ratelimit.Mode(a.cfg.Mode), IPv6Prefix: a.cfg.IPv6Prefix, Log: a.log,
	})
	holder := decision.NewHolder(a.cfg.HeldPerTenant, a.cfg.HeldTotal, nil)
	a.observe(holder)
	common := httpapi.Common{
		Engine: engine, Directory: a.directory, Addresses: addresses, Health: a.health, Now: a.now, Log: a.log,
	}
	if err := a.openPublic(ctx, common, holder, cert); err != nil {
		return err
	}
	if err := a.openAdmin(ctx, common, cert); err != nil {
		return err
	}
	if err := a.openProxy(ctx, engine, addresses, holder, cert); err != nil {
		return err
	}
	return a.openRLS(ctx, engine, cert)
}

func (a *App) openPublic(ctx context.Context, common httpapi.Common, holder *decision.Holder, cert *certificate) error {
	h, err := httpapi.NewPublic(httpapi.PublicConfig{Common: common, Holder: holder, TrustIdentity: a.cfg.TrustIdentityHeaders}) //nolint:contextcheck // requests bring their own
	if err != nil {
		return fmt.Errorf("build the public interface: %w", err)
	}
	l, err := a.listeners.listen(ctx, publicListener, listenSetting, a.cfg.Listen, cert)
	if err != nil {
		return err
	}
	a.listeners.handle(l, a.traced(publicListener, h), readTimeout)
	return nil
}

func (a *App) openAdmin(ctx context.Context, common httpapi.Common, cert *certificate) error {
	admins := signin.New(signin.Config{Directory: a.directory, Now: a.now, Bootstrap: string(a.cfg.AdminToken), Used: a.lastUsed.Note})
	h, err := httpapi.NewAdmin(httpapi.AdminConfig{ //nolint:contextcheck // handlers take their request's
		Common: common, Repository: a.repository, Journal: a.recorded, Incidents: a.repository, Usage: a.reporter, History: postgres.NewUsageHistory(a.repository), SignIn: admins, Refused: a.refusals.Note, Mode: ratelimit.Mode(a.cfg.Mode),
		Random: rand.Reader, Changed: a.ownChange,
		Metrics: promhttp.HandlerFor(a.metrics, promhttp.HandlerOpts{}), Pages: a.pages(common, admins),
	})
	if err != nil {
		return fmt.Errorf("build the admin interface: %w", err)
	}
	l, err := a.listeners.listen(ctx, adminListener, adminSetting, a.cfg.AdminListen, cert)
	if err != nil {
		return err
	}
	a.listeners.handle(l, a.traced(adminListener, h), readTimeout)
	return nil
}

func (a *App) openProxy(
	ctx context.Context, engine *decision.Engine, addresses *decision.AddressResolver, holder *decision.Holder, cert *certificate,
) error {
	webSockets := a.webSockets()
	if a.cfg.ProxyListen == "" {
		return nil
	}
	h, err := proxy.New(proxy.Config{
		Engine: engine, Addresses: addresses, Holder: holder, Upstream: a.cfg.ProxyUpstream,
		TrustIdentityHeaders: a.cfg.TrustIdentityHeaders, WebSockets: webSockets, WebSocketLifetime: a.cfg.WebSocketLifetime, Log: a.log,
	})
	if err != nil {
		return &SettingError{Name: upstreamSetting, Reason: err.Error()}
	}
	l, err := a.listeners.listen(ctx, proxyListener, proxySetting, a.cfg.ProxyListen, cert)
	if err != nil {
		return err
	}
	if cert != nil {
		l.socket = newHandshakes(l.socket, a.log)
	}
	server := a.listeners.handle(l, a.traced(proxyListener, whenLoaded(a.directory, h)), 0) // an upload through the proxy may take as long as it likes
	l.socket = proxy.Guard(l.socket, server)
	l.server = tunnelling{server, h}
	return nil
}

// Addr is where a listener ("public", "admin", "proxy", "rls") really is; empty when it is off.
func (a *App) Addr(name string) string { return a.listeners.addr(name) }

// Secure reports whether the listeners speak TLS.
func (a *App) Secure() bool { return a.cfg.TLSCertFile != "" }

// Ready is closed when the replica is migrated, loaded and decides.
func (a *App) Ready() <-chan struct{} { return a.ready }

// Run serves until ctx ends, drains and closes everything. It may be called once. It returns nil after an orderly end,
// also when ctx ends while it still waits for Postgres.
//
// The drain: /readyz says 503 and answers close their connections; after the drain pause the listeners close; requests in
// flight, held ones included, finish or are cut at the drain timeout; then the background work and the stores end.
func (a *App) Run(ctx context.Context) error {
	defer a.close(context.WithoutCancel(ctx))
	failed := a.listeners.serve()
	a.log.Info("listening", slog.String("public", a.Addr(publicListener)), slog.String("admin", a.Addr(adminListener)),
		slog.String("proxy", a.Addr(proxyListener)), slog.String("rls", a.Addr(rlsListener)), slog.Bool("tls", a.Secure()))

	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	var background sync.WaitGroup
	defer background.Wait()
	defer stopWork()

	background.Go(func() { a.stores.watch(work) })
	if a.sessions != nil {
		background.Go(func() { a.sessions.Run(work) })
	}

	startup, stopStartup := context.WithCancel(ctx)
	defer stopStartup()
	fatal := make(chan error, 1)
	background.Go(func() {
		if err := a.start(startup); err != nil {
			fatal <- err
			return
		}
		if startup.Err() == nil {
			a.work(work)
		}
	})

	var cause error
	select {
	case <-ctx.Done():
	case cause = <-fatal:
	case cause = <-failed:
	}
	stopStartup()
	return errors.Join(cause, a.drain(context.WithoutCancel(ctx)))
}

// drain takes the replica out of service in order.
func (a *App) drain(ctx context.Context) error {
	a.health.drain()
	if a.rls != nil {
		a.rls.Drain()
	}
	a.listeners.draining.Store(true)
	close(a.draining)
	a.log.Info("draining", slog.Duration("pause", a.cfg.DrainPause), slog.Duration("timeout", a.cfg.DrainTimeout))
	pause := time.NewTimer(a.cfg.DrainPause)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-a.nobodyCame():
	}
	limit, cancel := context.WithTimeout(ctx, a.cfg.DrainTimeout)
	defer cancel()
	if err := a.listeners.shutdown(limit); err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	a.log.Info("drained")
	return nil
}

// nobodyCame is closed when the replica was never ready: no balancer sends it anything, so there is nobody to wait for.
func (a *App) nobodyCame() <-chan struct{} {
	select {
	case <-a.ready:
		return nil
	default:
		closed := make(chan struct{})
		close(closed)
		return closed
	}
}

// close gives back what New took. The pools end last: background work has ended by then.
func (a *App) close(ctx context.Context) {
	a.listeners.close()
	if a.stores != nil {
		a.stores.close(ctx)
	}
	if a.pool != nil {
		a.pool.Close()
	}
	a.endTracing(ctx)
}
