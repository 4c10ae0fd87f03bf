package journal_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/journal"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const soon = 20 * time.Second

// world is a journal over a real Postgres, fed by a real engine over the memory store.
type world struct {
	t         testing.TB
	engine    *decision.Engine
	directory *tenants.Directory
	changes   tenants.Changes
	journal   *journal.Journal
	stored    *postgres.Journal
	logs      *lines
	stop      func()
}

// lines collects a log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func limit(name string, quota int64, change ...func(*tenants.Rule)) tenants.Rule {
	r := tenants.Rule{Limit: ratelimit.Limit{
		Name: name, Scope: ratelimit.ScopeTenant, Algorithm: ratelimit.SlidingWindowLog, Quota: quota, Window: time.Minute, Cost: 1, Mode: ratelimit.Enforce,
	}}
	for _, c := range change {
		c(&r)
	}
	return r
}

func scope(s ratelimit.Scope) func(*tenants.Rule) { return func(r *tenants.Rule) { r.Scope = s } }

func slows(r *tenants.Rule) {
	r.Slowdown = &ratelimit.Slowdown{From: 0.8, MaxDelay: 2 * time.Second}
}

// newWorld has school-17 on a plan with the request_log and the limits given. The journal does not run yet.
func newWorld(tb testing.TB, databaseURL string, log tenants.RequestLog, change func(*journal.Config), rules ...tenants.Rule) *world {
	tb.Helper()
	pool, err := postgres.NewPool(databaseURL, postgres.PoolOptions{MaxConns: 4, MinIdle: 1})
	require.NoError(tb, err)
	tb.Cleanup(pool.Close)
	w := &world{t: tb, directory: tenants.NewDirectory(0), stored: postgres.NewJournal(pool, postgres.WithAnswerWithin(soon)), logs: &lines{}, stop: func() {}}
	w.changes = tenants.Changes{
		Version: 1, Full: true,
		Plans: []tenants.Plan{{ID: 1, Name: "light", RequestLog: log, Limits: rules}},
		Tenants: []tenants.Tenant{
			{ID: 17, Slug: "school-17", Name: "School 17", Plan: "light", Status: tenants.Active},
			{ID: 18, Slug: "school-18", Name: "School 18", Plan: "light", Status: tenants.Suspended},
		},
	}
	cfg := journal.Config{
		Sink: w.stored, Replica: "pegel-1", Now: time.Now, Retention: 168 * time.Hour, FlushWithin: soon, Log: slog.New(slog.NewTextHandler(w.logs, nil)),
	}
	if change != nil {
		change(&cfg)
	}
	w.journal = journal.New(cfg)
	w.engine = decision.New(decision.Config{
		Store:     ratelimit.NewDenyCache(redis{ratelimit.NewMemory(ratelimit.MonotonicMicros(time.Now), 0)}, time.Now, 0),
		Directory: w.directory, Observer: w.journal, Now: time.Now,
	})
	w.apply()
	return w
}

// redis is the memory store under another name, so that a deny cache remembers what it refused.
type redis struct{ ratelimit.Store }

func (s redis) Decide(ctx context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
	err := s.Store.Decide(ctx, charges, out)
	for i := range charges {
		out[i].Source = ratelimit.SourceRedis
	}
	return err
}

func (w *world) apply() { w.directory.Apply(w.changes, time.Now()) }

// run runs the journal until the end of the test, or of the function returned.
func (w *world) run() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan struct{})
	go func() { w.journal.Run(ctx); close(done) }()
	w.stop = sync.OnceFunc(func() { cancel(); <-done })
	w.t.Cleanup(w.stop)
}

func (w *world) hit() decision.Hit {
	tenant, ok := w.directory.Snapshot().Tenant("school-17")
	require.True(w.t, ok)
	return decision.Hit{Tenant: tenant, Cost: 1, Method: "GET", Path: "/v1/Messages?token=x", Door: decision.DoorCheck}
}

func (w *world) decide(h decision.Hit) *decision.Decision {
	w.t.Helper()
	d, err := w.engine.Decide(w.t.Context(), h)
	require.NoError(w.t, err)
	return d
}

// all is the whole request log, the oldest first.
func (w *world) all() []journal.Request {
	w.t.Helper()
	list, err := w.stored.ListRequests(w.t.Context(), journal.Filter{}, tenants.Page{Limit: 5000})
	require.NoError(w.t, err)
	require.Empty(w.t, list.Next)
	rows := list.Items
	for i, k := 0, len(rows)-1; i < k; i, k = i+1, k-1 {
		rows[i], rows[k] = rows[k], rows[i]
	}
	return rows
}

func (w *world) explanation(d *decision.Decision) journal.Explanation {
	w.t.Helper()
	e, err := w.stored.Explanation(w.t.Context(), uuid.MustParse(d.ID))
	require.NoError(w.t, err)
	return e
}

func (w *world) why(d *decision.Decision) string {
	w.t.Helper()
	e := w.explanation(d)
	return e.Why()
}

func (w *world) unexplained(d *decision.Decision) {
	w.t.Helper()
	_, err := w.stored.Explanation(w.t.Context(), uuid.MustParse(d.ID))
	require.ErrorIs(w.t, err, tenants.ErrNotFound)
}

func prefix(text string) netip.Prefix {
	a := netip.MustParseAddr(text)
	return netip.PrefixFrom(a, a.BitLen())
}
