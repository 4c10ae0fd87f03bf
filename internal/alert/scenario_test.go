package alert_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/alert"
	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/testenv"
	"github.com/pegel-dev/pegel/internal/usage"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// clock is moved by tests.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// replica is one of several that share a store and a database.
type replica struct {
	engine  *decision.Engine
	counted *usage.Aggregator
	service *alert.Service
	sees    alert.Replica
}

// installation is some replicas, on real Postgres, with a real mail server and a receiver of webhooks.
type installation struct {
	*clock

	t          *testing.T
	repository *postgres.Repository
	directory  *tenants.Directory
	store      ratelimit.Store
	mails      *testenv.MailServer
	hooks      *receiver
	replicas   []*replica
	reminder   time.Duration
}

const (
	hookSecret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	operators  = "ops@example.org"
	contact    = "office@school-17.example.org"
)

func newInstallation(t *testing.T, replicas int) *installation {
	t.Helper()
	pool, err := postgres.NewPool(testenv.Postgres(t), postgres.PoolOptions{MaxConns: 8, MinIdle: 1})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	i := &installation{
		t: t, clock: &clock{now: noon()}, repository: postgres.NewRepository(pool, postgres.WithAnswerWithin(time.Minute)),
		directory: tenants.NewDirectory(0), mails: testenv.NewMailServer(t, testenv.MailOptions{}), hooks: newReceiver(t),
	}
	i.store = ratelimit.NewMemory(ratelimit.MonotonicMicros(i.read), 0)
	alice := audit.Actor{Kind: "admin_token", ID: "a", Name: "Alice"}
	plan := tenants.Plan{Name: "small-schools", Limits: []tenants.Rule{{Limit: ratelimit.Limit{Name: "requests-per-minute", Quota: 2000, Window: time.Minute}}}}
	plan.SetDefaults()
	_, err = i.repository.CreatePlan(t.Context(), alice, plan)
	require.NoError(t, err)
	tenant := tenants.Tenant{Slug: "school-17", Name: "School 17", Plan: "small-schools", ContactEmail: contact}
	tenant.SetDefaults()
	_, err = i.repository.CreateTenant(t.Context(), alice, tenant)
	require.NoError(t, err)
	require.NoError(t, tenants.NewPoller(i.directory, i.repository, tenants.PollerOptions{Clock: i.read, Log: slog.New(slog.DiscardHandler)}).Refresh(t.Context()))
	for n := range replicas {
		i.replicas = append(i.replicas, i.start(n, i.mails.Addr))
	}
	return i
}

// start is a replica that mails to a server.
func (i *installation) start(n int, mailServer string) *replica {
	i.t.Helper()
	server, err := alert.ParseMailServer("smtp://" + mailServer)
	require.NoError(i.t, err)
	key, err := alert.ParseHookSecret(hookSecret)
	require.NoError(i.t, err)
	poster, err := alert.NewPoster(i.hooks.URL, key, "https://pegel.example.org/dashboard", nil)
	require.NoError(i.t, err)
	outlets, err := alert.NewOutlets(alert.NewMailer(server, "pegel@example.org", nil), []string{operators}, poster, "https://pegel.example.org/dashboard")
	require.NoError(i.t, err)
	r := &replica{
		counted: usage.NewAggregator(0),
		sees:    alert.Replica{Name: fmt.Sprintf("pegel-%d", n), Instance: fmt.Sprint(n, rand.Int()), Source: "redis", Redis: "up", Postgres: "up"},
	}
	// No exchange: each replica knows only what it decided itself, which is the hardest case for alerts.
	live := usage.NewReporter(usage.ReporterConfig{
		Aggregator: r.counted, Replica: func() usage.Replica { return usage.Replica{Instance: r.sees.Instance} }, Now: i.read, Log: slog.New(slog.DiscardHandler),
	})
	r.engine = decision.New(decision.Config{Store: i.store, Directory: i.directory, Recorder: r.counted, Now: i.read})
	r.service = alert.New(alert.Config{
		Ledger: postgres.NewAlerts(i.repository, i.read), Directory: i.directory, Usage: live, Self: func() alert.Replica { return r.sees },
		Outlets: outlets, Policy: alert.Policy{Contact: true, Reminder: i.reminder}, Now: i.read, Log: slog.New(slog.DiscardHandler),
	})
	return r
}

