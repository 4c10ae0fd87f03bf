package usage

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// publishLimit bounds telling the others, of each exchange.
	publishLimit = 800 * time.Millisecond
	// briefEvery is how often a replica that reports to Redis also says in Postgres that it is there.
	briefEvery = 2 * time.Second
	// writeEvery is how often history is written: so much of it a crash loses.
	writeEvery = 10 * time.Second
	// writeLimit bounds writing one part of it.
	writeLimit = 10 * time.Second
	// writeRows is how many rows one part has.
	writeRows = 2_000
	// upkeepEvery is how often history is rolled up and pruned, by one replica at a time.
	upkeepEvery = time.Minute
	upkeepLimit = 30 * time.Second
	// lastLimit bounds what is written when the process ends.
	lastLimit = 3 * time.Second
)

// Retention is how long history is kept; each at least as long as the next coarser step needs it.
type Retention struct {
	Minutes, Hours, Days time.Duration
}

// HistoryStore keeps history.
type HistoryStore interface {
	History
	// Write keeps rows as totals of one run of a replica: what was written before for the same minute is replaced.
	Write(ctx context.Context, instance string, rows []Row) error
	// Totals are the KindTotal rows since.
	Totals(ctx context.Context, since time.Time) ([]TotalRow, error)
	// Upkeep rolls minutes up to hours and hours to days, and removes what is older than it is to be kept, in bounded steps.
	// more: there is work left.
	Upkeep(ctx context.Context, now time.Time, keep Retention) (more bool, err error)
}

// ReporterConfig is what a Reporter needs.
type ReporterConfig struct {
	Aggregator *Aggregator
	// Exchanges are asked in this order: a report goes to the first that takes it. The last is Postgres.
	Exchanges []Exchange
	History   HistoryStore
	Retention Retention
	// Replica describes this replica and its stores now; the Reporter dates it.
	Replica func() Replica
	// Now is this replica's clock.
	Now func() time.Time
	Log *slog.Logger
}

// Reporter collects what one replica counted, tells the others and writes history.
type Reporter struct {
	ReporterConfig
	live

	started time.Time
	failed  atomic.Int64
	stalled bool // the historian's: the last write failed
}

// NewReporter makes one. It asks nobody before Run.
func NewReporter(cfg ReporterConfig) *Reporter {
	r := &Reporter{ReporterConfig: cfg, started: cfg.Now()}
	r.live = live{own: r.current, exchanges: cfg.Exchanges, now: cfg.Now, log: cfg.Log}
	if cfg.History != nil {
		r.totals = cfg.History.Totals
	}
	return r
}

// Run works until ctx ends, then writes what is left and takes this replica off the list.
func (r *Reporter) Run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() {
		for r.nextSecond(ctx) {
			r.Aggregator.Collect(r.Now())
		}
	})
	all.Go(func() {
		var brief time.Time
		for r.nextSecond(ctx) {
			brief = r.publish(ctx, brief)
		}
	})
	if r.History != nil {
		all.Go(func() {
			for pause(ctx, writeEvery) {
				r.write(ctx)
			}
		})
		all.Go(func() { r.upkeep(ctx) })
	}
	all.Wait()
	r.end(context.WithoutCancel(ctx))
}

func (r *Reporter) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastLimit)
	defer cancel()
	r.Aggregator.Collect(r.Now())
	if r.History != nil {
		r.write(ctx)
	}
	instance := r.Replica().Instance
	for _, exchange := range r.Exchanges {
		if err := exchange.Withdraw(ctx, instance); err != nil {
			r.Log.DebugContext(ctx, "this replica stays listed for some seconds", slog.String("in", exchange.Name()), slog.Any("error", err))
		}
	}
}

