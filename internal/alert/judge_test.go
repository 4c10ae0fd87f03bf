package alert_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/alert"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/usage"
)

// court judges again and again, and remembers as the ledger does.
type court struct {
	t         *testing.T
	directory *tenants.Directory
	policy    alert.Policy
	book      alert.Book
	opened    []alert.Incident
	resolved  []alert.Incident
	messages  []alert.Message
	refused   int
}

func newCourt(t *testing.T, tenantCount int, rules ...tenants.Rule) *court {
	t.Helper()
	plan := tenants.Plan{ID: 1, Name: "light", Limits: rules}
	plan.SetDefaults()
	changes := tenants.Changes{Version: 1, Full: true, Plans: []tenants.Plan{plan}}
	for n := 1; n <= tenantCount; n++ {
		changes.Tenants = append(changes.Tenants, tenants.Tenant{ID: int64(n), Slug: fmt.Sprintf("school-%d", n), Name: "School", Plan: "light", Status: tenants.Active, ContactEmail: "c@example.org"})
	}
	c := &court{
		t: t, directory: tenants.NewDirectory(0), policy: alert.Policy{Mail: true},
		book: alert.Book{Now: noon(), States: map[alert.Key]alert.State{}, Open: map[alert.Key]alert.Incident{}},
	}
	c.directory.Apply(changes, noon())
	c.replicas("redis")
	return c
}

// replicas all have their stores up, and decide by these.
func (c *court) replicas(sources ...string) {
	c.book.Replicas = nil
	for i, s := range sources {
		c.book.Replicas = append(c.book.Replicas, alert.Replica{Name: fmt.Sprint(i), Source: s, Redis: "up", Postgres: "up"})
	}
}

// after lets time pass and judges what is seen then.
func (c *court) after(d time.Duration, s alert.Sight) {
	c.t.Helper()
	c.book.JudgedAt, c.book.Now = c.book.Now, c.book.Now.Add(d)
	if s.Now.IsZero() {
		s.Now = c.book.Now
	}
	ruling, refused := alert.JudgeOnce(c.policy, c.directory.Snapshot(), &s, &c.book)
	c.refused += refused
	for k, state := range ruling.States {
		c.book.States[k] = state
	}
	for _, k := range ruling.Forget {
		delete(c.book.States, k)
	}
	for _, o := range ruling.Open {
		c.opened, c.messages = append(c.opened, o.Incident), append(c.messages, o.Messages...)
		c.book.Open[o.Incident.Key] = o.Incident
	}
	for _, r := range ruling.Resolve {
		c.resolved, c.messages = append(c.resolved, r.Incident), append(c.messages, r.Messages...)
		delete(c.book.Open, r.Incident.Key)
	}
	for _, r := range ruling.Remind {
		c.messages = append(c.messages, r.Messages...)
		c.book.Open[r.Incident.Key] = r.Incident
	}
}

func (c *court) during(length time.Duration, s func() alert.Sight) {
	for d := time.Duration(0); d < length; d += alert.LookEvery {
		c.after(alert.LookEvery, s())
	}
}

func nothing() alert.Sight { return alert.Sight{} }

func perMinute(name string) tenants.Rule {
	return tenants.Rule{Limit: ratelimit.Limit{Name: name, Quota: 100, Window: time.Minute}}
}

// level is one tenant's at one limit, now.
func (c *court) level(id int64, limit string, u float64) usage.TenantUsage {
	return usage.TenantUsage{TenantID: id, Limits: []usage.LimitUsage{{Name: limit, Utilization: u, Peak: u, At: c.book.Now.Add(alert.LookEvery)}}}
}

// B071: Redis that flaps every five seconds is one mail that it is away, and one that it is back.
func TestAFlappingStoreIsOneMailEach(t *testing.T) {
	t.Parallel()
	c := newCourt(t, 1)
	for n := range 60 {
		c.book.Replicas[0].Redis = []string{"up", "down"}[n%2]
		c.after(alert.LookEvery, nothing())
	}
	require.Len(t, c.opened, 1)
	require.Empty(t, c.resolved)
	c.book.Replicas[0].Redis = "up"
	c.during(5*time.Minute, nothing)
	require.Len(t, c.resolved, 1)
	require.Len(t, c.messages, 2)
	require.Equal(t, "redis", c.opened[0].Name)
	require.Empty(t, c.book.States, "nothing is remembered of what is over")
}

