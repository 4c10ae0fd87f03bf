package alert

import (
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Words are what a message says to people. Names that others chose (a tenant's, a token's) are text in them, on one line
// and of bounded length; how they are shown is up to whoever shows them.
type Words struct {
	// Headline says who and what, short enough for a subject line.
	Headline string
	// Lead says it in a sentence, Meaning what it means and what to do.
	Lead, Meaning string
	Facts         []Fact
	// Over: it is good news.
	Over bool
	// Link is where to look; empty when nobody said where the dashboard is.
	Link string
}

// Fact is one line of the table.
type Fact struct{ Name, Value string }

// Tell puts a notice into words. dashboard is the address of the dashboard, without a slash at its end; empty: not known.
func Tell(n *Notice, dashboard string) Words {
	var w Words
	switch n.Kind {
	case TenantHigh:
		w = tellTenant(n)
	case StoreDown:
		w = tellStore(n)
	case ReplicasDisagree, RequestLogDrops, ServiceTokenRefused, ForgedTokens:
		w = tellEvent(n)
	}
	w.Over = n.Occasion == OnResolve
	switch n.Occasion {
	case OnReminder:
		w.Headline = "still: " + w.Headline
		w.Lead = "This is a reminder; nobody has acknowledged the incident yet. " + w.Lead
	case OnTest:
		w.Headline = "test: " + w.Headline
		w.Lead = "This is a test that somebody asked for with `pegel alert test`; the incident below is made up."
	case OnOpen, OnResolve:
	}
	w.Facts = append(w.Facts, Fact{"Since", moment(n.Since)})
	if w.Over {
		w.Facts = append(w.Facts, Fact{"Until", moment(n.ResolvedAt)}, Fact{"Lasted", spell(n.ResolvedAt.Sub(n.Since))})
	}
	if n.IncidentID != 0 {
		w.Facts = append(w.Facts, Fact{"Incident", fmt.Sprint(n.IncidentID)})
	}
	if dashboard != "" {
		w.Link = dashboard + "/alerts"
		if n.Kind == TenantHigh {
			w.Link = dashboard + "/tenants/" + url.PathEscape(n.Tenant)
		}
	}
	return w
}

func tellTenant(n *Notice) (w Words) {
	limit, line := clean(n.Limit, 64), percent(n.At)
	w.Headline = fmt.Sprintf("%s at %s of %s for %s", n.Tenant, percent(n.Peak), limit, spell(n.Made.Sub(n.Since)))
	w.Lead = fmt.Sprintf("The tenant %s has stood at or above %s of its limit %s for %s (%s).",
		n.Tenant, line, limit, spell(n.Made.Sub(n.Since)), rate(n))
	w.Meaning = "At 100 % its requests are refused with 429 until earlier ones leave the window. Other tenants are not affected. " +
		"If the load is a mistake (a loop, a retry without a pause), tell the tenant; if it is growth, a bigger plan or an override ends it."
	if n.Slowed {
		w.Meaning = "Pegel is slowing its requests down. " + w.Meaning
	}
	if n.Occasion == OnResolve {
		w.Headline = fmt.Sprintf("%s is below %s of %s again", n.Tenant, percent(n.Below), limit)
		w.Lead = fmt.Sprintf("The tenant %s has been below %s of its limit %s for %s.", n.Tenant, percent(n.Below), limit, spell(n.For/2))
		w.Meaning = "Nothing has to be done."
	}
	w.Facts = []Fact{
		{"Tenant", n.Tenant},
		{"Name", clean(n.TenantName, 80)},
		{"Plan", n.Plan},
		{"Limit", limit + ", " + rate(n)},
		{"Now", percent(n.Value)},
		{"Highest", percent(n.Peak)},
	}
	return w
}

// Store names as people write them.
var storeNames = map[string]string{"redis": "Redis", "postgres": "Postgres"}

func tellStore(n *Notice) (w Words) {
	name := storeNames[n.Name]
	w.Headline, w.Lead = name+" is away", name+" does not answer at least one replica."
	w.Meaning = "Decisions come from Postgres meanwhile. Usage was carried over, and is carried back when Redis answers again; " +
		"a second outage, of Postgres, would leave them to each limit's on_store_failure."
	if n.Name == "postgres" {
		w.Meaning = "It could not be told while it lasted: alerts live in Postgres. With Redis, decisions went on; " +
			"administration answered 503. Without Redis, each limit's on_store_failure decided."
		w.Headline, w.Lead = "Postgres was away", "Postgres did not answer at least one replica for a while."
	}
	if n.Occasion == OnResolve {
		w.Headline, w.Lead, w.Meaning = name+" is back", name+" has answered every replica for a minute.", "Nothing has to be done."
	}
	w.Facts = replicaFacts(n)
	return w
}

func tellEvent(n *Notice) (w Words) {
	switch n.Kind {
	case ReplicasDisagree:
		w.Headline, w.Lead = "replicas decide by different stores", "For more than 10 seconds replicas have not decided by the same store."
		w.Meaning = "Each counts where it can, so a tenant may get up to one more quota per window. One replica is probably cut off: " +
			"look at its network, or take it out of service."
		w.Facts = replicaFacts(n)
	case RequestLogDrops:
		w.Headline, w.Lead = "the request log loses rows", fmt.Sprintf("A replica dropped %d rows of the request log.", n.Count)
		w.Meaning = "Decisions are right and unaffected; the log has gaps. Postgres does not take rows as fast as they come: look at its load, or log less (request_log of the plans)."
		w.Facts = []Fact{{"Lost at first", fmt.Sprint(n.Count)}}
	case ServiceTokenRefused:
		w.Headline, w.Lead = "service "+clean(n.Name, 80)+" was refused", "One of your own services was refused for its address although it came with a valid service token."
		w.Meaning = "This is a bug report about the limits: a service that many people stand behind shares one address. Give its token the exemption from address limits."
		w.Facts = []Fact{{"Service token", clean(n.Name, 80)}, {"Refused", fmt.Sprint(n.Count)}}
	case ForgedTokens:
		w.Headline, w.Lead = "many credentials that are not valid", fmt.Sprintf("%d requests of one minute presented a credential of Pegel's that is not valid.", n.Count)
		w.Meaning = "Somebody guesses, or a client of yours kept a revoked or expired key. Each was counted against its address and got no exemption; the dashboard shows which addresses are refused most."
		w.Facts = []Fact{{"In one minute", fmt.Sprint(n.Count)}}
	case TenantHigh, StoreDown:
	}
	if n.Occasion == OnResolve {
		w.Headline, w.Meaning = "over: "+w.Headline, "Nothing has to be done."
		w.Lead = "It has not happened again for a while."
		if n.Kind == ReplicasDisagree {
			w.Lead = "All replicas have decided by the same store for a minute."
		}
	}
	return w
}

func replicaFacts(n *Notice) (facts []Fact) {
	for _, r := range n.Replicas {
		name, says, _ := strings.Cut(r, ": ")
		facts = append(facts, Fact{"Replica " + clean(name, 80), clean(says, 80)})
	}
	return facts
}

// TellContact is what a tenant is told about itself: its own numbers, and nothing of the installation.
func TellContact(n *Notice) (w Words) {
	limit := clean(n.Limit, 64)
	w.Over = n.Occasion == OnResolve
	w.Headline = fmt.Sprintf("your requests are at %s of their limit", percent(n.Peak))
	w.Lead = fmt.Sprintf("The requests of %s have stood at or above %s of the limit %s (%s) for %s.",
		clean(n.TenantName, 80), percent(n.At), limit, rate(n), spell(n.Made.Sub(n.Since)))
	w.Meaning = "At 100 % requests are refused with status 429 for a short time. If you did not expect this, look for a client that repeats " +
		"requests without a pause; every answer says in its RateLimit header how much is left. If you need more, write to whoever runs the service."
	if w.Over {
		w.Headline, w.Lead = "your requests are within their limit again", fmt.Sprintf("The requests of %s are below %s of the limit %s again.", clean(n.TenantName, 80), percent(n.Below), limit)
		w.Meaning = "Nothing has to be done."
	}
	w.Facts = []Fact{{"Limit", limit + ", " + rate(n)}, {"Highest", percent(n.Peak)}, {"Since", moment(n.Since)}}
	return w
}

// clean makes foreign text fit for a line: no control or formatting characters (a line break would begin a header, a
// direction mark would turn the rest of the line around), at most so many characters.
func clean(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co, unicode.Cs) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, " "))
	s = strings.Join(strings.Fields(s), " ")
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return s
}

