package alert

import (
	"time"

	"github.com/pegel-dev/pegel/internal/tenants"
)

const (
	// LookEvery is how often each replica looks.
	LookEvery = 5 * time.Second
	// gapFrom is from when on the time between two judgements counts as time in which nobody looked.
	gapFrom = 30 * time.Second
	// gapMost is the longest gap that a stretch survives which has not opened an incident yet.
	gapMost = 15 * time.Minute
	// MaxStates bounds the subjects that are followed at one time, over all replicas.
	MaxStates = 10_000
)

// Policy is who is told, and how often.
type Policy struct {
	// Mail, Hook: there is somebody to tell that way. Contact: tenants are told about themselves.
	Mail, Hook, Contact bool
	// Reminder is the pause between reminders of an incident that nobody acknowledged; 0: none.
	Reminder time.Duration
}

// judgement is one judgement under way. It changes nothing but its ruling.
type judgement struct {
	policy   Policy
	snapshot *tenants.Snapshot
	sight    *Sight
	book     *Book
	ruling   Ruling
	fresh    int // subjects that are followed from now on
	refused  int // subjects that there was no room for
}

// judge rules on what a replica sees and on what is in the book. refused is how many subjects were left out because there are
// MaxStates already.
func judge(p Policy, snapshot *tenants.Snapshot, sight *Sight, book *Book) (ruling Ruling, refused int) {
	j := judgement{policy: p, snapshot: snapshot, sight: sight, book: book, ruling: Ruling{States: map[Key]State{}}}
	j.bridge()
	seen := map[Key]bool{}
	for _, f := range append(limitFindings(snapshot, sight, book.States), eventFindings(sight, book)...) {
		seen[f.key] = true
		j.follow(&f)
	}
	for k := range book.States {
		if !seen[k] {
			j.follow(j.unseen(k))
		}
	}
	j.outage()
	j.remind()
	return j.ruling, j.refused
}

// bridge makes up for time in which nobody looked, because Postgres or every replica was away.
func (j *judgement) bridge() {
	gap := j.book.Now.Sub(j.book.JudgedAt) - LookEvery
	if j.book.JudgedAt.IsZero() || gap < gapFrom {
		return
	}
	for k, s := range j.book.States {
		s.Bridge(gap)
		if gap > gapMost && !s.Open {
			s.HighSince, s.HighAt, s.Peak = time.Time{}, time.Time{}, 0
		}
		j.book.States[k] = s
	}
}

// unseen is a subject that is followed and that nobody has said anything new about.
func (j *judgement) unseen(k Key) *finding {
	f := &finding{key: k, rule: eventRule(k.Kind)}
	if k.Kind != TenantHigh {
		return f
	}
	view, l, ok := limitOf(j.snapshot, k, j.sight.Now)
	if ok {
		f.rule, f.facts = LimitRule(view.Plan.Alert, l), limitFacts(view, l)
	} else { // the tenant or its limit is gone, or this replica has not heard of it yet: it fades
		f.rule = Rule{At: 0.8, Below: 0.7, Quiet: time.Minute, For: longestHold, Hold: time.Minute}
	}
	return f
}

// follow shows a subject's state what was found, and rules on what happens.
func (j *judgement) follow(f *finding) {
	s, known := j.book.States[f.key]
	if !known && len(j.book.States)+j.fresh >= MaxStates {
		j.refused++
		return
	}
	before := s
	var events []Event
	if !f.level.At.IsZero() {
		level := f.level
		level.At = earlier(j.book.Now.Add(level.At.Sub(j.sight.Now)), j.book.Now) // by the ledger's clock
		events = f.rule.See(&s, level)
	}
	events = append(events, f.rule.Follow(&s, j.book.Now)...)
	for _, e := range events {
		if e.Turn == Opened {
			j.open(f, &s, e)
		} else {
			j.resolve(f, &s, e)
		}
	}
	switch {
	case f.rule.Idle(&s, j.book.Now) && known:
		j.ruling.Forget = append(j.ruling.Forget, f.key)
	case s != before && !f.rule.Idle(&s, j.book.Now):
		j.ruling.States[f.key] = s
		if !known {
			j.fresh++
		}
	}
}

