package postgres

import (
	"context"
	"crypto/sha256"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// Idempotent runs change once per key within 24 h. The key's row, what change does through this repository and the answer
// are one transaction: methods called with the context that change gets join it, and an error from change undoes all of it,
// the key included. A call that meets the same key under way waits for it, within the bound. Keys are the caller's name space:
// whoever must not see another's answers puts himself into the key.
func (r *Repository) Idempotent(ctx context.Context, key string, requestHash [32]byte,
	change func(ctx context.Context) (status int, body []byte, err error),
) (status int, body []byte, replayed bool, err error) {
	keyHash := sha256.Sum256([]byte(key))
	err = r.transact(ctx, "run once per key", func(ctx context.Context, tx pgx.Tx) error {
		// A row of the same key in an unfinished transaction makes this wait for its end.
		tag, err := tx.Exec(ctx, `
			INSERT INTO idempotency_keys AS old (key_hash, request_hash) VALUES ($1, $2)
			ON CONFLICT (key_hash) DO UPDATE SET request_hash = EXCLUDED.request_hash, status = 0, body = '', created_at = clock_timestamp()
				WHERE old.created_at < clock_timestamp() - interval '24 hours'`, keyHash[:], requestHash[:])
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			replayed = true
			status, body, err = earlierAnswer(ctx, tx, keyHash, requestHash)
			return err
		}
		if status, body, err = change(context.WithValue(ctx, txKey{}, tx)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE idempotency_keys SET status = $2, body = $3 WHERE key_hash = $1`, keyHash[:], status, noNilBytes(body)); err != nil {
			return err
		}
		return forgetOldKeys(ctx, tx)
	})
	if err != nil {
		return 0, nil, false, err
	}
	return status, body, replayed, nil
}

func earlierAnswer(ctx context.Context, tx pgx.Tx, keyHash, requestHash [32]byte) (status int, body []byte, err error) {
	var stored []byte
	err = tx.QueryRow(ctx, `SELECT status, body, request_hash FROM idempotency_keys WHERE key_hash = $1`, keyHash[:]).Scan(&status, &body, &stored)
	if err != nil {
		return 0, nil, err
	}
	if string(stored) != string(requestHash[:]) {
		return 0, nil, &tenants.ConflictError{Detail: "the Idempotency-Key was used for another request"}
	}
	return status, body, nil
}

// forgetOldKeys removes a few rows past their day, never one that somebody else is at.
func forgetOldKeys(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `
		DELETE FROM idempotency_keys WHERE key_hash IN (
			SELECT key_hash FROM idempotency_keys WHERE created_at < clock_timestamp() - interval '25 hours'
			ORDER BY created_at LIMIT 100 FOR UPDATE SKIP LOCKED)`)
	return err
}

func noNilBytes(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func isNotFound(err error) bool { return errors.Is(err, tenants.ErrNotFound) }