func TestReplicasThatDisagree(t *testing.T) {
	t.Parallel()
	c := newCourt(t, 1)
	c.replicas("redis", "postgres")
	c.after(alert.LookEvery, nothing())
	c.replicas("redis", "redis")
	c.during(time.Minute, nothing)
	require.Empty(t, c.opened, "they switch a few seconds apart")

	c.replicas("redis", "postgres")
	c.during(20*time.Second, nothing)
	require.Len(t, c.opened, 1)
	require.Equal(t, alert.ReplicasDisagree, c.opened[0].Kind)
	require.Equal(t, []string{"0: decides by redis", "1: decides by postgres"}, c.opened[0].Replicas)
	c.replicas("postgres", "postgres")
	c.during(2*time.Minute, nothing)
	require.Len(t, c.resolved, 1)
}

// An outage of Postgres is told of when it is over; replicas that saw the same one tell of it once.
func TestAnOutageOfPostgresIsToldAfterwards(t *testing.T) {
	t.Parallel()
	c := newCourt(t, 1)
	c.after(alert.LookEvery, nothing())
	from := c.book.Now
	c.after(4*time.Minute, alert.Sight{PostgresFrom: from, PostgresTo: from.Add(4 * time.Minute)})
	c.after(alert.LookEvery, alert.Sight{PostgresFrom: from, PostgresTo: from.Add(4 * time.Minute)})
	require.Len(t, c.opened, 1)
	require.Equal(t, from, c.opened[0].Since)
	c.during(2*time.Minute, nothing)
	require.Len(t, c.resolved, 1)
	require.Len(t, c.opened, 1)
}

func TestEventsAreOneIncidentUntilTheyStop(t *testing.T) {
	t.Parallel()
	c := newCourt(t, 1)
	busy := func() alert.Sight {
		return alert.Sight{Lost: 7, Usage: usage.Overview{
			WrongCredentials: 150, Services: []usage.Refusals{{Name: "edge", Count: 3}, {Name: "jobs", Count: 1}},
		}}
	}
	c.during(30*time.Minute, busy)
	require.Len(t, c.opened, 4)
	c.during(9*time.Minute, nothing)
	require.Empty(t, c.resolved)
	c.during(3*time.Minute, nothing)
	require.Len(t, c.resolved, 4)
	require.Empty(t, c.book.States)
	c.after(alert.LookEvery, alert.Sight{Usage: usage.Overview{WrongCredentials: 99}})
	require.Len(t, c.opened, 4, "a few are everyday life")
}

// Time in which nobody could look, because Postgres was away, neither ends nor breaks anything.
func TestATimeWithoutPostgresLosesNothing(t *testing.T) {
	t.Parallel()
	c := newCourt(t, 1, perMinute("m"))
	high := func() alert.Sight { return alert.Sight{Levels: []usage.TenantUsage{c.level(1, "m", 0.9)}} }
	c.during(8*time.Minute, high)
	c.after(14*time.Minute, alert.Sight{Levels: []usage.TenantUsage{{TenantID: 1, Limits: []usage.LimitUsage{{Name: "m", Utilization: 0.9, At: c.book.Now.Add(14 * time.Minute)}}}}})
	c.during(10*time.Second, high)
	require.Len(t, c.opened, 1, "it was high before and after")
	require.Equal(t, noon().Add(alert.LookEvery), c.opened[0].Since)

	d := newCourt(t, 1, perMinute("m"))
	low := func() alert.Sight { return alert.Sight{Levels: []usage.TenantUsage{d.level(1, "m", 0.9)}} }
	d.during(8*time.Minute, low)
	d.after(3*time.Hour, nothing())
	d.during(time.Minute, low)
	require.Empty(t, d.opened, "after hours nobody can say")
	d.during(10*time.Minute, low)
	require.Len(t, d.opened, 1, "and it is told while it lasts")
}

