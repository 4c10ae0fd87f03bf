package decision_test

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/usage"
)

// clock is the time of a test: it moves only when it is told to.
type clock struct{ us atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.us.Store(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC).UnixMicro())
	return c
}

func (c *clock) now() time.Time          { return time.UnixMicro(c.us.Load()).UTC() }
func (c *clock) micros() int64           { return c.us.Load() }
func (c *clock) advance(d time.Duration) { c.us.Add(d.Microseconds()) }

// recorder keeps every event.
type recorder struct {
	mu     sync.Mutex
	events []usage.Event
}

func (r *recorder) Record(e usage.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *recorder) last(t *testing.T) usage.Event {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.NotEmpty(t, r.events)
	return r.events[len(r.events)-1]
}

// fixture is an engine over a memory store, with everything in the clock's hands.
type fixture struct {
	*decision.Engine

	clock     *clock
	store     *ratelimit.Memory
	directory *tenants.Directory
	changes   tenants.Changes
	recorder  *recorder
}

func minute(name string, quota int64) tenants.Rule {
	return tenants.Rule{Limit: ratelimit.Limit{Name: name, Scope: ratelimit.ScopeTenant, Algorithm: ratelimit.SlidingWindowLog, Quota: quota, Window: time.Minute}}
}

func slowed(r tenants.Rule) tenants.Rule {
	r.Slowdown = &ratelimit.Slowdown{From: 0.8, MaxDelay: 2 * time.Second}
	return r
}

func scoped(r tenants.Rule, s ratelimit.Scope) tenants.Rule { r.Scope = s; return r }

func named(slug string, id int64, plan string) tenants.Tenant {
	return tenants.Tenant{ID: id, Slug: slug, Name: slug, Plan: plan, Status: tenants.Active}
}

// newFixture has one tenant, school-17, on a plan with the given limits, and no address policy.
func newFixture(tb testing.TB, rules ...tenants.Rule) *fixture {
	tb.Helper()
	f := &fixture{clock: newClock(), recorder: &recorder{}, directory: tenants.NewDirectory(0)}
	f.store = ratelimit.NewMemory(f.clock.micros, 0)
	f.changes = tenants.Changes{
		Plans:   []tenants.Plan{{ID: 1, Name: "light", Limits: rules}},
		Tenants: []tenants.Tenant{named("school-17", 17, "light"), named("school-18", 18, "light")},
	}
	f.Engine = decision.New(decision.Config{Store: f.store, Directory: f.directory, Recorder: f.recorder, Now: f.clock.now})
	f.apply()
	return f
}

// apply publishes the fixture's changes as a new version.
func (f *fixture) apply() {
	f.changes.Version++
	f.changes.Full = true
	f.directory.Apply(f.changes, f.clock.now())
}

func (f *fixture) policy(rules ...tenants.Rule) {
	f.changes.AddressPolicy = &tenants.AddressPolicy{Limits: rules}
	f.apply()
}

func (f *fixture) tenant(tb testing.TB, slug string) *tenants.TenantView {
	tb.Helper()
	v, ok := f.directory.Snapshot().Tenant(slug)
	require.True(tb, ok)
	return v
}

// hit is a hit of cost 1 for school-17.
func (f *fixture) hit(tb testing.TB) decision.Hit {
	tb.Helper()
	return decision.Hit{Tenant: f.tenant(tb, "school-17"), Cost: 1}
}

func (f *fixture) decide(tb testing.TB, h decision.Hit) *decision.Decision {
	tb.Helper()
	d, err := f.Decide(context.Background(), h)
	require.NoError(tb, err)
	return d
}

// apiKey makes a valid API key of a tenant.
func (f *fixture) apiKey(tb testing.TB, tenant int64) string {
	tb.Helper()
	c, text, err := tenants.NewCredential(tenants.KindAPIKey, rand.Reader)
	require.NoError(tb, err)
	f.changes.APIKeys = append(f.changes.APIKeys, tenants.APIKey{ID: c.ID, TenantID: tenant, Hash: c.Hash})
	f.apply()
	return text
}

// serviceToken makes a valid service token.
func (f *fixture) serviceToken(tb testing.TB, change func(*tenants.ServiceToken)) string {
	tb.Helper()
	c, text, err := tenants.NewCredential(tenants.KindServiceToken, rand.Reader)
	require.NoError(tb, err)
	token := tenants.ServiceToken{ID: c.ID, Name: "edge", Hash: c.Hash, Exempt: []ratelimit.Scope{ratelimit.ScopeAddress}}
	if change != nil {
		change(&token)
	}
	f.changes.ServiceTokens = append(f.changes.ServiceTokens, token)
	f.apply()
	return text
}

func forged(tb testing.TB, kind tenants.Kind) string {
	tb.Helper()
	_, text, err := tenants.NewCredential(kind, rand.Reader)
	require.NoError(tb, err)
	return text
}

func header(pairs ...string) http.Header {
	h := make(http.Header)
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func prefix(text string) netip.Prefix {
	a := netip.MustParseAddr(text)
	if a.Is4() {
		return netip.PrefixFrom(a, 32)
	}
	return netip.PrefixFrom(a, 64)
}

func mustPrefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }
