package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pegel-dev/pegel/internal/alert"
)

const (
	// judgeWithin bounds one judgement, which may read and write alert.MaxStates rows and has to wait for the others'.
	judgeWithin = 10 * time.Second
	// maxWaiting bounds the messages that wait: what is said beyond it is written down as not sent.
	maxWaiting = 20_000
)

// Alerts keeps alerts' states, incidents and messages. It is safe for concurrent use, in one process and between replicas.
type Alerts struct {
	repository *Repository
	now        func() time.Time
}

var (
	_ alert.Ledger    = (*Alerts)(nil)
	_ alert.Incidents = (*Repository)(nil)
)

// NewAlerts keeps them in a repository's database. Its clock is Postgres', so that replicas with wrong clocks agree; a test
// that moves time brings its own.
func NewAlerts(r *Repository, now func() time.Time) *Alerts { return &Alerts{repository: r, now: now} }

// clock is the time of a transaction.
func (a *Alerts) clock(ctx context.Context, q querier) (now time.Time, err error) {
	if a.now != nil {
		return a.now().Truncate(time.Microsecond), nil
	}
	err = q.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now)
	return now.UTC(), err
}

// within runs fn in a transaction of its own.
func (a *Alerts) within(ctx context.Context, doing string, limit time.Duration, fn func(ctx context.Context, tx pgx.Tx) error) error {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return translate(ctx, doing, pgx.BeginFunc(bounded, a.repository.pool, func(tx pgx.Tx) error { return fn(bounded, tx) }))
}