func TestWhichLimitsAlert(t *testing.T) {
	t.Parallel()
	user, shadow, bucket, fixed := perMinute("user"), perMinute("shadow"), perMinute("bucket"), perMinute("fixed")
	user.Scope, shadow.Mode = ratelimit.ScopeUser, ratelimit.Shadow
	bucket.Algorithm, bucket.Window, bucket.Refill = ratelimit.TokenBucket, 0, ratelimit.Rate{Units: 1, Every: time.Second}
	fixed.Algorithm = ratelimit.FixedWindow
	c := newCourt(t, 1, perMinute("m"), user, shadow, bucket, fixed)
	n := 0
	c.during(12*time.Minute, func() alert.Sight {
		n++
		u := usage.TenantUsage{TenantID: 1}
		for _, name := range []string{"m", "user", "shadow", "bucket", "gone"} {
			u.Limits = append(u.Limits, usage.LimitUsage{Name: name, Utilization: 0.9, Peak: 0.9, At: c.book.Now.Add(alert.LookEvery)})
		}
		// A fixed window starts from nothing every minute: what it comes to is what counts.
		u.Limits = append(u.Limits, usage.LimitUsage{Name: "fixed", Utilization: 0.85 * float64(n%12) / 12, Peak: 0.85, At: c.book.Now.Add(alert.LookEvery)})
		return alert.Sight{Levels: []usage.TenantUsage{u, {TenantID: 99, Limits: u.Limits}}}
	})
	var limits []string
	for _, in := range c.opened {
		limits = append(limits, in.Limit)
	}
	require.ElementsMatch(t, []string{"m", "bucket", "fixed"}, limits)

	// A tenant that is deleted, or a limit: the incident ends.
	c.directory.Apply(tenants.Changes{Version: 2, Full: true}, c.book.Now)
	c.during(10*time.Minute, nothing)
	require.Len(t, c.resolved, 3)
	require.Empty(t, c.book.States)
}

func TestOneSilentHitInADayQuota(t *testing.T) {
	t.Parallel()
	day := perMinute("day")
	day.Window = 24 * time.Hour
	c := newCourt(t, 1, day)
	c.after(alert.LookEvery, alert.Sight{Levels: []usage.TenantUsage{c.level(1, "day", 0.9)}})
	c.during(15*time.Minute, nothing)
	require.Len(t, c.opened, 1, "it stands at 90 % of its day, whether it says more or not")
	require.Empty(t, c.resolved)
}

// A hundred thousand tenants at once: bounded, counted, and quick enough to be looked at every five seconds.
func TestManyTenantsAtOnceAreBounded(t *testing.T) {
	t.Parallel()
	const many = 100_000
	c := newCourt(t, many, perMinute("m"))
	s := alert.Sight{}
	for id := range int64(many) {
		s.Levels = append(s.Levels, c.level(id+1, "m", 0.9))
	}
	c.after(alert.LookEvery, s)
	require.Len(t, c.book.States, alert.MaxStates)
	require.Equal(t, many-alert.MaxStates, c.refused)
}

// Those that are followed already take no second place: there is room for MaxStates, and not for half as many.
func TestThereIsRoomForAllThatAreSaidToFit(t *testing.T) {
	t.Parallel()
	c := newCourt(t, alert.MaxStates, perMinute("m"))
	high := func(n int) (s alert.Sight) {
		for id := range int64(n) {
			s.Levels = append(s.Levels, c.level(id+1, "m", 0.9))
		}
		return s
	}
	c.after(alert.LookEvery, high(6000))
	c.after(alert.LookEvery, high(alert.MaxStates))
	require.Zero(t, c.refused)
	require.Equal(t, alert.MaxStates, len(c.book.States), "followed") //nolint:testifylint // Len would print them all
}

func TestTenantsAreToldOnlyAboutThemselvesAndOnlyWhenWanted(t *testing.T) {
	t.Parallel()
	for _, wanted := range []bool{true, false} {
		c := newCourt(t, 1, perMinute("m"))
		c.policy.Contact = wanted
		c.during(12*time.Minute, func() alert.Sight {
			return alert.Sight{Lost: 1, Levels: []usage.TenantUsage{c.level(1, "m", 0.9)}}
		})
		told := 0
		for _, m := range c.messages {
			if m.Channel == alert.Contact {
				told++
				require.Equal(t, "c@example.org", m.To)
				require.Equal(t, alert.TenantHigh, m.Notice.Kind)
			}
		}
		require.Equal(t, map[bool]int{true: 1, false: 0}[wanted], told)
	}
}