// live lets time pass in steps of ten seconds, in each of which one replica, another every time, decides on so much cost
// of school-17, and one or two replicas look.
func (i *installation) live(length time.Duration, perMinute func(time.Duration) int64) {
	i.t.Helper()
	tenant, ok := i.directory.Snapshot().Tenant("school-17")
	require.True(i.t, ok)
	for d := time.Duration(0); d < length; d += 10 * time.Second {
		n := int(d / (10 * time.Second))
		if cost := perMinute(d) / 6; cost > 0 {
			_, err := i.replicas[n%len(i.replicas)].engine.Decide(i.t.Context(), decision.Hit{Tenant: tenant, Cost: cost})
			require.NoError(i.t, err)
		}
		for _, r := range i.replicas {
			r.counted.Collect(i.read())
		}
		i.move(10 * time.Second)
		i.replicas[n%len(i.replicas)].service.Look(i.t.Context())
		i.replicas[rand.IntN(len(i.replicas))].service.Look(i.t.Context())
	}
}

func constant(n int64) func(time.Duration) int64 { return func(time.Duration) int64 { return n } }

// deliver has every replica send what is due, at the same time.
func (i *installation) deliver() {
	i.t.Helper()
	var all sync.WaitGroup
	for _, r := range i.replicas {
		all.Go(func() { require.NoError(i.t, r.service.Deliver(i.t.Context())) })
	}
	all.Wait()
}

// to are the subjects of the mails to a recipient.
func (i *installation) to(recipient string) (subjects []string) {
	for _, m := range i.mails.Mails() {
		require.Len(i.t, m.To, 1)
		if m.To[0] == recipient {
			subjects = append(subjects, read(i.t, m).subject)
		}
	}
	return subjects
}

// receiver checks the signature of every webhook.
type receiver struct {
	*httptest.Server

	mu     sync.Mutex
	bodies []map[string]any
	ids    []string
	answer int
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	verifier, err := standardwebhooks.NewWebhook(hookSecret)
	require.NoError(t, err)
	r := &receiver{answer: http.StatusNoContent}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		raw, err := io.ReadAll(req.Body)
		if err == nil {
			err = verifier.VerifyIgnoringTimestamp(raw, req.Header) // the clock of these tests is not the world's
		}
		var body map[string]any
		if err != nil || json.Unmarshal(raw, &body) != nil || req.Header.Get("Content-Type") != "application/json" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.bodies, r.ids = append(r.bodies, body), append(r.ids, req.Header.Get("webhook-id"))
		w.WriteHeader(r.answer)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) types() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.bodies {
		text, _ := b["type"].(string)
		all = append(all, text)
	}
	return all
}

// The whole way: five replicas, each of which meets the tenant's traffic rarely; a real database, mail server and receiver.
func TestSustainedLoadIsOneMailOverFiveReplicas(t *testing.T) {
	t.Parallel()
	i := newInstallation(t, 5)
	i.live(10*time.Minute, constant(1710))
	i.deliver()
	require.Empty(t, i.mails.Mails(), "it takes most of a minute to come to 80 %")
	i.live(2*time.Minute, constant(1710))
	i.deliver()
	require.Equal(t, []string{"[Pegel] school-17 at 85 % of requests-per-minute for 10 min"}, i.to(operators))
	require.Len(t, i.to(contact), 1)
	require.Equal(t, []string{"alert.opened"}, i.hooks.types())

	// Around 80 % for an hour, half a minute above and half a minute below.
	i.live(time.Hour, func(d time.Duration) int64 {
		if d/(30*time.Second)%2 == 0 {
			return 1800
		}
		return 1400
	})
	i.deliver()
	require.Len(t, i.to(operators), 1)
	require.Len(t, i.hooks.types(), 1)

	i.live(20*time.Minute, constant(200))
	i.deliver()
	i.deliver()
	require.Len(t, i.to(operators), 2)
	require.Contains(t, i.to(operators)[1], "is below 70 % of requests-per-minute again")
	require.Len(t, i.to(contact), 2)
	require.Equal(t, []string{"alert.opened", "alert.resolved"}, i.hooks.types())

	data, _ := i.hooks.bodies[0]["data"].(map[string]any)
	require.Equal(t, "school-17", data["tenant"])
	require.InDelta(t, 0.85, data["utilization"], 0.01)
	require.Equal(t, "https://pegel.example.org/dashboard/tenants/school-17", data["url"])
}

// Load that goes up and down around 80 % for an hour and was never high before: one incident as well.
func TestOscillatingLoadIsOneMail(t *testing.T) {
	t.Parallel()
	i := newInstallation(t, 2)
	i.live(time.Hour, func(d time.Duration) int64 {
		if d/time.Minute%2 == 0 {
			return 1700
		}
		return 1500
	})
	i.deliver()
	require.Len(t, i.to(operators), 1)
}

