package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pegel-dev/pegel/internal/journal"
)

// Partitions of the journal: what is dropped at once, and how far ahead they are made.
const (
	requestLogSpan = 24 * time.Hour
	decisionsSpan  = 6 * time.Hour
	partitionAhead = 48 * time.Hour
)

// journalWithin bounds a write of the journal that has no nearer deadline of its own.
const journalWithin = 30 * time.Second

const codeCheckViolation = "23514" // also: no partition for a row

// Journal is the request log and the explanations in Postgres. It is safe for concurrent use.
type Journal struct {
	reads, writes *Repository
	// made are the partitions that are known to be there, by table and start.
	made sync.Map
}

var (
	_ journal.Sink   = (*Journal)(nil)
	_ journal.Reader = (*Journal)(nil)
)

// NewJournal works on a migrated database. The caller keeps the pool and closes it. Options are about what reads.
func NewJournal(pool *pgxpool.Pool, options ...Option) *Journal {
	return &Journal{reads: NewRepository(pool, options...), writes: NewRepository(pool, WithAnswerWithin(journalWithin))}
}

// WriteJournal stores a batch: the request log by COPY; explanations by upsert, because a decision that is repeated is there
// already. What is lost when Postgres itself crashes is less than a second (synchronous_commit=off).
func (j *Journal) WriteJournal(ctx context.Context, b *journal.Batch) error {
	if err := j.makePartitions(ctx, b); err != nil {
		return err
	}
	err := j.writes.transact(ctx, "write the journal", func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT set_config('synchronous_commit', 'off', true)`); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			INSERT INTO journal_writers AS w (writer, batch) VALUES ($1, $2)
			ON CONFLICT (writer) DO UPDATE SET batch = excluded.batch, written_at = now() WHERE w.batch < excluded.batch`, b.Writer, b.Number)
		if err != nil || tag.RowsAffected() == 0 { // written before, by a try whose outcome nobody heard of
			return err
		}
		if err := writeRequests(ctx, tx, b.Requests); err != nil {
			return err
		}
		if err := writeExplanations(ctx, tx, b.Explanations); err != nil {
			return err
		}
		return writeGaps(ctx, tx, b.Gaps)
	})
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == codeCheckViolation {
		j.made.Clear() // a partition is gone: the next try makes it again
	}
	return err
}

var requestColumns = []string{
	"id", "at", "decision_id", "count", "decision", "shadow", "reason", "tenant", "plan", "user_id", "key_id", "address", "service",
	"method", "path", "door", "limit_name", "used", "quota", "cost", "delay_ms", "source", "replica",
}

func writeRequests(ctx context.Context, tx pgx.Tx, requests []journal.Request) error {
	if len(requests) == 0 {
		return nil
	}
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"request_log"}, requestColumns, pgx.CopyFromSlice(len(requests), func(i int) ([]any, error) {
		r := &requests[i]
		return []any{
			r.ID, r.At,
			uuid.NullUUID{UUID: r.DecisionID, Valid: r.DecisionID != uuid.Nil},
			r.Count, string(r.Verdict), r.Shadow, string(r.Reason),
			r.Tenant, r.Plan, r.User, r.Key, r.Address, r.Service, r.Method, r.Path, string(r.Door), r.LimitName, r.Used, r.Quota, r.Cost,
			r.Delay.Milliseconds(), string(r.Source), r.Replica,
		}, nil
	}))
	return err
}

func writeExplanations(ctx context.Context, tx pgx.Tx, explanations []journal.Explanation) error {
	if len(explanations) == 0 {
		return nil
	}
	n := len(explanations)
	ids, at, last, counts, bodies := make([]uuid.UUID, n), make([]time.Time, n), make([]time.Time, n), make([]int64, n), make([]string, n)
	for i := range explanations {
		e := &explanations[i]
		body, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("explanation %s: %w", e.ID, err)
		}
		ids[i], at[i], last[i], counts[i], bodies[i] = e.ID, e.At, e.LastAt, e.Count, string(body)
	}
	// A hit that was to wait and found no place is told of twice: the second time says what became of it.
	_, err := tx.Exec(ctx, `
		INSERT INTO decisions AS d (id, at, last_at, count, body)
		SELECT id, at, last_at, count, body::jsonb
		FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[], $4::bigint[], $5::text[]) AS n (id, at, last_at, count, body)
		ON CONFLICT (id) DO UPDATE SET
			count = CASE WHEN excluded.body->>'reason' = 'too-many-held' THEN d.count ELSE d.count + excluded.count END,
			last_at = greatest(d.last_at, excluded.last_at),
			body = CASE WHEN excluded.body->>'reason' = 'too-many-held' THEN excluded.body ELSE d.body END`, ids, at, last, counts, bodies)
	return err
}

