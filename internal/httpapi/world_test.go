package httpapi_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/api"
	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/httpapi"
	"github.com/pegel-dev/pegel/internal/journal"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/signin"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/testenv"
	"github.com/pegel-dev/pegel/internal/usage"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// bootstrap is the PEGEL_ADMIN_TOKEN of the tests.
const bootstrap = "bootstrap-token-of-the-tests-0123456789"

// world is both listeners over the real repository in a real Postgres, the real engine and the memory store, on one clock
// that the test moves.
type world struct {
	t             testing.TB
	public, admin *httptest.Server
	repository    *postgres.Repository
	directory     *tenants.Directory
	poller        *tenants.Poller
	engine        *decision.Engine
	memory        *countingStore
	usage         *usage.Aggregator
	live          usage.Live
	journal       *journal.Journal // its Run is left to the tests that are about it
	health        *fixedHealth
	holder        *fakeHolder
	clock         *clock
	logs          *logBuffer
	contract      routers.Router
}

// clock starts at a whole minute of the day the tests were written for.
type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time {
	return time.Now().Add(time.Duration(c.offset.Load()))
}
func (c *clock) micros() int64           { return c.now().UnixMicro() }
func (c *clock) advance(d time.Duration) { c.offset.Add(int64(d)) }

// countingStore counts the charges that could consume something, and can be told to fail.
type countingStore struct {
	ratelimit.Store

	takes atomic.Int64
	fail  atomic.Pointer[error]
}

func (s *countingStore) Decide(ctx context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
	for i := range charges {
		if charges[i].Kind == ratelimit.Take && charges[i].Cost > 0 {
			s.takes.Add(1)
		}
	}
	if err := s.fail.Load(); err != nil {
		return *err
	}
	err := s.Store.Decide(ctx, charges, out)
	for i := range charges {
		out[i].Source = s.Source()
	}
	return err
}

// Source pretends to be Redis, so that a decision is one of a healthy service.
func (s *countingStore) Source() ratelimit.Source { return ratelimit.SourceRedis }

type fixedHealth struct {
	atomic.Pointer[httpapi.Readiness]
}

func (h *fixedHealth) Readiness() httpapi.Readiness { return *h.Load() }

func (h *fixedHealth) replica() usage.Replica {
	r := h.Load()
	return usage.Replica{Name: "test-1", Instance: "1", Source: string(r.Source), Redis: r.Redis, Postgres: r.Postgres, Since: time.Now()}
}

// fakeHolder notes what it was asked to hold, and says what it is told to.
type fakeHolder struct {
	mu    sync.Mutex
	holds []time.Duration
	wait  func(ctx context.Context, d time.Duration) error
}

func (h *fakeHolder) Wait(ctx context.Context, _ string, d time.Duration) error {
	h.mu.Lock()
	h.holds = append(h.holds, d)
	wait := h.wait
	h.mu.Unlock()
	if wait == nil {
		return nil
	}
	return wait(ctx, d)
}

// logBuffer keeps every line, for tests that look for secrets in them.
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

// patient lets the repository take its time: what most tests are about is not how long a call takes.
func patient() postgres.Option { return postgres.WithAnswerWithin(time.Minute) }

func newWorld(tb testing.TB) *world {
	tb.Helper()
	return makeWorld(tb, testenv.Postgres(tb), slog.LevelDebug, patient())
}

// newWorldQuiet is a world that logs like a service in production.
func newWorldQuiet(tb testing.TB) *world {
	tb.Helper()
	return makeWorld(tb, testenv.Postgres(tb), slog.LevelInfo, patient())
}

func newWorldOn(tb testing.TB, databaseURL string) *world {
	tb.Helper()
	return makeWorld(tb, databaseURL, slog.LevelDebug)
}

