package dashboard_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/alert"
	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/dashboard"
	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/httpapi"
	"github.com/pegel-dev/pegel/internal/journal"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/signin"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/testenv"
	"github.com/pegel-dev/pegel/internal/usage"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const bootstrap = "bootstrap-token-of-the-tests-0123456789"

// world is the admin listener with its pages over the real repository in a real Postgres and the real engine on the memory
// store, on a clock that the test moves. What is used now is what the test says.
type world struct {
	t          testing.TB
	admin      *httptest.Server
	pool       *pgxpool.Pool
	repository *postgres.Repository
	directory  *tenants.Directory
	poller     *tenants.Poller
	engine     *decision.Engine
	live       *fixedLive
	history    *postgres.UsageHistory
	journal    *journal.Journal
	offset     atomic.Int64
	logs       *logBuffer
	draining   chan struct{}
}

func (w *world) now() time.Time          { return time.Now().Add(time.Duration(w.offset.Load())) }
func (w *world) advance(d time.Duration) { w.offset.Add(int64(d)) }

// fixedLive is the picture the test paints.
type fixedLive struct{ atomic.Pointer[usage.Overview] }

func (l *fixedLive) Overview(context.Context, int) usage.Overview { return *l.Load() }
func (l *fixedLive) Levels(context.Context) []usage.TenantUsage   { return l.Load().Tenants }
func (l *fixedLive) Tenant(_ context.Context, id int64) (usage.TenantUsage, bool) {
	for _, t := range l.Load().Tenants {
		if t.TenantID == id {
			return t, true
		}
	}
	return usage.TenantUsage{}, false
}

type fixedHealth struct{}

