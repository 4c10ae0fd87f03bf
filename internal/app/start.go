package app

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pegel-dev/pegel/internal/postgres"
)

const (
	// firstRetry and lastRetry bound the pause between tries while Postgres is away at a start; it doubles, with jitter.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 2 * time.Second
	// repeatWarning is how often the log says again what a start waits for.
	repeatWarning = 30 * time.Second

	// pruneEvery and pruneBatch are how counters that no decision needs any more leave Postgres.
	pruneEvery = 30 * time.Second
	pruneBatch = 5_000
	pruneLimit = 10 * time.Second

	// ownChangeLimit bounds how long the answer to an administrator's change waits for this replica to have loaded it.
	ownChangeLimit = 500 * time.Millisecond
)

// start migrates the database and loads the configuration, however long Postgres takes to come. It returns nil when that
// is done or ctx ends, and an error only for what waiting does not cure.
func (a *App) start(ctx context.Context) error {
	steps := []struct {
		doing string
		do    func(context.Context) error
	}{
		{"migrate the database", func(ctx context.Context) error {
			return postgres.MigrateUp(ctx, string(a.cfg.DatabaseURL), a.log)
		}},
		{"install the defaults", a.repository.InstallDefaults},
		{"load the configuration", a.poller.Refresh},
	}
	for _, step := range steps {
		if err := a.persist(ctx, step.doing, step.do); err != nil {
			return err
		}
	}
	a.awaitSessions(ctx)
	if ctx.Err() == nil {
		a.health.serve()
		if a.rls != nil {
			a.rls.Ready()
		}
		close(a.ready)
		a.log.Info("ready", slog.Int("tenants", a.directory.Snapshot().TenantCount()))
	}
	return nil
}

// persist repeats a step until it succeeds, ctx ends, or the error is one that only a person can cure.
func (a *App) persist(ctx context.Context, doing string, do func(context.Context) error) error {
	pause := firstRetry
	var warned time.Time
	for {
		err := do(ctx)
		if err == nil || ctx.Err() != nil {
			return nil //nolint:nilerr // told to end: that a step was cut is no news
		}
		var dirty *postgres.DirtyError
		if errors.As(err, &dirty) {
			return err
		}
		if now := a.now(); now.Sub(warned) >= repeatWarning {
			warned = now
			a.log.Warn("waiting for Postgres", slog.String("to", doing), slog.Any("error", err))
		}
		if !sleep(ctx, pause/2+rand.N(pause)) { //nolint:gosec // jitter is no secret
			return nil
		}
		pause = min(2*pause, lastRetry)
	}
}

// sleep waits for d and reports whether ctx is still good.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// work is everything that goes on in the background of a serving replica, until ctx ends.
func (a *App) work(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { a.poller.Run(ctx) })
	all.Go(func() { a.prune(ctx) })
	all.Go(func() { a.lastUsed.Run(ctx) })
	all.Go(func() { a.reporter.Run(ctx) })
	all.Go(func() { a.journal.Run(ctx) })
	all.Go(func() { a.refusals.Run(ctx) })
	all.Go(func() { a.alerts.Run(ctx) })
	all.Wait()
}

// prune forgets counters that no decision needs any more: here, and in Postgres. Every replica does, a little out of step with
// the others.
func (a *App) prune(ctx context.Context) {
	for sleep(ctx, pruneEvery/2+rand.N(pruneEvery)) { //nolint:gosec // jitter is no secret
		a.stores.sweep()
		for {
			limit, cancel := context.WithTimeout(ctx, pruneLimit)
			n, err := a.stores.postgres.Prune(limit, pruneBatch)
			cancel()
			if err != nil && ctx.Err() == nil {
				a.log.Warn("old counters cannot be pruned now", slog.Any("error", err))
			}
			if err != nil || n < pruneBatch {
				break
			}
		}
	}
}

// ownChange makes an administrator's change act on this replica before its answer is sent; the others follow within their
// poll.
func (a *App) ownChange(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, ownChangeLimit)
	defer cancel()
	_ = a.poller.Refresh(ctx) // it has logged the failure; the next poll makes up for it
}