func makeWorld(tb testing.TB, databaseURL string, level slog.Level, options ...postgres.Option) *world {
	tb.Helper()
	w := &world{t: tb, clock: &clock{}, logs: &logBuffer{}, usage: usage.NewAggregator(0), health: &fixedHealth{}, holder: &fakeHolder{}, contract: contractRouter(tb)}
	w.health.Store(&httpapi.Readiness{Ready: true, Status: "ok", Source: ratelimit.SourceRedis, Redis: "up", Postgres: "up"})
	log := slog.New(slog.NewJSONHandler(w.logs, &slog.HandlerOptions{Level: level}))

	pool, err := postgres.NewPool(databaseURL, postgres.PoolOptions{MaxConns: 4, MinIdle: 1})
	require.NoError(tb, err)
	tb.Cleanup(pool.Close)
	w.repository = postgres.NewRepository(pool, options...)
	require.NoError(tb, postgres.NewRepository(pool, patient()).InstallDefaults(tb.Context()))
	w.directory = tenants.NewDirectory(0)
	w.poller = tenants.NewPoller(w.directory, w.repository, tenants.PollerOptions{Clock: w.clock.now, Log: log})
	w.refresh()

	w.memory = &countingStore{Store: ratelimit.NewMemory(w.clock.micros, 0)}
	recorded := postgres.NewJournal(pool, options...)
	w.journal = journal.New(journal.Config{Sink: recorded, Replica: "test-1", Now: w.clock.now, Retention: 168 * time.Hour, FlushWithin: time.Minute, Log: log})
	w.live = usage.NewReporter(usage.ReporterConfig{Aggregator: w.usage, Replica: w.health.replica, Now: w.clock.now, Log: log})
	w.engine = decision.New(decision.Config{Store: w.memory, Directory: w.directory, Recorder: w.usage, Observer: w.journal, Now: w.clock.now, Mode: ratelimit.Enforce, Log: log})
	addresses, err := decision.NewAddressResolver(decision.AddressConfig{
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")},
	})
	require.NoError(tb, err)
	common := httpapi.Common{Engine: w.engine, Directory: w.directory, Addresses: addresses, Health: w.health, Now: w.clock.now, Log: log}

	public, err := httpapi.NewPublic(httpapi.PublicConfig{Common: common, Holder: w.holder, TrustIdentity: true})
	require.NoError(tb, err)
	refusals := audit.NewRefusals(w.repository.RecordRefusals, w.clock.now, log)
	runUntilEnd(tb, refusals.Run)
	admin, err := httpapi.NewAdmin(httpapi.AdminConfig{
		Common: common, Repository: w.repository, Journal: recorded, Incidents: w.repository, Usage: w.live, History: postgres.NewUsageHistory(w.repository), Mode: ratelimit.Enforce, Refused: refusals.Note,
		SignIn: signin.New(signin.Config{Directory: w.directory, Now: w.clock.now, Bootstrap: bootstrap}),
		Random: rand.Reader, Changed: func(ctx context.Context) { _ = w.poller.Refresh(ctx) },
		Metrics: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "text/plain; version=0.0.4")
			_, _ = io.WriteString(rw, "pegel_up 1\n")
		}),
	})
	require.NoError(tb, err)
	w.public, w.admin = httptest.NewServer(public), httptest.NewServer(admin)
	tb.Cleanup(w.public.Close)
	tb.Cleanup(w.admin.Close)
	return w
}

// runUntilEnd runs something in the background until the test ends, and waits for it.
func runUntilEnd(tb testing.TB, run func(ctx context.Context)) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	done := make(chan struct{})
	go func() { defer close(done); run(ctx) }()
	tb.Cleanup(func() { cancel(); <-done })
}

func (w *world) refresh() {
	w.t.Helper()
	require.NoError(w.t, w.poller.Refresh(w.t.Context()))
}

func contractRouter(tb testing.TB) routers.Router {
	tb.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	require.NoError(tb, err)
	doc.Servers = nil // the tests' servers have other ports
	router, err := legacy.NewRouter(doc, openapi3.DisableExamplesValidation())
	require.NoError(tb, err)
	return router
}

// request is one call: what a test does not name is left out.
type request struct {
	method, path, body string
	header             map[string]string
	// from is the client address, believed because the tests' peer is a trusted proxy.
	from string
}

