package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pegel-dev/pegel/internal/usage"
)

const (
	// upkeepLock keeps replicas from doing the same work at the same time.
	upkeepLock = 0x7065_6765_6c08
	// settled is how long after its end an hour is rolled up: minutes are written ten seconds late when all is well.
	settled = 5 * time.Minute
	// pruneRows bounds one removal, and so how long it holds locks.
	pruneRows = 5_000
	// reportsKept is how long reports of replicas that are gone lie about.
	reportsKept = time.Minute
)

// level is a table of history, and the one that it is rolled up to.
type level struct {
	step   string // in usage_marks
	fine   string
	coarse string
	width  time.Duration // of the coarse table's rows
}

var (
	minutesToHours = level{"minute", "usage_minutes", "usage_hours", usage.StepHour}
	hoursToDays    = level{"hour", "usage_hours", "usage_days", usage.StepDay}
)

// Upkeep is in usage.HistoryStore. One call does at most one hour, one day, one late hour and one batch of removals of each
// table. Times are Postgres' when it is behind now, so that a replica whose clock is ahead ends no hour early.
func (h *UsageHistory) Upkeep(ctx context.Context, now time.Time, keep usage.Retention) (more bool, err error) {
	err = h.begin(ctx, "keep usage history in order", func(tx pgx.Tx) error {
		var mine bool
		if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1), LEAST($2, clock_timestamp())`, upkeepLock, now).Scan(&mine, &now); err != nil {
			return fmt.Errorf("take the lock: %w", err)
		}
		if !mine {
			return nil
		}
		for _, step := range []func() (bool, error){
			func() (bool, error) { return minutesToHours.roll(ctx, tx, now.Add(-settled)) },
			func() (bool, error) { return redoLate(ctx, tx) },
			func() (bool, error) { return rollDays(ctx, tx) },
			func() (bool, error) { return prune(ctx, tx, "minute", "usage_minutes", now.Add(-keep.Minutes)) },
			func() (bool, error) { return prune(ctx, tx, "hour", "usage_hours", now.Add(-keep.Hours)) },
			func() (bool, error) { return prune(ctx, tx, "day", "usage_days", now.Add(-keep.Days)) },
			func() (bool, error) { return dropReports(ctx, tx) },
		} {
			again, err := step()
			if err != nil {
				return err
			}
			more = more || again
		}
		return nil
	})
	return more, err
}

// roll sums up the next span of the fine table, if it ended before the time given.
func (l level) roll(ctx context.Context, tx pgx.Tx, before time.Time) (more bool, err error) {
	var from time.Time
	err = tx.QueryRow(ctx, `SELECT rolled_to FROM usage_marks WHERE step = $1 FOR UPDATE`, l.step).Scan(&from)
	if err != nil {
		return false, fmt.Errorf("read the mark of %s: %w", l.coarse, err)
	}
	to := from.Add(l.width)
	if to.After(before) {
		return false, nil
	}
	if err := l.sum(ctx, tx, from); err != nil {
		return false, err
	}
	// Spans without rows, of an installation that was off for a year say, are passed over at once.
	err = tx.QueryRow(ctx, `
		UPDATE usage_marks SET rolled_to = GREATEST($2::timestamptz, LEAST(date_bin($3, $4, 'epoch'),
			COALESCE((SELECT date_bin($3, min(at), 'epoch') FROM `+l.fine+` WHERE at >= $2), 'infinity')))
		WHERE step = $1 RETURNING rolled_to`, l.step, to, l.width, before).Scan(&from)
	if err != nil {
		return false, fmt.Errorf("move the mark of %s: %w", l.coarse, err)
	}
	return !from.Add(l.width).After(before), nil
}

// sum makes the coarse rows of one span anew from all of its fine rows.
func (l level) sum(ctx context.Context, tx pgx.Tx, from time.Time) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO `+l.coarse+` (tenant_id, kind, at, name, admitted, slowed, refused, exempt, units, peak)
		SELECT tenant_id, kind, $1, name, sum(admitted), sum(slowed), sum(refused), sum(exempt), sum(units), max(peak)
		FROM `+l.fine+` WHERE at >= $1 AND at < $2 GROUP BY tenant_id, kind, name
		ON CONFLICT (tenant_id, kind, at, name) DO UPDATE SET admitted = EXCLUDED.admitted, slowed = EXCLUDED.slowed,
			refused = EXCLUDED.refused, exempt = EXCLUDED.exempt, units = EXCLUDED.units, peak = EXCLUDED.peak`, from, from.Add(l.width))
	if err != nil {
		return fmt.Errorf("roll up to %s: %w", l.coarse, err)
	}
	return nil
}

// rollDays rolls up the next day, when all of its hours are.
func rollDays(ctx context.Context, tx pgx.Tx) (more bool, err error) {
	var hours time.Time
	if err := tx.QueryRow(ctx, `SELECT rolled_to FROM usage_marks WHERE step = 'minute'`).Scan(&hours); err != nil {
		return false, fmt.Errorf("read the mark of usage_hours: %w", err)
	}
	return hoursToDays.roll(ctx, tx, hours)
}

// redoLate does an hour again that got minutes after it was done, and its day. One whose other minutes are gone already stays
// as it is.
func redoLate(ctx context.Context, tx pgx.Tx) (more bool, err error) {
	var hour time.Time
	var complete, dayDone bool
	err = tx.QueryRow(ctx, `
		WITH late AS (DELETE FROM usage_late WHERE hour = (SELECT min(hour) FROM usage_late) RETURNING hour)
		SELECT hour, hour >= (SELECT pruned_to FROM usage_marks WHERE step = 'minute'),
			date_bin('1 day', hour, 'epoch') < (SELECT rolled_to FROM usage_marks WHERE step = 'hour')
				AND date_bin('1 day', hour, 'epoch') >= (SELECT pruned_to FROM usage_marks WHERE step = 'hour')
		FROM late`).Scan(&hour, &complete, &dayDone)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find late minutes: %w", err)
	}
	if complete {
		err = minutesToHours.sum(ctx, tx, hour)
		if err == nil && dayDone {
			err = hoursToDays.sum(ctx, tx, hour.UTC().Truncate(usage.StepDay))
		}
	}
	return true, err
}

// prune removes a batch of rows that are older than they are to be kept and, where there is a coarser table, rolled up.
func prune(ctx context.Context, tx pgx.Tx, step, table string, before time.Time) (more bool, err error) {
	err = tx.QueryRow(ctx, `
		UPDATE usage_marks SET pruned_to = GREATEST(pruned_to, LEAST(rolled_to, $2)) WHERE step = $1 RETURNING LEAST(rolled_to, $2)`,
		step, before).Scan(&before)
	if err != nil {
		return false, fmt.Errorf("move the mark of %s: %w", table, err)
	}
	tag, err := tx.Exec(ctx, `DELETE FROM `+table+` WHERE ctid = ANY (ARRAY(SELECT ctid FROM `+table+` WHERE at < $1 LIMIT $2))`, before, pruneRows)
	if err != nil {
		return false, fmt.Errorf("remove old rows of %s: %w", table, err)
	}
	return tag.RowsAffected() == pruneRows, nil
}

func dropReports(ctx context.Context, tx pgx.Tx) (bool, error) {
	_, err := tx.Exec(ctx, `DELETE FROM usage_reports WHERE reported_at < clock_timestamp() - $1::interval`, reportsKept)
	if err != nil {
		return false, fmt.Errorf("remove the reports of replicas that are gone: %w", err)
	}
	return false, nil
}