// Judge implements alert.Ledger. The lock on alert_judgement lets one judge at a time.
func (a *Alerts) Judge(ctx context.Context, self alert.Replica, judge func(alert.Book) alert.Ruling) error {
	return a.within(ctx, "judge alerts", judgeWithin, func(ctx context.Context, tx pgx.Tx) error {
		var judgedAt *time.Time
		if err := tx.QueryRow(ctx, `SELECT judged_at FROM alert_judgement FOR UPDATE`).Scan(&judgedAt); err != nil {
			return err
		}
		now, err := a.clock(ctx, tx)
		if err != nil {
			return err
		}
		book := alert.Book{Now: now}
		if judgedAt != nil {
			book.JudgedAt = judgedAt.UTC()
		}
		if book.Replicas, err = hear(ctx, tx, self, now); err != nil {
			return err
		}
		if book.States, err = loadStates(ctx, tx); err != nil {
			return err
		}
		if book.Open, err = loadOpen(ctx, tx); err != nil {
			return err
		}
		ruling := judge(book)
		if err := storeStates(ctx, tx, &ruling); err != nil {
			return err
		}
		if err := storeChanges(ctx, tx, &ruling, now); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE alert_judgement SET judged_at = $1`, now)
		return err
	})
}

// hear writes down what a replica says of itself and reads what the others last said.
func hear(ctx context.Context, q querier, self alert.Replica, now time.Time) ([]alert.Replica, error) {
	_, err := q.Exec(ctx, `
		WITH gone AS (DELETE FROM alert_replicas WHERE seen_at < $6 AND instance <> $1)
		INSERT INTO alert_replicas (instance, name, source, redis, postgres, seen_at) VALUES ($1, $2, $3, $4, $5, $7)
		ON CONFLICT (instance) DO UPDATE SET source = EXCLUDED.source, redis = EXCLUDED.redis, postgres = EXCLUDED.postgres, seen_at = EXCLUDED.seen_at`,
		clip(self.Instance), clip(self.Name), self.Source, self.Redis, self.Postgres, now.Add(-alert.ReplicaTTL), now)
	if err != nil {
		return nil, fmt.Errorf("write the replica: %w", err)
	}
	return collect[alert.Replica](ctx, q, `SELECT name, instance, source, redis, postgres FROM alert_replicas WHERE seen_at >= $1 ORDER BY name, instance LIMIT 1000`,
		now.Add(-alert.ReplicaTTL))
}

type stateRow struct {
	Kind, Subject     string
	Value             float64
	SeenAt, AsOf      time.Time
	HighSince, HighAt *time.Time
	Peak              float64
	Open              bool
	QuietSince        *time.Time
}

func loadStates(ctx context.Context, q querier) (map[alert.Key]alert.State, error) {
	rows, err := collect[stateRow](ctx, q, `SELECT kind, subject, value, seen_at, as_of, high_since, high_at, peak, open, quiet_since FROM alert_states`)
	if err != nil {
		return nil, fmt.Errorf("read states: %w", err)
	}
	states := make(map[alert.Key]alert.State, len(rows))
	for i := range rows {
		r := &rows[i]
		states[alert.Key{Kind: alert.Kind(r.Kind), Subject: r.Subject}] = alert.State{
			Last: alert.Level{Value: r.Value, At: r.SeenAt.UTC()}, AsOf: r.AsOf.UTC(),
			HighSince: orZero(r.HighSince).UTC(), HighAt: orZero(r.HighAt).UTC(), Peak: r.Peak, Open: r.Open, QuietSince: orZero(r.QuietSince).UTC(),
		}
	}
	return states, nil
}

// storeStates writes in one statement each, whatever their number.
func storeStates(ctx context.Context, q querier, ruling *alert.Ruling) error {
	if len(ruling.Forget) > 0 {
		kinds, subjects := make([]string, len(ruling.Forget)), make([]string, len(ruling.Forget))
		for i, k := range ruling.Forget {
			kinds[i], subjects[i] = string(k.Kind), k.Subject
		}
		_, err := q.Exec(ctx, `DELETE FROM alert_states s USING unnest($1::text[], $2::text[]) AS f (kind, subject) WHERE s.kind = f.kind AND s.subject = f.subject`, kinds, subjects)
		if err != nil {
			return fmt.Errorf("forget states: %w", err)
		}
	}
	if len(ruling.States) == 0 {
		return nil
	}
	n := len(ruling.States)
	kinds, subjects, values, peaks, open := make([]string, 0, n), make([]string, 0, n), make([]float64, 0, n), make([]float64, 0, n), make([]bool, 0, n)
	var seen, asOf, highSince, highAt, quiet []*time.Time
	for k, s := range ruling.States {
		kinds, subjects, values, peaks, open = append(kinds, string(k.Kind)), append(subjects, k.Subject), append(values, s.Last.Value), append(peaks, s.Peak), append(open, s.Open)
		seen, asOf = append(seen, &s.Last.At), append(asOf, &s.AsOf)
		highSince, highAt, quiet = append(highSince, nullable(s.HighSince)), append(highAt, nullable(s.HighAt)), append(quiet, nullable(s.QuietSince))
	}
	_, err := q.Exec(ctx, `
		INSERT INTO alert_states (kind, subject, value, seen_at, as_of, high_since, high_at, peak, open, quiet_since)
		SELECT * FROM unnest($1::text[], $2::text[], $3::float8[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[], $7::timestamptz[], $8::float8[], $9::bool[], $10::timestamptz[])
		ON CONFLICT (kind, subject) DO UPDATE SET value = EXCLUDED.value, seen_at = EXCLUDED.seen_at, as_of = EXCLUDED.as_of,
			high_since = EXCLUDED.high_since, high_at = EXCLUDED.high_at, peak = EXCLUDED.peak, open = EXCLUDED.open, quiet_since = EXCLUDED.quiet_since`,
		kinds, subjects, values, seen, asOf, highSince, highAt, peaks, open, quiet)
	if err != nil {
		return fmt.Errorf("write states: %w", err)
	}
	return nil
}

// storeChanges opens, resolves and reminds. An incident that is open already stays, and is not spoken of again.
func storeChanges(ctx context.Context, tx pgx.Tx, ruling *alert.Ruling, now time.Time) error {
	if len(ruling.Open)+len(ruling.Resolve)+len(ruling.Remind) == 0 {
		return nil
	}
	var waiting int
	if err := tx.QueryRow(ctx, `SELECT count(*) FROM outbox WHERE done_at IS NULL`).Scan(&waiting); err != nil {
		return fmt.Errorf("count messages: %w", err)
	}
	var batch pgx.Batch
	for i := range ruling.Open {
		if err := queueOpen(&batch, &ruling.Open[i], now, &waiting); err != nil {
			return err
		}
	}
	for i := range ruling.Resolve {
		if err := queueUpdate(&batch, &ruling.Resolve[i], now, &waiting); err != nil {
			return err
		}
	}
	for i := range ruling.Remind {
		if err := queueUpdate(&batch, &ruling.Remind[i], now, &waiting); err != nil {
			return err
		}
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("write incidents: %w", err)
	}
	return nil
}

// messageRows are the arguments of insertMessages.
func messageRows(messages []alert.Message, now time.Time, waiting *int) ([]any, error) {
	var channels, occasions, to, notices, errs []string
	for i := range messages {
		m := &messages[i]
		raw, err := json.Marshal(&m.Notice)
		if err != nil {
			return nil, fmt.Errorf("write a notice: %w", err)
		}
		fault := ""
		if *waiting++; *waiting > maxWaiting {
			fault = "too many messages are waiting"
		}
		channels, occasions, to = append(channels, string(m.Channel)), append(occasions, string(m.Notice.Occasion)), append(to, m.To)
		notices, errs = append(notices, string(raw)), append(errs, fault)
	}
	return []any{channels, occasions, to, notices, errs, now}, nil
}

// insertMessages writes the messages of the incidents in `these`; %[1]d is the number of its first argument. The notices
// get the incident's id, which they could not know.
const insertMessages = `
	INSERT INTO outbox (incident_id, channel, occasion, recipient, notice, created_at, due_at, done_at, error)
	SELECT these.id, m.channel, m.occasion, m.recipient, jsonb_set(m.notice::jsonb, '{incident_id}', to_jsonb(these.id)), $6, $6,
		CASE WHEN m.error <> '' THEN $6::timestamptz END, m.error
	FROM these, unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) WITH ORDINALITY AS m (channel, occasion, recipient, notice, error, n)
	ORDER BY m.n`

func queueOpen(batch *pgx.Batch, c *alert.Change, now time.Time, waiting *int) error {
	args, err := messageRows(c.Messages, now, waiting)
	if err != nil {
		return err
	}
	in := &c.Incident
	facts, err := json.Marshal(&in.Facts)
	if err != nil {
		return fmt.Errorf("write the facts: %w", err)
	}
	batch.Queue(`
		WITH these AS (
			INSERT INTO incidents (kind, subject, tenant, facts, since, opened_at, value, peak, remind_at)
			VALUES ($7, $8, $9, $10, $11, $12, $13, $14, $15)
			ON CONFLICT (kind, subject) WHERE resolved_at IS NULL DO NOTHING RETURNING id)`+insertMessages,
		append(args, string(in.Kind), clip(in.Subject), in.Tenant, string(facts), in.Since, in.OpenedAt, in.Value, in.Peak, nullable(in.RemindAt))...)
	return nil
}

// queueUpdate writes an incident that is open as it is now. It is named by its key: it may have opened in the same ruling.
func queueUpdate(batch *pgx.Batch, c *alert.Change, now time.Time, waiting *int) error {
	args, err := messageRows(c.Messages, now, waiting)
	if err != nil {
		return err
	}
	in := &c.Incident
	batch.Queue(`
		WITH these AS (
			UPDATE incidents SET resolved_at = $9, value = $10, peak = $11, remind_at = $12, reminders = $13
			WHERE kind = $7 AND subject = $8 AND resolved_at IS NULL RETURNING id)`+insertMessages,
		append(args, string(in.Kind), clip(in.Subject), nullable(in.ResolvedAt), in.Value, in.Peak, nullable(in.RemindAt), in.Reminders)...)
	return nil
}

// Queue implements alert.Ledger.
func (a *Alerts) Queue(ctx context.Context) (waiting, open int64, err error) {
	err = a.repository.read(ctx, "count alerts", func(ctx context.Context, q querier) error {
		return q.QueryRow(ctx, `SELECT (SELECT count(*) FROM outbox WHERE done_at IS NULL), (SELECT count(*) FROM incidents WHERE resolved_at IS NULL)`).
			Scan(&waiting, &open)
	})
	return waiting, open, err
}
