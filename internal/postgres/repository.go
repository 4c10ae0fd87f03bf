package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

const (
	// answerWithin is the default of WithAnswerWithin: callers answer within 2 s.
	answerWithin = 1500 * time.Millisecond
	// loadWithin bounds one load of the configuration, which reads whole tables.
	loadWithin = 30 * time.Second
)

// Repository is the configuration in Postgres. It is safe for concurrent use. Exported methods own their transaction;
// inside Idempotent they join the one that is there.
type Repository struct {
	pool         *pgxpool.Pool
	answerWithin time.Duration
}

var (
	_ tenants.Repository          = (*Repository)(nil)
	_ tenants.ExceptionRepository = (*Repository)(nil)
	_ tenants.Loader              = (*Repository)(nil)
	_ tenants.UseMarker           = (*Repository)(nil)
)

// NewRepository works on a migrated database. The caller keeps the pool and closes it.
func NewRepository(pool *pgxpool.Pool, options ...Option) *Repository {
	r := &Repository{pool: pool, answerWithin: answerWithin}
	for _, o := range options {
		o(r)
	}
	return r
}

// Option changes a Repository from its defaults.
type Option func(*Repository)

// WithAnswerWithin bounds every method but Load, waiting for a connection included; default 1.5 s.
func WithAnswerWithin(d time.Duration) Option { return func(r *Repository) { r.answerWithin = d } }

// querier is what a pool and a transaction have in common.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// txKey carries the transaction of Idempotent to the methods that its change calls.
type txKey struct{}

func joined(ctx context.Context) (pgx.Tx, bool) {
	tx, ok := ctx.Value(txKey{}).(pgx.Tx)
	return tx, ok
}

// read runs a query, or a statement that is no administrative change, within the bound and translates its error.
func (r *Repository) read(ctx context.Context, doing string, query func(ctx context.Context, q querier) error) error {
	bounded, cancel := context.WithTimeout(ctx, r.answerWithin)
	defer cancel()
	var q querier = r.pool
	if tx, ok := joined(ctx); ok {
		q = tx
	}
	return translate(ctx, doing, query(bounded, q))
}

// change is one administrative change under way.
type change struct {
	pgx.Tx

	actor audit.Actor
	// version is the configuration version that this change makes; every row it touches is stamped with it.
	version int64
}

// change runs fn in a transaction of its own, or in a savepoint of the one in ctx, so that a change that fails inside
// Idempotent leaves that transaction usable. The configuration version is raised first: its row is the lock that puts
// changes in order.
func (r *Repository) change(ctx context.Context, actor audit.Actor, doing string, fn func(ctx context.Context, c *change) error) error {
	if !actor.Valid() {
		return fmt.Errorf("%s: %w", doing, audit.ErrNoActor)
	}
	err := r.transact(ctx, doing, func(ctx context.Context, tx pgx.Tx) error {
		c := &change{Tx: tx, actor: actor}
		// pegel.change tells the triggers that this is no edit by hand.
		err := tx.QueryRow(ctx, `
			UPDATE config_version SET version = version + 1, changed_at = now()
			RETURNING version, set_config('pegel.change', 'by the service', true)`).Scan(&c.version, nil)
		if err != nil {
			return fmt.Errorf("raise the configuration version: %w", err)
		}
		return fn(ctx, c)
	})
	if errors.Is(err, errNothingToDo) {
		return nil
	}
	return err
}

// errNothingToDo rolls a change back that would change nothing; it never leaves the package.
var errNothingToDo = errors.New("nothing to change")

// transact is the one place where transactions begin and end.
func (r *Repository) transact(ctx context.Context, doing string, fn func(ctx context.Context, tx pgx.Tx) error) error {
	bounded, cancel := context.WithTimeout(ctx, r.answerWithin)
	defer cancel()
	if outer, ok := joined(ctx); ok {
		return translate(ctx, doing, pgx.BeginFunc(bounded, outer, func(tx pgx.Tx) error { return fn(bounded, tx) }))
	}
	conn, err := r.pool.Acquire(bounded)
	if err != nil {
		return translate(ctx, doing, err)
	}
	defer conn.Release()
	err = pgx.BeginFunc(bounded, conn, func(tx pgx.Tx) error { return fn(bounded, tx) })
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == codeReadOnly {
		// The session is on a server that was demoted: a new one may find the new primary.
		_ = conn.Conn().Close(bounded)
	}
	return translate(ctx, doing, err)
}

// record writes the audit entry of a change. before and after are what an administrator sees of the object, nil when there is
// none; they hold no secret.
func (c *change) record(ctx context.Context, action, resource, id string, before, after any) error {
	diff, err := audit.Diff(before, after)
	if err != nil {
		return err
	}
	if _, err = c.Exec(ctx, insertAudit, c.auditArgs(action, resource, id, diff)...); err != nil {
		return fmt.Errorf("write the audit entry: %w", err)
	}
	return nil
}

// insertAudit takes auditArgs.
const insertAudit = `
	INSERT INTO audit_log (actor_kind, actor_id, actor_name, actor_address, request_id, action, resource, resource_id, diff)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`

func (c *change) auditArgs(action, resource, id string, diff []audit.Change) []any {
	return []any{
		c.actor.Kind, clip(c.actor.ID), clip(c.actor.Name), clip(c.actor.Address), clip(c.actor.RequestID), action, resource, id, diff,
	}
}

// insertDeletion notes a deletion for the replicas that have yet to hear of it.
const insertDeletion = `INSERT INTO config_deletions (kind, object_id, limit_name, changed_in) VALUES ($1, $2, $3, $4)`

// bury notes a deletion and forgets old ones.
func (c *change) bury(ctx context.Context, kind string, objectID int64, limitName string) error {
	if _, err := c.Exec(ctx, insertDeletion, kind, objectID, limitName, c.version); err != nil {
		return fmt.Errorf("note the deletion: %w", err)
	}
	return c.forgetDeletions(ctx)
}

// forgetDeletions drops notes of more than a day ago: a replica that far behind loads everything.
func (c *change) forgetDeletions(ctx context.Context) error {
	_, err := c.Exec(ctx, `
		WITH forgotten AS (
			DELETE FROM config_deletions WHERE id IN (
				SELECT id FROM config_deletions WHERE deleted_at < now() - interval '1 day' ORDER BY id LIMIT 1000)
			RETURNING changed_in)
		UPDATE config_version SET deletions_since = GREATEST(deletions_since, (SELECT max(changed_in) FROM forgotten))
		WHERE EXISTS (SELECT FROM forgotten)`)
	if err != nil {
		return fmt.Errorf("forget old deletions: %w", err)
	}
	return nil
}

// clip makes foreign text fit for the audit log and its indexes.
func clip(s string) string {
	const most = 512 // bytes
	if len(s) > most {
		s = s[:most]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, ""), "\x00", "")
}