type response struct {
	t      testing.TB
	status int
	header http.Header
	body   []byte
}

// json is a member of the body by its dotted path.
func (r *response) json() map[string]any {
	r.t.Helper()
	var out map[string]any
	require.NoError(r.t, json.Unmarshal(r.body, &out), string(r.body))
	return out
}

// problem checks that the answer is the problem of a slug and returns it.
func (r *response) problem(slug problem.Slug) problem.Problem {
	r.t.Helper()
	require.Equal(r.t, slug.Status(), r.status, string(r.body))
	require.Equal(r.t, problem.ContentType, r.header.Get("Content-Type"))
	var p problem.Problem
	require.NoError(r.t, json.Unmarshal(r.body, &p))
	require.Equal(r.t, problem.BaseURI+string(slug), p.Type, string(r.body))
	require.Equal(r.t, strings.ReplaceAll(string(slug), "-", "_"), p.Error)
	require.Equal(r.t, r.status, p.Status)
	require.Equal(r.t, r.header.Get("X-Request-Id"), p.RequestID)
	return p
}

func (r *response) ok(status int) *response {
	r.t.Helper()
	require.Equal(r.t, status, r.status, string(r.body))
	return r
}

// do sends a request and holds the answer to the contract.
func (w *world) do(server *httptest.Server, q request) *response {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), q.method, server.URL+q.path, strings.NewReader(q.body))
	require.NoError(w.t, err)
	if q.body == "" {
		req.Body, req.ContentLength = http.NoBody, 0
	} else {
		req.Header.Set("Content-Type", "application/json")
	}
	if q.from != "" {
		req.Header.Set("X-Forwarded-For", q.from)
	}
	for k, v := range q.header {
		req.Header.Set(k, v)
	}
	return w.send(req)
}

func (w *world) send(req *http.Request) *response {
	w.t.Helper()
	answer, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(w.t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(w.t, err)
	r := &response{t: w.t, status: answer.StatusCode, header: answer.Header, body: body}
	w.hold(req, r)
	return r
}

// hold checks an answer against api/openapi.yaml. What no route answers (404, 405) is checked to be a problem.
func (w *world) hold(req *http.Request, r *response) {
	w.t.Helper()
	require.NotEmpty(w.t, r.header.Get("X-Request-Id"))
	require.NotEqual(w.t, http.StatusInternalServerError, r.status, "%s %s: %s", req.Method, req.URL.Path, r.body)
	method := req.Method
	if method == http.MethodHead {
		return // no body to look at
	}
	route, params, err := w.contract.FindRoute(&http.Request{Method: method, URL: &url.URL{Path: req.URL.EscapedPath()}, Header: req.Header})
	adminPath := strings.HasPrefix(req.URL.Path, "/admin") || req.URL.Path == "/metrics"
	publicPath := strings.HasPrefix(req.URL.Path, "/v1") || strings.HasPrefix(req.URL.Path, "/docs") || req.URL.Path == "/openapi.yaml"
	elsewhere := adminPath && strings.HasPrefix(w.public.URL, "http://"+req.URL.Host) || publicPath && strings.HasPrefix(w.admin.URL, "http://"+req.URL.Host)
	if err != nil || elsewhere {
		require.Contains(w.t, []int{http.StatusNotFound, http.StatusMethodNotAllowed}, r.status, "%s %s is not in the contract", method, req.URL.Path)
		require.Equal(w.t, problem.ContentType, r.header.Get("Content-Type"))
		return
	}
	err = openapi3filter.ValidateResponse(w.t.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route},
		Status:                 r.status, Header: r.header, Body: io.NopCloser(bytes.NewReader(r.body)),
		Options: &openapi3filter.Options{
			IncludeResponseStatus: true, MultiError: true,
			ExcludeResponseBody: r.header.Get("Content-Type") != "application/json" && r.header.Get("Content-Type") != problem.ContentType,
		},
	})
	require.NoError(w.t, err, "%s %s %d: %s", method, req.URL.Path, r.status, r.body)
}

