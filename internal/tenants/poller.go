package tenants

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
)

// PollerOptions are the Poller's settings; zero values take the defaults.
type PollerOptions struct {
	// Interval is how often the version is asked for, on average. Default 250 ms; each pause is 75…125 % of it.
	Interval time.Duration
	// FullEvery is how often everything is loaded anew, which also finds what was changed past the API. Default 5 min.
	FullEvery time.Duration
	// Clock is the replica's clock; it must be given.
	Clock func() time.Time
	Log   *slog.Logger
	// OnBroken is told of every row that could not be used, at each load that meets it. May be nil.
	OnBroken func(BrokenRow)
	// OnApplied is told of every snapshot that was published. May be nil.
	OnApplied func(*Snapshot)
}

// Poller keeps a Directory up to date: it asks for the configuration version, loads what changed and now and then
// everything. While the store is away the snapshot stays and serves.
//
// Run is the one goroutine; its owner waits for it. Refresh may be called by any.
type Poller struct {
	directory *Directory
	loader    Loader
	o         PollerOptions

	loading  chan struct{} // holds a token while nobody loads
	fullDue  time.Time     // guarded by loading
	failing  atomic.Pointer[failure]
	reported map[string]time.Time // guarded by loading: when a broken row was last logged
	broken   atomic.Pointer[[]BrokenRow]
}

type failure struct {
	since time.Time
	err   error
}

// NewPoller prepares a poller; Run starts it.
func NewPoller(d *Directory, l Loader, o PollerOptions) *Poller {
	if o.Interval <= 0 {
		o.Interval = 250 * time.Millisecond
	}
	if o.FullEvery <= 0 {
		o.FullEvery = 5 * time.Minute
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p := &Poller{directory: d, loader: l, o: o, loading: make(chan struct{}, 1), reported: make(map[string]time.Time)}
	p.loading <- struct{}{}
	return p
}

// Run polls until ctx ends. The first look is after a random part of one interval, so that replicas which start together do not
// ask together.
func (p *Poller) Run(ctx context.Context) {
	wait := rand.N(p.o.Interval) //nolint:gosec // spreads replicas, keeps no secret
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		p.note(ctx, p.poll(ctx))
		timer.Reset(p.pause())
	}
}

// Refresh brings the directory up to what is stored now, for a replica that has just written. It waits its turn and
// returns the loader's error; the snapshot then stays as it was.
func (p *Poller) Refresh(ctx context.Context) error {
	err := p.poll(ctx)
	p.note(ctx, err)
	return err
}

// Failing says since when, and why, the store has not been reached; err is nil while it answers.
func (p *Poller) Failing() (since time.Time, err error) {
	if f := p.failing.Load(); f != nil {
		return f.since, f.err
	}
	return time.Time{}, nil
}

// Broken are the rows that the last loads could not use. A row that was mended is there until the full load that follows: the
// next poll after a change by hand, about a second after one by the service.
func (p *Poller) Broken() []BrokenRow {
	if rows := p.broken.Load(); rows != nil {
		return *rows
	}
	return nil
}

// pause is 75…125 % of the interval; while the store is away up to eight times that, growing with the outage, so that replicas do
// not storm a database on its way back.
func (p *Poller) pause() time.Duration {
	interval := p.o.Interval
	if since, err := p.Failing(); err != nil {
		interval = min(max(interval, p.o.Clock().Sub(since)/8), 8*interval)
	}
	return interval*3/4 + rand.N(interval/2+1) //nolint:gosec // spreads replicas, keeps no secret
}

// poll looks once and loads what there is to load.
func (p *Poller) poll(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-p.loading:
	}
	defer func() { p.loading <- struct{}{} }()

	// The time before the question: a confirmation never claims to be younger than it is.
	asked := p.o.Clock()
	current := p.directory.Snapshot()
	version, err := p.loader.Version(ctx)
	if err != nil {
		return err
	}
	full := current.Version == 0 || version < current.Version || !asked.Before(p.fullDue)
	if version == current.Version && !full {
		p.directory.Confirm(version, asked)
		return nil
	}
	since := current.Version
	if full {
		since = 0
	}
	changes, err := p.loader.Load(ctx, since)
	if err != nil {
		return err
	}
	if changes.Full {
		p.fullDue = asked.Add(p.o.FullEvery + rand.N(p.o.FullEvery/10+1)) //nolint:gosec // spreads replicas, keeps no secret
	}
	broken := p.directory.Apply(changes, asked)
	p.reportBroken(ctx, broken, asked)
	p.keepBroken(ctx, broken, changes.Full, asked)
	if p.o.OnApplied != nil {
		p.o.OnApplied(p.directory.Snapshot())
	}
	return nil
}

// keepBroken remembers which rows are broken. Only a full load tells which are not any more, so while there are any one follows
// a change within four polls.
func (p *Poller) keepBroken(ctx context.Context, rows []BrokenRow, full bool, asked time.Time) {
	for _, known := range p.Broken() {
		if slices.ContainsFunc(rows, func(r BrokenRow) bool { return r.Table == known.Table && r.ID == known.ID }) {
			continue
		}
		if !full {
			rows = append(rows, known)
			continue
		}
		delete(p.reported, known.Table+" "+known.ID)
		p.o.Log.InfoContext(ctx, "a configuration row can be used again", slog.String("table", known.Table), slog.String("row", known.ID))
	}
	if soon := asked.Add(4 * p.o.Interval); !full && len(rows) > 0 && soon.Before(p.fullDue) {
		p.fullDue = soon
	}
	p.broken.Store(&rows)
}

// reportBroken logs each broken row once per full round and counts it every time.
func (p *Poller) reportBroken(ctx context.Context, rows []BrokenRow, now time.Time) {
	for _, row := range rows {
		if p.o.OnBroken != nil {
			p.o.OnBroken(row)
		}
		at := row.Table + " " + row.ID
		if last, known := p.reported[at]; known && now.Sub(last) < p.o.FullEvery {
			continue
		}
		p.reported[at] = now
		p.o.Log.ErrorContext(ctx, "a configuration row cannot be used; safe defaults hold for its owner",
			slog.String("table", row.Table), slog.String("row", row.ID), slog.Any("error", row.Err))
	}
}

// note keeps and logs the change between reaching the store and not reaching it.
func (p *Poller) note(ctx context.Context, err error) {
	before := p.failing.Load()
	switch {
	case err == nil:
		if before != nil && p.failing.CompareAndSwap(before, nil) {
			p.o.Log.InfoContext(ctx, "configuration is up to date again", slog.Duration("outage", p.o.Clock().Sub(before.since)))
		}
	case errors.Is(err, context.Canceled) || ctx.Err() != nil:
		// A caller that left, or had less time than the store may take, says nothing about the store: the next poll does.
	case before == nil:
		if p.failing.CompareAndSwap(nil, &failure{since: p.o.Clock(), err: err}) {
			p.o.Log.WarnContext(ctx, "configuration cannot be read; the last snapshot serves on", slog.Int64("version", p.directory.Snapshot().Version), slog.Any("error", err))
		}
	default:
		p.failing.CompareAndSwap(before, &failure{since: before.since, err: err})
	}
}
