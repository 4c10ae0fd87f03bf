package audit

import (
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"sync"
	"time"
)

// Refusal is an administrative attempt that was refused.
type Refusal struct {
	// Actor is who tried, as far as that was proved.
	Actor Actor
	// Action is "sign_in.refused" or "request.refused".
	Action string
	// Resource and ResourceID are what it was about.
	Resource, ResourceID string
	// Tenant is the slug of the tenant it was about where Resource and ResourceID do not tell: that of an API key.
	Tenant string
	// Cause is why, in our own words.
	Cause string
}

// Entry is the line that a number of equal refusals leaves; last is the latest one's.
func (r *Refusal) Entry(count int64, first, last time.Time) Entry {
	e := Entry{Actor: r.Actor, Action: r.Action, Resource: r.Resource, ResourceID: r.ResourceID, Diff: []Change{}}
	add := func(field, value string) {
		raw, _ := json.Marshal(value) // a string always can
		e.Diff = append(e.Diff, Change{Field: field, To: raw})
	}
	if r.Cause != "" {
		add("cause", r.Cause)
	}
	if r.Tenant != "" {
		add("tenant", r.Tenant)
	}
	if count > 1 {
		e.Diff = append(e.Diff, Change{Field: "count", To: json.RawMessage(strconv.FormatInt(count, 10))})
		add("first_at", first.UTC().Format(time.RFC3339))
		add("last_at", last.UTC().Format(time.RFC3339))
	}
	return e
}

// Bounds that keep a flood of refusals from filling the log. They hold for each action by itself, so that strangers at the door
// never push out what administrators tried.
const (
	// maxRefusals are kept apart at a time; those beyond are counted as one.
	maxRefusals = 1000
	// maxEntries may be written at once; one more every entryEvery.
	maxEntries = 200
	entryEvery = 30 * time.Second
	// firstPause and lastPause are how long equal refusals are gathered after an entry; the pause doubles while they go on.
	firstPause = time.Minute
	lastPause  = time.Hour
	// retryEvery is how often what could not be written is tried again.
	retryEvery = time.Second
)

// Refusals writes refused attempts to the audit log: the first at once, equal ones after it as one entry with their count. Nothing is
// dropped: what finds no room is counted under "several". Note is safe for concurrent use and waits for nobody; while the log
// cannot be written, counts are kept. What was not yet written when the process dies is lost.
type Refusals struct {
	record func(ctx context.Context, entries []Entry) error
	now    func() time.Time
	log    *slog.Logger
	wake   chan struct{}

	mu    sync.Mutex
	books map[string]*book // by action
}

// book holds the refusals of one action.
type book struct {
	tallies map[Refusal]*tally
	// room is how many entries may be written now, as of since.
	room  float64
	since time.Time
}

// tally counts equal refusals that no entry tells of yet.
type tally struct {
	count       int64
	first, last time.Time
	requestID   string
	// due is when they may be written; pause how long the next ones are gathered.
	due   time.Time
	pause time.Duration
}

// NewRefusals writes with record, in batches, when Run runs.
func NewRefusals(record func(ctx context.Context, entries []Entry) error, now func() time.Time, log *slog.Logger) *Refusals {
	return &Refusals{record: record, now: now, log: log, wake: make(chan struct{}, 1), books: make(map[string]*book)}
}

// Note takes a refusal. Actions are few and our own; everything else may be a stranger's.
func (r *Refusals) Note(refusal Refusal) { //nolint:gocritic // it is kept as a key
	now := r.now()
	id := refusal.Actor.RequestID
	refusal.Actor.RequestID = ""
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.books[refusal.Action]
	if b == nil {
		b = &book{tallies: make(map[Refusal]*tally), room: maxEntries, since: now}
		r.books[refusal.Action] = b
	}
	t := b.tallies[refusal]
	if t == nil && len(b.tallies) >= maxRefusals {
		refusal = Refusal{Actor: Actor{Kind: "anonymous", Name: "several"}, Action: refusal.Action, Resource: refusal.Resource}
		t, id = b.tallies[refusal], ""
	}
	if t == nil {
		t = &tally{due: now, pause: firstPause}
		b.tallies[refusal] = t
	}
	if t.count == 0 {
		t.first = now
	}
	t.count, t.last, t.requestID = t.count+1, now, id
	if !now.Before(t.due) {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// Run writes until ctx ends, and once more then, within 1 s.
func (r *Refusals) Run(ctx context.Context) {
	ticker := time.NewTicker(retryEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			final, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			r.write(final, true)
			return
		case <-r.wake:
		case <-ticker.C:
		}
		r.write(ctx, false)
	}
}

// write writes what is due (all: everything there is room for) and keeps it when it cannot.
func (r *Refusals) write(ctx context.Context, all bool) {
	now := r.now()
	batch := r.take(now, all)
	if len(batch) == 0 {
		return
	}
	entries := make([]Entry, len(batch))
	for i := range batch {
		p := &batch[i]
		p.refusal.Actor.RequestID = p.told.requestID
		entries[i] = p.refusal.Entry(p.told.count, p.told.first, p.told.last)
	}
	if err := r.record(ctx, entries); err != nil {
		r.log.WarnContext(ctx, "refused administrative attempts could not be written to the audit log yet", slog.Int("entries", len(entries)), slog.Any("error", err))
		return
	}
	r.settle(batch, now)
}

// page is what an entry will tell of a tally.
type page struct {
	refusal Refusal
	tally   *tally
	told    tally
}

// take picks what is due, within each book's room, and forgets tallies that have long been told.
func (r *Refusals) take(now time.Time, all bool) []page {
	r.mu.Lock()
	defer r.mu.Unlock()
	var batch []page
	for _, b := range r.books {
		b.room = min(maxEntries, b.room+max(0, float64(now.Sub(b.since))/float64(entryEvery)))
		b.since = now
		room := int(b.room)
		for refusal, t := range b.tallies {
			due := !now.Before(t.due)
			switch {
			case t.count == 0 && due:
				delete(b.tallies, refusal)
			case t.count > 0 && (due || all) && room > 0:
				batch = append(batch, page{refusal: refusal, tally: t, told: *t})
				room--
			}
		}
	}
	return batch
}

// settle takes what was written off the tallies and off the room.
func (r *Refusals) settle(batch []page, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range batch {
		p := &batch[i]
		p.tally.count -= p.told.count
		p.tally.first = p.tally.last
		p.tally.due = now.Add(p.tally.pause)
		p.tally.pause = min(2*p.tally.pause, lastPause)
		r.books[p.refusal.Action].room--
	}
}
