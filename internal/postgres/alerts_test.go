package postgres_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/alert"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// alertBench is a ledger whose clock a test moves.
type alertBench struct {
	*bench
	*postgres.Alerts

	mu  sync.Mutex
	now time.Time
}

func newAlertBench(t *testing.T) *alertBench {
	t.Helper()
	a := &alertBench{bench: newBench(t), now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}
	a.Alerts = postgres.NewAlerts(a.Repository, func() time.Time {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.now
	})
	return a
}

func (a *alertBench) move(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = a.now.Add(d)
}

func tenantKey(n int) alert.Key {
	return alert.Key{Kind: alert.TenantHigh, Subject: fmt.Sprintf("%d/m", n)}
}

// opening is an incident with a message on each of the channels.
func opening(n int, channels ...alert.Channel) alert.Change {
	in := alert.Incident{
		Key: tenantKey(n), Facts: alert.Facts{TenantID: int64(n), Tenant: fmt.Sprintf("school-%d", n), Limit: "m", Quota: 100},
		Since: time.Date(2026, 11, 30, 11, 50, 0, 0, time.UTC), OpenedAt: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), Value: 0.85, Peak: 0.9,
	}
	c := alert.Change{Incident: in}
	for _, channel := range channels {
		c.Messages = append(c.Messages, alert.Message{Channel: channel, Notice: alert.Notice{Kind: in.Kind, Facts: in.Facts, Occasion: alert.OnOpen}})
	}
	return c
}

func (a *alertBench) judge(t *testing.T, ruling alert.Ruling) (book alert.Book) {
	t.Helper()
	require.NoError(t, a.Judge(t.Context(), alert.Replica{Instance: "one", Name: "a", Source: "redis", Redis: "up", Postgres: "up"}, func(b alert.Book) alert.Ruling {
		book = b
		return ruling
	}))
	return book
}

func (a *alertBench) claim(t *testing.T, channel alert.Channel, worker string) []alert.Message {
	t.Helper()
	m, err := a.Claim(t.Context(), channel, worker)
	require.NoError(t, err)
	return m
}

func ids(messages []alert.Message) (out []int64) {
	for i := range messages {
		out = append(out, messages[i].ID)
	}
	return out
}

func TestStatesAndIncidentsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	a := newAlertBench(t)
	require.Empty(t, a.judge(t, alert.Ruling{}).States)
	state := alert.State{
		Last: alert.Level{Value: 0.85, At: a.now}, AsOf: a.now, HighSince: a.now.Add(-time.Minute), HighAt: a.now, Peak: 0.9, Open: true,
	}
	change := opening(17, alert.Mail)
	a.judge(t, alert.Ruling{States: map[alert.Key]alert.State{tenantKey(17): state, tenantKey(18): {Last: state.Last, AsOf: a.now}}, Open: []alert.Change{change}})
	book := a.judge(t, alert.Ruling{Forget: []alert.Key{tenantKey(18)}})
	require.Equal(t, state, book.States[tenantKey(17)])
	require.Len(t, book.States, 2)
	require.Equal(t, a.now, book.JudgedAt)
	in := book.Open[tenantKey(17)]
	require.Equal(t, change.Incident.Facts, in.Facts)
	require.Equal(t, change.Incident.Since, in.Since)
	require.Equal(t, []alert.Replica{{Name: "a", Instance: "one", Source: "redis", Redis: "up", Postgres: "up"}}, book.Replicas)

	a.move(alert.ReplicaTTL + time.Second)
	require.NoError(t, a.Judge(t.Context(), alert.Replica{Instance: "two"}, func(b alert.Book) alert.Ruling {
		require.Len(t, b.Replicas, 1, "who is not heard any more does not count")
		require.Len(t, b.States, 1)
		return alert.Ruling{}
	}))
}