func (fixedHealth) Readiness() httpapi.Readiness {
	return httpapi.Readiness{Ready: true, Status: "ok", Source: ratelimit.SourceRedis, Redis: "up", Postgres: "up"}
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// patient is for what is not about how long Postgres takes.
func patient() postgres.Option { return postgres.WithAnswerWithin(time.Minute) }

func newWorld(tb testing.TB) *world {
	tb.Helper()
	return newWorldOn(tb, testenv.Postgres(tb), patient())
}

func newWorldOn(tb testing.TB, databaseURL string, options ...postgres.Option) *world {
	tb.Helper()
	w := &world{t: tb, live: &fixedLive{}, logs: &logBuffer{}, draining: make(chan struct{}), directory: tenants.NewDirectory(0)}
	w.live.Store(&usage.Overview{})
	log := slog.New(slog.NewJSONHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	pool, err := postgres.NewPool(databaseURL, postgres.PoolOptions{MaxConns: 4, MinIdle: 1})
	require.NoError(tb, err)
	tb.Cleanup(pool.Close)
	w.pool = pool
	w.repository = postgres.NewRepository(pool, options...)
	require.NoError(tb, postgres.NewRepository(pool, patient()).InstallDefaults(tb.Context()))
	w.poller = tenants.NewPoller(w.directory, w.repository, tenants.PollerOptions{Clock: w.now, Log: log})
	w.refresh()
	w.history = postgres.NewUsageHistory(w.repository)
	recorded := postgres.NewJournal(pool, options...)
	w.journal = journal.New(journal.Config{Sink: recorded, Replica: "pegel-0", Now: w.now, Retention: 168 * time.Hour, FlushWithin: time.Minute, Log: log})
	w.engine = decision.New(decision.Config{
		Store: ratelimit.NewMemory(func() int64 { return w.now().UnixMicro() }, 0), Directory: w.directory, Recorder: usage.NewAggregator(0),
		Observer: w.journal, Now: w.now, Mode: ratelimit.Enforce, Log: log,
	})
	addresses, err := decision.NewAddressResolver(decision.AddressConfig{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	require.NoError(tb, err)
	admins := signin.New(signin.Config{Directory: w.directory, Now: w.now, Bootstrap: bootstrap})
	admin, err := httpapi.NewAdmin(httpapi.AdminConfig{
		Common:     httpapi.Common{Engine: w.engine, Directory: w.directory, Addresses: addresses, Health: fixedHealth{}, Now: w.now, Log: log},
		Repository: w.repository, Journal: recorded, Incidents: w.repository, Usage: w.live, Mode: ratelimit.Enforce, SignIn: admins, Random: rand.Reader,
		Changed: func(ctx context.Context) { _ = w.poller.Refresh(ctx) },
		Pages: func(api http.Handler) (http.Handler, error) {
			return dashboard.New(dashboard.Config{
				API: api, SignIn: admins, Engine: w.engine, Live: w.live, History: w.history, Directory: w.directory, Addresses: addresses,
				Now: w.now, Log: log, Done: w.draining,
			})
		},
	})
	require.NoError(tb, err)
	w.admin = httptest.NewServer(admin)
	tb.Cleanup(w.admin.Close)
	return w
}

func (w *world) refresh() {
	w.t.Helper()
	require.NoError(w.t, w.poller.Refresh(w.t.Context()))
}

var testActor = audit.Actor{Kind: "system", Name: "the tests"}

// written runs the journal until what was decided is in Postgres.
func (w *world) written() {
	w.t.Helper()
	ctx, end := context.WithCancel(w.t.Context())
	end()
	w.journal.Run(ctx) // it writes what it has before it ends
}

// incident opens one, as alerts do.
func (w *world) incident(kind alert.Kind, f *alert.Facts, since time.Time) {
	w.t.Helper()
	facts, err := json.Marshal(f)
	require.NoError(w.t, err)
	_, err = w.pool.Exec(w.t.Context(), `INSERT INTO incidents (kind, subject, tenant, facts, since, opened_at, value, peak)
		VALUES ($1, $2, $3, $4, $5, $6, 0.97, 1)`, kind, f.Tenant+f.Name, f.Tenant, facts, since, since.Add(10*time.Minute))
	require.NoError(w.t, err)
}

// administrator makes an admin token.
func (w *world) administrator(role tenants.Role) (id, token string) {
	w.t.Helper()
	c, token, err := tenants.NewCredential(tenants.KindAdminToken, rand.Reader)
	require.NoError(w.t, err)
	_, err = w.repository.CreateAdminToken(w.t.Context(), testActor, tenants.AdminToken{ID: c.ID, Name: string(role) + " of the tests", Role: role, Hash: c.Hash})
	require.NoError(w.t, err)
	w.refresh()
	return c.ID, token
}

func (w *world) tenant(slug, name, plan string) tenants.Tenant {
	w.t.Helper()
	t := tenants.Tenant{Slug: slug, Name: name, Plan: plan}
	t.SetDefaults()
	t, err := w.repository.CreateTenant(w.t.Context(), testActor, t)
	require.NoError(w.t, err)
	w.refresh()
	return t
}

// browser is a client with cookies that follows redirects as browsers do, and says where its forms come from.
type browser struct {
	w *world
	c *http.Client
}

func (w *world) browser() *browser {
	w.t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(w.t, err)
	return &browser{w: w, c: &http.Client{Jar: jar, Timeout: time.Minute}}
}

// signIn opens a session.
func (w *world) signIn(token string) *browser {
	w.t.Helper()
	b := w.browser()
	p := b.post("/dashboard/sign-in", "token", token)
	require.Equal(w.t, http.StatusOK, p.status, "%s", p.body)
	require.Equal(w.t, "/dashboard", p.path)
	return b
}

// seen is a page as it came.
type seen struct {
	status     int
	path, body string
	header     http.Header
}

func (b *browser) do(r *http.Request) seen {
	b.w.t.Helper()
	res, err := b.c.Do(r)
	require.NoError(b.w.t, err)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	require.NoError(b.w.t, err)
	return seen{status: res.StatusCode, path: res.Request.URL.Path, body: string(raw), header: res.Header}
}

func (b *browser) request(method, path string, body io.Reader) *http.Request {
	b.w.t.Helper()
	r, err := http.NewRequestWithContext(b.w.t.Context(), method, b.w.admin.URL+path, body)
	require.NoError(b.w.t, err)
	return r
}

func (b *browser) get(path string) seen {
	b.w.t.Helper()
	return b.do(b.request(http.MethodGet, path, nil))
}

// post sends a form of name and value pairs.
func (b *browser) post(path string, pairs ...string) seen {
	b.w.t.Helper()
	form := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		form.Add(pairs[i], pairs[i+1])
	}
	r := b.request(http.MethodPost, path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", b.w.admin.URL)
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return b.do(r)
}

// value is a hidden field of a page.
func (p *seen) value(tb testing.TB, name string) string {
	tb.Helper()
	_, after, found := strings.Cut(p.body, `name="`+name+`" value="`)
	require.True(tb, found, "no field %s in %s", name, p.body)
	value, _, _ := strings.Cut(after, `"`)
	return html.UnescapeString(value)
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
