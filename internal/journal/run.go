package journal

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/pegel-dev/pegel/internal/tenants"
)

const (
	// collectEvery is how often the ring is emptied, flushEvery how often what was gathered is written.
	collectEvery = 20 * time.Millisecond
	flushEvery   = 250 * time.Millisecond
	// writeWithin bounds one write.
	writeWithin = 5 * time.Second
	flushWithin = 3 * time.Second
	// firstRetry and lastRetry bound the pause after a write that failed; it doubles.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 5 * time.Second
	// tries is how often a batch is sent that the sink refuses for what is in it.
	tries = 3
	// maintainEvery is how often room is made and old records are dropped, maintainSoon how soon after that has failed.
	maintainEvery  = 10 * time.Minute
	maintainSoon   = 10 * time.Second
	maintainWithin = 30 * time.Second
)

// runState is Run's own.
type runState struct {
	writer  uuid.UUID
	number  int64
	pending *pending
	// batch is what is being written, or is to be written again; nil for nothing.
	batch   *Batch
	writing bool
	failed  int // tries of batch
	notYet  time.Time
	flushed time.Time
}

// Run gathers and writes until ctx ends; then it writes what is left, within FlushWithin. It may be called once.
func (j *Journal) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { j.maintain(ctx) })

	done := make(chan error, 1)
	ticker := time.NewTicker(collectEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			j.finish(context.WithoutCancel(ctx), done)
			return
		case err := <-done:
			j.settle(ctx, err)
		case <-ticker.C:
			j.collect()
		}
		if now := j.cfg.Now(); j.due(now) {
			b := j.next(now)
			all.Go(func() { done <- j.write(context.WithoutCancel(ctx), b, writeWithin) })
		}
	}
}

// collect empties the ring, as far as it was filled when it began.
func (j *Journal) collect() {
	p := j.run.pending
	for range len(j.ring.slots) {
		e, ok := j.ring.pop()
		if !ok {
			break
		}
		j.keep(&e)
	}
	requests, decisions := j.lost.requests.Swap(0), j.lost.decisions.Swap(0)
	now := j.cfg.Now()
	j.drop(now.Add(-collectEvery), now, requests, decisions)
	waiting := len(p.requests) + len(p.explanations)
	if b := j.run.batch; b != nil {
		waiting += len(b.Requests) + len(b.Explanations)
	}
	j.waiting.Store(int64(waiting))
}

// keep turns an entry into what is stored.
func (j *Journal) keep(e *entry) {
	p, o := j.run.pending, &e.seen
	facts := factsOf(o, j.cfg.Replica)
	var id uuid.UUID
	if o.Decision != nil {
		id, _ = uuid.Parse(o.Decision.ID) // the engine makes nothing else
	}
	if e.log {
		logged := id
		if facts.Reason == Unauthorized { // the client was told no id, and a thousand guesses are one row
			logged = uuid.Nil
		}
		if !p.addRequest(j.ids, logged, o.At, &facts) {
			j.drop(o.At, o.At, 1, 0)
		}
	}
	if !e.explain || e.sampled && !p.sampled.take(o.At, samplesPerSecond) {
		return
	}
	if !p.addExplanation(id, o, &facts) && !e.sampled {
		j.drop(o.At, o.At, 0, 1)
	}
}

func (j *Journal) drop(from, to time.Time, requests, decisions int64) {
	j.run.pending.dropped(from, to, requests, decisions)
	j.dropped.requests.Add(requests)
	j.dropped.decisions.Add(decisions)
}

// due reports whether something is to be written now.
func (j *Journal) due(now time.Time) bool {
	r := &j.run
	switch {
	case r.writing, now.Before(r.notYet):
		return false
	case r.batch != nil:
		return true
	}
	return r.pending.full() || !r.pending.empty() && now.Sub(r.flushed).Abs() >= flushEvery
}