func (j *judgement) open(f *finding, s *State, e Event) {
	if _, open := j.book.Open[f.key]; open {
		return
	}
	in := Incident{Key: f.key, Facts: f.facts, Since: e.Since, OpenedAt: e.At, Value: s.Last.Value, Peak: e.Peak}
	if j.policy.Reminder > 0 {
		in.RemindAt = j.book.Now.Add(j.policy.Reminder)
	}
	j.ruling.Open = append(j.ruling.Open, Change{Incident: in, Messages: j.messages(&in, OnOpen)})
}

func (j *judgement) resolve(f *finding, s *State, e Event) {
	in, open := j.book.Open[f.key]
	if !open {
		for i := range j.ruling.Open { // opened and over within one look
			if j.ruling.Open[i].Incident.Key == f.key {
				in, open = j.ruling.Open[i].Incident, true
			}
		}
	}
	if !open {
		return
	}
	in.ResolvedAt, in.Value, in.Peak, in.RemindAt = e.At, f.rule.LevelAt(s, j.book.Now), max(in.Peak, e.Peak), time.Time{}
	if len(f.facts.Replicas) > 0 {
		in.Replicas = f.facts.Replicas
	}
	j.ruling.Resolve = append(j.ruling.Resolve, Change{Incident: in, Messages: j.messages(&in, OnResolve)})
}

// outage opens the incident of an outage of Postgres, which nobody could write down while it lasted.
func (j *judgement) outage() {
	from, to := j.sight.PostgresFrom, j.sight.PostgresTo
	k := Key{StoreDown, "postgres"}
	rule := eventRule(k.Kind)
	if from.IsZero() || to.Sub(from) < rule.For {
		return
	}
	s, known := j.ruling.States[k]
	if !known {
		s = j.book.States[k]
	}
	if _, open := j.book.Open[k]; open || s.Open {
		return // another replica has told of it
	}
	shift := j.book.Now.Sub(j.sight.Now)
	from, to = from.Add(shift), to.Add(shift)
	s = State{
		Last: Level{At: j.book.Now}, AsOf: j.book.Now, HighSince: from, HighAt: to, Peak: 1, Open: true, QuietSince: to,
	}
	j.ruling.States[k] = s
	f := finding{key: k, rule: rule, facts: Facts{Name: "postgres", Replicas: views(j.book.Replicas, func(r *Replica) string { return r.Postgres })}}
	j.open(&f, &s, Event{Turn: Opened, At: from.Add(rule.For), Since: from, Peak: 1})
}

func (j *judgement) remind() {
	if j.policy.Reminder <= 0 {
		return
	}
	over := map[Key]bool{}
	for i := range j.ruling.Resolve {
		over[j.ruling.Resolve[i].Incident.Key] = true
	}
	for k, in := range j.book.Open {
		if over[k] || !in.AckedAt.IsZero() || in.RemindAt.IsZero() || j.book.Now.Before(in.RemindAt) {
			continue
		}
		in.RemindAt, in.Reminders = j.book.Now.Add(j.policy.Reminder), in.Reminders+1
		if s, ok := j.state(k); ok {
			in.Value, in.Peak = s.Last.Value, max(in.Peak, s.Peak)
		}
		j.ruling.Remind = append(j.ruling.Remind, Change{Incident: in, Messages: j.messages(&in, OnReminder)})
	}
}

func (j *judgement) state(k Key) (State, bool) {
	if s, ok := j.ruling.States[k]; ok {
		return s, true
	}
	s, ok := j.book.States[k]
	return s, ok
}

// messages are what is said on an occasion, to each that is to be told.
func (j *judgement) messages(in *Incident, on Occasion) (out []Message) {
	n := Notice{
		Facts: in.Facts, Kind: in.Kind, Occasion: on, IncidentID: in.ID, Since: in.Since, OpenedAt: in.OpenedAt,
		ResolvedAt: in.ResolvedAt, Made: j.book.Now, Value: in.Value, Peak: in.Peak,
	}
	if j.policy.Mail {
		out = append(out, Message{Channel: Mail, Notice: n})
	}
	if j.policy.Hook {
		out = append(out, Message{Channel: Hook, Notice: n})
	}
	if j.policy.Mail && j.policy.Contact && in.Kind == TenantHigh && on != OnReminder {
		if view, ok := j.snapshot.TenantByID(in.TenantID); ok && view.ContactEmail != "" {
			out = append(out, Message{Channel: Contact, To: view.ContactEmail, Notice: n})
		}
	}
	return out
}
