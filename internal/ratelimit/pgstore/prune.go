package pgstore

import (
	"context"
	"fmt"
)

// Prune deletes at most batch rows that no decision needs any more and says how many it found. Rows that a concurrent
// prune or charge holds are left for the next time, so it never waits for a decision and any replica may run it at any
// moment. The caller owns the loop: at least every minute, with jitter, again at once while it returns batch.
func (s *Store) Prune(ctx context.Context, batch int) (int64, error) {
	tag, err := s.pool.Exec(ctx, prune, s.now(), batch)
	if err != nil {
		return 0, fmt.Errorf("prune rate_limit_windows: %w", err)
	}
	return tag.RowsAffected(), nil
}

// The rows' ends of use carry a minute of grace, so a clock that jumps ahead for less than that loses none.
const prune = `DELETE FROM rate_limit_windows
WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM rate_limit_windows
	WHERE expires_at < coalesce(to_timestamp($1::bigint / 1e6::float8), statement_timestamp())
	ORDER BY expires_at
	LIMIT $2::bigint
	FOR UPDATE SKIP LOCKED))`