// next is the batch to write: the one that failed, or a new one.
func (j *Journal) next(now time.Time) *Batch {
	r := &j.run
	r.writing = true
	if r.batch == nil {
		b := r.pending.cut(j.cfg.Replica)
		r.number++
		b.Writer, b.Number = r.writer, r.number
		r.batch, r.failed, r.flushed = &b, 0, now
	}
	return r.batch
}

func (j *Journal) write(ctx context.Context, b *Batch, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return j.cfg.Sink.WriteJournal(ctx, b)
}

// settle takes the result of a write: a batch that waiting may help stays and is sent again.
func (j *Journal) settle(ctx context.Context, err error) {
	r := &j.run
	r.writing = false
	b := r.batch
	j.failing.Store(err != nil)
	if err == nil {
		if r.failed > 0 {
			j.cfg.Log.InfoContext(ctx, "the journal is written again", slog.Int("requests_waiting", len(r.pending.requests)), slog.Int64("requests_dropped", r.pending.gap.Requests))
		}
		j.written.requests.Add(int64(len(b.Requests)))
		j.written.decisions.Add(int64(len(b.Explanations)))
		r.batch, r.failed, r.notYet = nil, 0, time.Time{}
		return
	}
	if r.failed++; r.failed == 1 {
		j.cfg.Log.WarnContext(ctx, "the journal cannot be written now; it waits, and what does not fit is dropped and counted", slog.Any("error", err))
	}
	now := j.cfg.Now()
	r.notYet = now.Add(min(lastRetry, firstRetry<<min(r.failed-1, 8)))
	if !errors.Is(err, tenants.ErrUnavailable) && r.failed >= tries {
		j.cfg.Log.ErrorContext(ctx, "a part of the journal is given up", slog.Int("requests", len(b.Requests)), slog.Int("decisions", len(b.Explanations)), slog.Any("error", err))
		j.giveUp(now)
	}
}

// giveUp drops the batch.
func (j *Journal) giveUp(now time.Time) {
	b := j.run.batch
	from := now
	for i := range b.Requests {
		if b.Requests[i].At.Before(from) {
			from = b.Requests[i].At
		}
	}
	j.drop(from, now, int64(len(b.Requests)), int64(len(b.Explanations)))
	for _, g := range b.Gaps { // counted when it arose
		j.run.pending.dropped(g.From, g.To, g.Requests, g.Decisions)
	}
	j.run.batch, j.run.failed = nil, 0
}

// finish writes what is left.
func (j *Journal) finish(ctx context.Context, done <-chan error) {
	ctx, cancel := context.WithTimeout(ctx, j.cfg.FlushWithin)
	defer cancel()
	if j.run.writing {
		select {
		case err := <-done:
			j.settle(ctx, err)
		case <-ctx.Done():
		}
	}
	j.collect()
	r, failed := &j.run, ctx.Err()
	for !r.writing && failed == nil && (r.batch != nil || !r.pending.empty()) {
		if failed = j.write(ctx, j.next(j.cfg.Now()), writeWithin); failed == nil {
			j.settle(ctx, nil)
		}
	}
	requests, decisions := len(r.pending.requests), len(r.pending.explanations)
	if r.batch != nil {
		requests, decisions = requests+len(r.batch.Requests), decisions+len(r.batch.Explanations)
	}
	if requests+decisions > 0 {
		j.cfg.Log.WarnContext(ctx, "the end of the journal is lost", slog.Int("requests", requests), slog.Int("decisions", decisions), slog.Any("error", failed))
	}
}

// maintain makes room and drops what is old, now and then.
func (j *Journal) maintain(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		pause := maintainEvery
		within, cancel := context.WithTimeout(ctx, maintainWithin)
		err := j.cfg.Sink.MaintainJournal(within, j.cfg.Retention)
		cancel()
		if err != nil && ctx.Err() == nil {
			pause = maintainSoon
			j.cfg.Log.WarnContext(ctx, "old records cannot be dropped now", slog.Any("error", err))
		}
		timer.Reset(pause)
	}
}
