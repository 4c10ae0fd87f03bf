package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// credentialTables are where the kinds live.
var credentialTables = map[tenants.Kind]string{
	tenants.KindAPIKey: "api_keys", tenants.KindServiceToken: "service_tokens", tenants.KindAdminToken: "admin_tokens",
}

// markBatch bounds the rows of one statement, and so how long it holds their locks.
const markBatch = 1000

// MarkUsed stores when credentials were last used; times only move forward and unknown ids are passed over. Rows that somebody
// else holds are passed over too, so replicas that write the same ids never wait for each other.
func (r *Repository) MarkUsed(ctx context.Context, kind tenants.Kind, lastUsed map[string]time.Time) error {
	table, known := credentialTables[kind]
	if !known {
		return fmt.Errorf("mark credentials used: unknown kind %q", kind)
	}
	for ids := range slices.Chunk(slices.Sorted(maps.Keys(lastUsed)), markBatch) {
		times := make([]time.Time, len(ids))
		for i, id := range ids {
			times[i] = lastUsed[id]
		}
		err := r.read(ctx, "mark credentials used", func(ctx context.Context, q querier) error {
			_, err := q.Exec(ctx, `
				WITH used AS (SELECT * FROM unnest($1::text[], $2::timestamptz[]) AS u (id, at)),
				picked AS (
					SELECT c.seq, used.at FROM `+table+` c JOIN used ON used.id = c.id
					WHERE c.last_used_at IS NULL OR c.last_used_at < used.at
					FOR NO KEY UPDATE OF c SKIP LOCKED)
				UPDATE `+table+` c SET last_used_at = picked.at FROM picked WHERE c.seq = picked.seq`, ids, times)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