// nextSecond waits for the start of the clock's next second, a little later so that everybody's collections agree.
func (r *Reporter) nextSecond(ctx context.Context) bool {
	const margin = 2 * time.Millisecond
	return pause(ctx, time.Second-time.Duration(r.Now().Nanosecond())+margin)
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// current is what this replica has to tell, with everything up to now.
func (r *Reporter) current() *report {
	r.Aggregator.Collect(r.Now())
	return r.report()
}

// report is what this replica has to tell, as of the last collection.
func (r *Reporter) report() *report {
	report := r.Aggregator.report()
	report.Replica = r.Replica()
	report.Replica.StartedAt, report.Replica.ReportedAt = r.started.UTC(), r.Now().UTC()
	return report
}

// publish tells the others, and from time to time those that reach only the last exchange. It returns when it last did that.
func (r *Reporter) publish(ctx context.Context, brief time.Time) time.Time {
	report := r.report()
	for i, exchange := range r.Exchanges {
		if err := r.send(ctx, exchange, report); err != nil {
			if ctx.Err() == nil {
				r.failed.Add(1)
				r.Log.DebugContext(ctx, "the other replicas cannot be told now", slog.String("in", exchange.Name()), slog.Any("error", err))
			}
			continue
		}
		last := len(r.Exchanges) - 1
		if now := r.Now(); i < last && now.Sub(brief).Abs() >= briefEvery {
			report.Brief, report.Tenants, report.Addresses, report.Services, report.Series = true, nil, nil, nil, nil
			brief = now
			if err := r.send(ctx, r.Exchanges[last], report); err != nil && ctx.Err() == nil {
				r.Log.DebugContext(ctx, "replicas without Redis cannot be told now", slog.Any("error", err))
			}
		}
		break
	}
	return brief
}

func (r *Reporter) send(ctx context.Context, to Exchange, report *report) error {
	raw, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("encode the report: %w", err)
	}
	limit, cancel := context.WithTimeout(ctx, publishLimit)
	defer cancel()
	return to.Publish(limit, report.Replica.Instance, raw)
}

// write writes history, oldest minutes first. What is not known to be written comes back and is written again: it counts once.
func (r *Reporter) write(ctx context.Context) {
	rows := r.Aggregator.Take()
	slices.SortFunc(rows, func(x, y Row) int { return x.Minute.Compare(y.Minute) })
	instance := r.Replica().Instance
	for len(rows) > 0 {
		part := rows[:min(len(rows), writeRows)]
		limit, cancel := context.WithTimeout(ctx, writeLimit)
		err := r.History.Write(limit, instance, part)
		cancel()
		if err != nil {
			r.Aggregator.Return(rows)
			if !r.stalled && ctx.Err() == nil {
				r.Log.WarnContext(ctx, "usage history waits for Postgres", slog.Any("error", err))
			}
			r.stalled = true
			return
		}
		rows = rows[len(part):]
	}
	if r.stalled {
		r.Log.InfoContext(ctx, "usage history is written again")
		r.stalled = false
	}
}

func (r *Reporter) upkeep(ctx context.Context) {
	for pause(ctx, upkeepEvery) {
		for more := true; more && ctx.Err() == nil; {
			var err error
			limit, cancel := context.WithTimeout(ctx, upkeepLimit)
			more, err = r.History.Upkeep(limit, r.Now(), r.Retention)
			cancel()
			if err != nil && ctx.Err() == nil {
				r.Log.WarnContext(ctx, "usage history cannot be rolled up now", slog.Any("error", err))
			}
			more = more && err == nil
		}
	}
}

// Stats is how watching itself does.
type Stats struct {
	// Dropped events were counted for no tenant, Unpublished reports reached nobody there, Lost rows of history were given up,
	// Waiting ones wait for Postgres.
	Dropped, Unpublished, Lost int64
	Waiting                    int
}

// Stats reads the numbers.
func (r *Reporter) Stats() Stats {
	return Stats{Dropped: r.Aggregator.Dropped(), Unpublished: r.failed.Load(), Lost: r.Aggregator.Lost(), Waiting: r.Aggregator.Waiting()}
}