// percent never rounds up to a level that was not reached.
func percent(u float64) string { return fmt.Sprintf("%d %%", int(math.Floor(u*100+1e-6))) }

func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") }

// rate is a limit as people say it: 2,000 per minute.
func rate(n *Notice) string {
	quota := strconv.FormatInt(n.Quota, 10)
	for at := len(quota) - 3; at > 0; at -= 3 {
		quota = quota[:at] + "," + quota[at:]
	}
	per := map[time.Duration]string{time.Second: "second", time.Minute: "minute", time.Hour: "hour", 24 * time.Hour: "day"}[n.Window]
	for _, unit := range []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if per == "" && n.Window >= unit.size && n.Window%unit.size == 0 {
			per = fmt.Sprintf("%d %s", n.Window/unit.size, unit.name)
		}
	}
	if per == "" {
		per = n.Window.String()
	}
	return quota + " per " + per
}

// spell writes a duration as people do, by its two largest units, and without seconds from a minute on.
func spell(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 24*time.Hour:
		return strings.TrimSuffix(fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute), " 0 min")
	}
	return strings.TrimSuffix(fmt.Sprintf("%d d %d h", d/(24*time.Hour), d%(24*time.Hour)/time.Hour), " 0 h")
}

// Describe puts an incident into words as it is at a moment.
func Describe(in *Incident, now time.Time) Words {
	n := Notice{
		Facts: in.Facts, Kind: in.Kind, Occasion: OnOpen, IncidentID: in.ID, Since: in.Since, OpenedAt: in.OpenedAt,
		ResolvedAt: in.ResolvedAt, Made: now, Value: in.Value, Peak: in.Peak,
	}
	if !in.ResolvedAt.IsZero() {
		n.Occasion, n.Made = OnResolve, in.ResolvedAt
	}
	return Tell(&n, "")
}