// However many replicas find the same, one incident opens and is told of once.
func TestAnIncidentOpensOnce(t *testing.T) {
	t.Parallel()
	a := newAlertBench(t)
	var replicas sync.WaitGroup
	for i := range 8 {
		replicas.Go(func() {
			err := a.Judge(t.Context(), alert.Replica{Instance: fmt.Sprint(i)}, func(alert.Book) alert.Ruling {
				return alert.Ruling{Open: []alert.Change{opening(17, alert.Mail, alert.Hook)}}
			})
			require.NoError(t, err)
		})
	}
	replicas.Wait()
	require.EqualValues(t, 1, a.number(t, `SELECT count(*) FROM incidents`))
	require.EqualValues(t, 2, a.number(t, `SELECT count(*) FROM outbox`))

	resolved := opening(17, alert.Mail)
	resolved.Incident.ResolvedAt = a.now
	a.judge(t, alert.Ruling{Resolve: []alert.Change{resolved}})
	a.judge(t, alert.Ruling{Resolve: []alert.Change{resolved}})
	require.EqualValues(t, 3, a.number(t, `SELECT count(*) FROM outbox`), "and resolved once")
	a.judge(t, alert.Ruling{Open: []alert.Change{opening(17, alert.Mail)}})
	require.EqualValues(t, 2, a.number(t, `SELECT count(*) FROM incidents`), "it may come back")
}

// A message is in one worker's hands, is offered again when the lease of a worker that died ends, and never a third time.
func TestAMessageIsSentTwiceAtMostWhenItsWorkerDies(t *testing.T) {
	t.Parallel()
	a := newAlertBench(t)
	a.judge(t, alert.Ruling{Open: []alert.Change{opening(1, alert.Mail)}})
	first := a.claim(t, alert.Mail, "one")
	require.Len(t, first, 1)
	require.EqualValues(t, 1, first[0].Notice.IncidentID)
	require.Empty(t, a.claim(t, alert.Mail, "two"), "leased")
	require.Empty(t, a.claim(t, alert.Hook, "two"), "another channel")

	a.move(alert.Lease)
	second := a.claim(t, alert.Mail, "two")
	require.Equal(t, ids(first), ids(second))
	require.Equal(t, first[0].MessageID, second[0].MessageID, "so that a receiver can tell")
	require.NoError(t, a.Settle(t.Context(), "one", ids(first), alert.Fate{Done: true, Sent: true}))
	require.EqualValues(t, 0, a.number(t, `SELECT count(*) FROM outbox WHERE sent`), "it had lost its lease")

	a.move(alert.Lease)
	require.Empty(t, a.claim(t, alert.Mail, "three"))
	list, err := a.ListIncidents(t.Context(), alert.Filter{}, tenants.Page{})
	require.NoError(t, err)
	require.Equal(t, "failed", list.Items[0].Deliveries[0].Status)
	require.Equal(t, alert.TwiceInDoubt, list.Items[0].Deliveries[0].Error)
}

func TestAMessageWaitsForItsRetryAndForThoseBeforeIt(t *testing.T) {
	t.Parallel()
	a := newAlertBench(t)
	resolved := opening(1, alert.Mail)
	resolved.Incident.ResolvedAt = a.now
	a.judge(t, alert.Ruling{Open: []alert.Change{opening(1, alert.Mail)}})
	a.judge(t, alert.Ruling{Resolve: []alert.Change{resolved}})
	for attempt := 1; attempt <= 5; attempt++ {
		m := a.claim(t, alert.Mail, "one")
		require.Len(t, m, 1)
		require.Equal(t, attempt, m[0].Attempts)
		require.Equal(t, 1, m[0].Unsure, "it is known that the ones before did not arrive")
		require.NoError(t, a.Settle(t.Context(), "one", ids(m), alert.Fate{Known: true, Retry: time.Minute, Error: "no"}))
		require.Empty(t, a.claim(t, alert.Mail, "one"), "not even the resolution")
		a.move(time.Minute)
	}
	opened := a.claim(t, alert.Mail, "one")
	require.NoError(t, a.Settle(t.Context(), "one", ids(opened), alert.Fate{Done: true, Sent: true, Known: true}))
	next := a.claim(t, alert.Mail, "one")
	require.Len(t, next, 1)
	require.NotEqual(t, ids(opened), ids(next))

	a.move(alert.GiveUpAfter + time.Hour)
	require.NoError(t, a.Tidy(t.Context()))
	waiting, open, err := a.Queue(t.Context())
	require.NoError(t, err)
	require.Zero(t, waiting, "given up")
	require.Zero(t, open)
	a.move(alert.Retention)
	require.NoError(t, a.Tidy(t.Context()))
	require.Zero(t, a.number(t, `SELECT count(*) FROM incidents`))
	require.Zero(t, a.number(t, `SELECT count(*) FROM outbox`))
}