// administer sends a request with the bootstrap token.
func (w *world) administer(method, path, body string, header ...string) *response {
	w.t.Helper()
	h := map[string]string{"Authorization": "Bearer " + bootstrap}
	for i := 0; i+1 < len(header); i += 2 {
		h[header[i]] = header[i+1]
	}
	return w.do(w.admin, request{method: method, path: path, body: body, header: h})
}

// check sends a check with a credential.
func (w *world) check(credential, body string) *response {
	w.t.Helper()
	return w.do(w.public, request{method: http.MethodPost, path: "/v1/check", body: body, header: bearer(credential)})
}

func bearer(credential string) map[string]string {
	if credential == "" {
		return nil
	}
	return map[string]string{"Authorization": "Bearer " + credential}
}

// testActor is who makes what the tests start from.
func testActor() audit.Actor { return audit.Actor{Kind: "system", Name: "test"} }

// tenant makes a tenant on a plan and a key of its own.
func (w *world) tenant(slug, plan string) (key string) {
	w.t.Helper()
	_, err := w.repository.CreateTenant(w.t.Context(), testActor(), tenants.Tenant{Slug: slug, Name: slug, Plan: plan, Status: tenants.Active})
	require.NoError(w.t, err)
	credential, text, err := tenants.NewCredential(tenants.KindAPIKey, rand.Reader)
	require.NoError(w.t, err)
	_, err = w.repository.CreateKey(w.t.Context(), testActor(), slug, tenants.APIKey{ID: credential.ID, Name: "test", Hash: credential.Hash})
	require.NoError(w.t, err)
	w.refresh()
	return text
}

// plan makes a plan of one sliding-window limit per minute.
func (w *world) plan(name string, quota int64, more ...tenants.Rule) {
	w.t.Helper()
	p := tenants.Plan{Name: name, Limits: append([]tenants.Rule{{Limit: ratelimit.Limit{Name: "requests-per-minute", Quota: quota, Window: time.Minute}}}, more...)}
	p.SetDefaults()
	_, err := w.repository.CreatePlan(w.t.Context(), testActor(), p)
	require.NoError(w.t, err)
	w.refresh()
}

// service makes a service token.
func (w *world) service(name string, exempt bool, may ...tenants.Permission) string {
	w.t.Helper()
	credential, text, err := tenants.NewCredential(tenants.KindServiceToken, rand.Reader)
	require.NoError(w.t, err)
	t := tenants.ServiceToken{ID: credential.ID, Name: name, Hash: credential.Hash, May: may}
	if exempt {
		t.Exempt = []ratelimit.Scope{ratelimit.ScopeAddress}
	}
	_, err = w.repository.CreateServiceToken(w.t.Context(), testActor(), t)
	require.NoError(w.t, err)
	w.refresh()
	return text
}

// administrator makes an admin token.
func (w *world) administrator(role tenants.Role) string {
	w.t.Helper()
	credential, text, err := tenants.NewCredential(tenants.KindAdminToken, rand.Reader)
	require.NoError(w.t, err)
	_, err = w.repository.CreateAdminToken(w.t.Context(), testActor(), tenants.AdminToken{ID: credential.ID, Name: string(role), Role: role, Hash: credential.Hash})
	require.NoError(w.t, err)
	w.refresh()
	return text
}

// policy replaces the address policy.
func (w *world) policy(rules ...tenants.Rule) {
	w.t.Helper()
	p := tenants.AddressPolicy{Limits: rules}
	p.SetDefaults()
	_, err := w.repository.PutAddressPolicy(w.t.Context(), testActor(), p, tenants.Precondition{Any: true})
	require.NoError(w.t, err)
	w.refresh()
}

func perMinute(name string, quota int64) tenants.Rule {
	return tenants.Rule{Limit: ratelimit.Limit{Name: name, Quota: quota, Window: time.Minute}}
}

func clockStart() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

func postgresMigrate(t *testing.T, url string) error {
	t.Helper()
	return postgres.MigrateUp(t.Context(), url, discard())
}
