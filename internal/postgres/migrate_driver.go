package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5/pgconn"
)

// atomicDriver makes a step and its mark one transaction. golang-migrate writes a dirty mark, runs the step and removes the
// mark, so a process killed in between stops the whole fleet; here the mark travels at the end of the step's own text, and
// Postgres runs several statements sent as one text in one transaction.
type atomicDriver struct {
	database.Driver

	target int  // the version after the step
	marked bool // the step's transaction has written it
}

// SetVersion notes the dirty mark instead of writing it, and writes the clean one unless Run has.
func (d *atomicDriver) SetVersion(version int, dirty bool) error {
	if dirty {
		d.target, d.marked = version, false
		return nil
	}
	if d.marked && d.target == version {
		return nil
	}
	return d.Driver.SetVersion(version, false)
}

// Run executes the step together with its mark.
func (d *atomicDriver) Run(step io.Reader) error {
	mark := "\n;TRUNCATE schema_migrations;"
	if d.target != database.NilVersion {
		mark += fmt.Sprintf("INSERT INTO schema_migrations (version, dirty) VALUES (%d, false);", d.target)
	}
	if err := d.Driver.Run(io.MultiReader(step, strings.NewReader(mark))); err != nil {
		return stepError(err)
	}
	d.marked = true
	return nil
}

// Lock passes the lock's error on in a form that can be unwrapped.
func (d *atomicDriver) Lock() error { return stepError(d.Driver.Lock()) }

// stepError drops the whole text of the step from golang-migrate's error, which cannot be unwrapped, and keeps the cause.
func stepError(err error) error {
	var byValue database.Error
	var byPointer *database.Error
	switch {
	case errors.As(err, &byPointer):
		byValue = *byPointer
	case !errors.As(err, &byValue):
		return err
	}
	if byValue.Line > 0 {
		return fmt.Errorf("%s, line %d: %w", byValue.Err, byValue.Line, byValue.OrigErr)
	}
	if byValue.Err != "" {
		return fmt.Errorf("%s: %w", byValue.Err, byValue.OrigErr)
	}
	return byValue.OrigErr
}

// sqlState is the SQLSTATE somewhere in err, or empty.
func sqlState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(stepError(err), &pgErr) {
		return pgErr.Code
	}
	return ""
}

// migrationLog turns golang-migrate's log lines into ours.
type migrationLog struct {
	ctx context.Context //nolint:containedctx // golang-migrate's logger has no context argument
	log *slog.Logger
}

func (l migrationLog) Printf(format string, v ...any) {
	// The library marks the direction: "7/u journal (9ms)".
	step := strings.NewReplacer("/u ", " up: ", "/d ", " down: ").Replace(strings.TrimSpace(fmt.Sprintf(format, v...)))
	l.log.InfoContext(l.ctx, "migration step done", slog.String("step", step))
}

func (l migrationLog) Verbose() bool { return false }
