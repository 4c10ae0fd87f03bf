package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pegel-dev/pegel/internal/alert"
)

const (
	outboxWithin = 5 * time.Second
	// tidyBatch bounds the rows of one statement of Tidy.
	tidyBatch = 1000
)

type messageRow struct {
	ID               int64
	Channel          string
	Recipient        string
	Notice           []byte
	MessageID        uuid.UUID
	CreatedAt        time.Time
	Attempts, Unsure int
}

// claimable is what may be sent now: due, in nobody's hands, and not overtaking an earlier message of its incident.
const claimable = `o.channel = $1 AND o.done_at IS NULL AND o.due_at <= $2 AND (o.leased_until IS NULL OR o.leased_until <= $2)
	AND NOT EXISTS (SELECT FROM outbox e WHERE e.incident_id = o.incident_id AND e.channel = o.channel AND e.id < o.id AND e.done_at IS NULL)`

// Claim implements alert.Ledger. What two attempts left in doubt is given up here: a worker that died can tell nobody.
func (a *Alerts) Claim(ctx context.Context, channel alert.Channel, worker string) (claimed []alert.Message, err error) {
	err = a.within(ctx, "claim messages", outboxWithin, func(ctx context.Context, tx pgx.Tx) error {
		now, err := a.clock(ctx, tx)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			UPDATE outbox SET done_at = $2, leased_until = NULL, error = $4
			WHERE channel = $1 AND done_at IS NULL AND leased_until <= $2 AND unsure >= $3`, string(channel), now, alert.MaxUnsure, alert.TwiceInDoubt)
		if err != nil {
			return fmt.Errorf("give up what is in doubt: %w", err)
		}
		ids, batch, err := pick(ctx, tx, channel, now)
		if err != nil || len(ids) == 0 {
			return err
		}
		rows, err := collect[messageRow](ctx, tx, `
			UPDATE outbox SET attempts = attempts + 1, unsure = unsure + 1, batch = $2, worker = $3, leased_until = $4
			WHERE id = ANY ($1) RETURNING id, channel, recipient, notice, message_id, created_at, attempts, unsure`,
			ids, batch, worker, now.Add(alert.Lease))
		if err != nil {
			return fmt.Errorf("lease messages: %w", err)
		}
		claimed, err = messagesOf(rows)
		return err
	})
	return claimed, err
}

// pick locks what is next: the batch that an attempt has begun with, or many that have just come and that one digest can
// tell, or one message.
func pick(ctx context.Context, tx pgx.Tx, channel alert.Channel, now time.Time) (ids []int64, batch int64, err error) {
	first, err := collect[struct {
		ID       int64
		Batch    *int64
		Occasion string
	}](ctx, tx, `SELECT o.id, o.batch, o.occasion FROM outbox o WHERE `+claimable+` ORDER BY o.id LIMIT 1 FOR UPDATE OF o SKIP LOCKED`, string(channel), now)
	if err != nil || len(first) == 0 {
		return nil, 0, err
	}
	head := first[0]
	ids, batch = []int64{head.ID}, head.ID
	var more []int64
	switch {
	case head.Batch != nil:
		batch = *head.Batch
		more, err = numbers(ctx, tx, `SELECT o.id FROM outbox o WHERE `+claimable+` AND o.batch = $3 AND o.id <> $4 ORDER BY o.id FOR UPDATE OF o SKIP LOCKED`,
			string(channel), now, batch, head.ID)
	case channel == alert.Mail:
		more, err = numbers(ctx, tx, `SELECT o.id FROM outbox o WHERE `+claimable+` AND o.batch IS NULL AND o.occasion = $3 AND o.id > $4
			ORDER BY o.id LIMIT $5 FOR UPDATE OF o SKIP LOCKED`, string(channel), now, head.Occasion, head.ID, alert.DigestMost-1)
		if len(more)+1 < alert.DigestFrom {
			more = nil
		}
	}
	return append(ids, more...), batch, err
}

func numbers(ctx context.Context, q querier, sql string, args ...any) ([]int64, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

func messagesOf(rows []messageRow) ([]alert.Message, error) {
	messages := make([]alert.Message, len(rows))
	for i := range rows {
		r := &rows[i]
		messages[i] = alert.Message{
			ID: r.ID, Channel: alert.Channel(r.Channel), To: r.Recipient, MessageID: r.MessageID.String(), CreatedAt: r.CreatedAt.UTC(),
			Attempts: r.Attempts, Unsure: r.Unsure,
		}
		if err := json.Unmarshal(r.Notice, &messages[i].Notice); err != nil {
			return nil, fmt.Errorf("read the notice of message %d: %w", r.ID, err)
		}
	}
	return messages, nil
}

// Settle implements alert.Ledger.
func (a *Alerts) Settle(ctx context.Context, worker string, ids []int64, f alert.Fate) error {
	return a.within(ctx, "settle messages", outboxWithin, func(ctx context.Context, tx pgx.Tx) error {
		now, err := a.clock(ctx, tx)
		if err != nil {
			return err
		}
		known := 0
		if f.Known {
			known = 1
		}
		_, err = tx.Exec(ctx, `
			UPDATE outbox SET leased_until = NULL, due_at = $3, done_at = CASE WHEN $4 THEN $5::timestamptz END, sent = $6,
				unsure = greatest(0, unsure - $7), error = $8
			WHERE id = ANY ($1) AND worker = $2 AND done_at IS NULL AND leased_until IS NOT NULL`,
			ids, worker, now.Add(f.Retry), f.Done, now, f.Sent, known, clip(f.Error))
		return err
	})
}

// Tidy implements alert.Ledger.
func (a *Alerts) Tidy(ctx context.Context) error {
	return a.within(ctx, "tidy alerts", outboxWithin, func(ctx context.Context, tx pgx.Tx) error {
		now, err := a.clock(ctx, tx)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			UPDATE outbox SET done_at = $1, leased_until = NULL, error = CASE WHEN error = '' THEN $3 ELSE error END
			WHERE id IN (SELECT id FROM outbox WHERE done_at IS NULL AND created_at < $2 AND (leased_until IS NULL OR leased_until <= $1)
				ORDER BY id LIMIT $4 FOR UPDATE SKIP LOCKED)`, now, now.Add(-alert.GiveUpAfter), alert.TooOld, tidyBatch)
		if err != nil {
			return fmt.Errorf("give up old messages: %w", err)
		}
		_, err = tx.Exec(ctx, `DELETE FROM incidents WHERE id IN (SELECT id FROM incidents WHERE resolved_at < $1 ORDER BY resolved_at LIMIT $2 FOR UPDATE SKIP LOCKED)`,
			now.Add(-alert.Retention), tidyBatch)
		return err
	})
}