func writeGaps(ctx context.Context, tx pgx.Tx, gaps []journal.Gap) error {
	for i := range gaps {
		g := &gaps[i]
		_, err := tx.Exec(ctx, `INSERT INTO journal_gaps (replica, since, until, requests, decisions) VALUES ($1, $2, $3, $4, $5)`,
			g.Replica, g.From, g.To, g.Requests, g.Decisions)
		if err != nil {
			return err
		}
	}
	return nil
}

// makePartitions makes those that a batch needs and nobody has made ahead: after a start, or when a replica's clock is wrong.
func (j *Journal) makePartitions(ctx context.Context, b *journal.Batch) error {
	for i := range b.Requests {
		if err := j.makePartition(ctx, "request_log", idTime(b.Requests[i].ID), requestLogSpan); err != nil {
			return err
		}
	}
	for i := range b.Explanations {
		if err := j.makePartition(ctx, "decisions", idTime(b.Explanations[i].ID), decisionsSpan); err != nil {
			return err
		}
	}
	return nil
}

// partition names one, by its table and the number of its span since 1970.
type partition struct {
	table  string
	number int64
}

func (j *Journal) makePartition(ctx context.Context, table string, at time.Time, span time.Duration) error {
	p := partition{table, at.Unix() / int64(span/time.Second)}
	if _, made := j.made.Load(p); made {
		return nil
	}
	err := j.writes.read(ctx, "make a partition of "+table, func(ctx context.Context, q querier) error {
		_, err := q.Exec(ctx, `SELECT journal_make_partition($1, $2, $3)`, table, at, span)
		return err
	})
	if err == nil {
		j.made.Store(p, true)
	}
	return err
}

// MaintainJournal makes partitions ahead and drops the old ones, one after another. What is old is Postgres' word: a replica whose
// clock is wrong drops nothing.
func (j *Journal) MaintainJournal(ctx context.Context, retention time.Duration) error {
	var now time.Time
	err := j.writes.read(ctx, "read the time", func(ctx context.Context, q querier) error {
		return q.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now)
	})
	if err != nil {
		return err
	}
	j.made.Clear() // somebody may have dropped some by hand
	for _, t := range []struct {
		table      string
		span, keep time.Duration
	}{{"request_log", requestLogSpan, retention}, {"decisions", decisionsSpan, journal.ExplainedFor}} {
		for at := now; at.Before(now.Add(partitionAhead)); at = at.Add(t.span) {
			if err := j.makePartition(ctx, t.table, at, t.span); err != nil {
				return err
			}
		}
		if err := j.dropPartitions(ctx, t.table, now.Add(-t.keep)); err != nil {
			return err
		}
	}
	return j.writes.read(ctx, "forget old gaps", func(ctx context.Context, q querier) error {
		if _, err := q.Exec(ctx, `DELETE FROM journal_gaps WHERE until < $1`, now.Add(-retention)); err != nil {
			return err
		}
		_, err := q.Exec(ctx, `DELETE FROM journal_writers WHERE written_at < now() - interval '1 day'`)
		return err
	})
}

func (j *Journal) dropPartitions(ctx context.Context, table string, before time.Time) error {
	for dropped := true; dropped; {
		err := j.writes.read(ctx, "drop a partition of "+table, func(ctx context.Context, q querier) error {
			return q.QueryRow(ctx, `SELECT journal_drop_partition($1, $2)`, table, before).Scan(&dropped)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// idTime is the moment in a UUIDv7.
func idTime(id uuid.UUID) time.Time {
	sec, nsec := id.Time().UnixTime()
	return time.Unix(sec, nsec)
}

// idAt is the smallest UUIDv7 of a moment, to the millisecond, as journal_id makes it.
func idAt(at time.Time) uuid.UUID {
	const most = 1<<48 - 1
	ms := uint64(min(max(0, at.UnixMilli()), most))
	var id uuid.UUID
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i) & math.MaxUint8)
	}
	return id
}