// A mail server that takes connections and says nothing: decisions go on, the message waits in Postgres, also when every
// replica is replaced meanwhile, and arrives once when the server recovers.
func TestSilentMailServerAndARestartLoseNothing(t *testing.T) {
	t.Parallel()
	i := newInstallation(t, 2)
	silent := testenv.SilentServer(t)
	addr := silent.Addr
	i.replicas = []*replica{i.start(0, addr), i.start(1, addr)}
	i.live(12*time.Minute, constant(1800))
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		_ = i.replicas[0].service.Deliver(ctx) // cut
		cancel()
		i.live(time.Minute, constant(1800)) // decisions are made all the time
	}
	require.Empty(t, i.mails.Mails())
	list, err := i.repository.ListIncidents(t.Context(), alert.Filter{}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	require.Equal(t, "pending", list.Items[0].Deliveries[0].Status)
	require.NotEmpty(t, list.Items[0].Deliveries[0].Error)

	silent.Stop()
	i.mails = testenv.NewMailServer(t, testenv.MailOptions{Addr: addr})
	i.replicas = []*replica{i.start(2, addr), i.start(3, addr)}
	i.live(time.Hour, constant(1800))
	for range 3 {
		i.deliver()
		i.move(10 * time.Minute)
	}
	require.Len(t, i.to(operators), 1)
	require.Len(t, i.to(contact), 1)
}

// A server that takes the mail and breaks off before it says so: nobody can know. It is asked once more, with the same
// Message-ID, and then never again; the incident says so.
func TestAMailOfUnknownFateIsSentOnceMoreAtMost(t *testing.T) {
	t.Parallel()
	i := newInstallation(t, 1)
	i.mails.HangUp()
	i.live(12*time.Minute, constant(1800))
	for range 5 {
		i.deliver()
		i.move(time.Hour)
	}
	var ids []string
	for _, m := range i.mails.Mails() {
		if m.To[0] == operators {
			ids = append(ids, read(t, m).header.Get("Message-Id"))
		}
	}
	require.Len(t, ids, 2)
	require.Equal(t, ids[0], ids[1])
	list, err := i.repository.ListIncidents(t.Context(), alert.Filter{}, tenants.Page{})
	require.NoError(t, err)
	require.Equal(t, alert.TwiceInDoubt, list.Items[0].Deliveries[0].Error)
}

// What nobody takes is given up after a day, and shown.
func TestAMessageThatNobodyTakesEnds(t *testing.T) {
	t.Parallel()
	i := newInstallation(t, 1)
	i.hooks.answer = http.StatusInternalServerError
	i.mails.Refuse(contact)
	i.live(12*time.Minute, constant(1800))
	for range 60 {
		i.deliver()
		i.move(30 * time.Minute)
	}
	tries := len(i.hooks.types())
	require.Greater(t, tries, 20)
	require.Less(t, tries, 60)
	for _, id := range i.hooks.ids {
		require.Equal(t, i.hooks.ids[0], id)
	}
	list, err := i.repository.ListIncidents(t.Context(), alert.Filter{}, tenants.Page{})
	require.NoError(t, err)
	for _, d := range list.Items[0].Deliveries {
		want := map[alert.Channel]string{alert.Mail: "sent", alert.Hook: "failed", alert.Contact: "failed"}[d.Channel]
		require.Equal(t, want, d.Status, d.Channel)
		if d.Channel == alert.Contact {
			require.Equal(t, 1, d.Attempts, "there is no such mailbox")
		}
	}
}

func TestRemindersUntilSomebodyKnows(t *testing.T) {
	t.Parallel()
	i := newInstallation(t, 1)
	i.reminder = 10 * time.Minute
	i.replicas = []*replica{i.start(0, i.mails.Addr), i.start(1, i.mails.Addr)}
	i.live(32*time.Minute, constant(1800))
	i.deliver()
	require.Len(t, i.to(operators), 3)
	require.Contains(t, i.to(operators)[1], "still: school-17")
	require.Len(t, i.to(contact), 1, "tenants are not reminded")
	list, err := i.repository.ListIncidents(t.Context(), alert.Filter{}, tenants.Page{})
	require.NoError(t, err)
	_, err = i.repository.AckIncident(t.Context(), audit.Actor{Kind: "admin_token", ID: "a", Name: "Alice"}, list.Items[0].ID)
	require.NoError(t, err)
	i.live(15*time.Minute, constant(1800))
	i.deliver()
	require.Len(t, i.to(operators), 3)
}