// Many at once are one digest, and stay one when it has to be tried again; webhooks are always one by one.
func TestManyMailsAreOneDigest(t *testing.T) {
	t.Parallel()
	a := newAlertBench(t)
	var ruling alert.Ruling
	for n := range alert.DigestMost + 10 {
		ruling.Open = append(ruling.Open, opening(n, alert.Mail, alert.Hook))
	}
	a.judge(t, ruling)
	digest := a.claim(t, alert.Mail, "one")
	require.Len(t, digest, alert.DigestMost)
	require.NoError(t, a.Settle(t.Context(), "one", ids(digest), alert.Fate{Known: true}))
	again := a.claim(t, alert.Mail, "two")
	require.Equal(t, ids(digest), ids(again))
	require.Len(t, a.claim(t, alert.Mail, "three"), 10)
	require.Len(t, a.claim(t, alert.Hook, "one"), 1)
}

func TestIncidentsAreListedFilteredAndAcknowledged(t *testing.T) {
	t.Parallel()
	a := newAlertBench(t)
	resolved := opening(2)
	resolved.Incident.ResolvedAt = a.now
	var ruling alert.Ruling
	for n := 1; n <= 5; n++ {
		ruling.Open = append(ruling.Open, opening(n))
	}
	a.judge(t, ruling)
	a.judge(t, alert.Ruling{Resolve: []alert.Change{resolved}})
	count := func(f alert.Filter) int {
		list, err := a.ListIncidents(t.Context(), f, tenants.Page{})
		require.NoError(t, err)
		return len(list.Items)
	}
	require.Equal(t, 5, count(alert.Filter{}))
	require.Equal(t, 4, count(alert.Filter{Status: "open"}))
	require.Equal(t, 1, count(alert.Filter{Status: "resolved"}))
	require.Equal(t, 1, count(alert.Filter{Tenant: "school-3", Kind: alert.TenantHigh}))
	require.Zero(t, count(alert.Filter{Kind: alert.StoreDown}))
	require.Zero(t, count(alert.Filter{From: a.now.Add(time.Second)}))
	require.Equal(t, 5, count(alert.Filter{To: a.now.Add(time.Second)}))
	first, err := a.ListIncidents(t.Context(), alert.Filter{}, tenants.Page{Limit: 2})
	require.NoError(t, err)
	second, err := a.ListIncidents(t.Context(), alert.Filter{}, tenants.Page{Limit: 2, Cursor: first.Next})
	require.NoError(t, err)
	require.Equal(t, first.Items[1].ID-1, second.Items[0].ID)

	in, err := a.AckIncident(t.Context(), alice, first.Items[0].ID)
	require.NoError(t, err)
	require.Equal(t, "Alice", in.AckedBy)
	again, err := a.AckIncident(t.Context(), alice, in.ID)
	require.NoError(t, err)
	require.Equal(t, in.AckedAt, again.AckedAt)
	require.EqualValues(t, 1, a.number(t, `SELECT count(*) FROM audit_log WHERE action = 'alert.ack'`))
	require.Equal(t, 1, count(alert.Filter{Status: "acknowledged"}))
	require.NotZero(t, a.judge(t, alert.Ruling{}).Open[in.Key].AckedAt)
	_, err = a.AckIncident(t.Context(), alice, 999)
	require.ErrorIs(t, err, tenants.ErrNotFound)
	resolvedID := a.number(t, `SELECT id FROM incidents WHERE resolved_at IS NOT NULL`)
	_, err = a.AckIncident(t.Context(), alice, resolvedID)
	require.ErrorIs(t, err, tenants.ErrConflict)
}
