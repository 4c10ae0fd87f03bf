package postgres

import (
	"cmp"
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

// MarkOverridesUsed is MarkUsed for overrides.
func (r *Repository) MarkOverridesUsed(ctx context.Context, lastUsed map[tenants.OverrideName]time.Time) error {
	names := slices.SortedFunc(maps.Keys(lastUsed), func(a, b tenants.OverrideName) int {
		return cmp.Or(cmp.Compare(a.TenantID, b.TenantID), cmp.Compare(a.LimitName, b.LimitName))
	})
	for batch := range slices.Chunk(names, markBatch) {
		owners, limits, times := make([]int64, len(batch)), make([]string, len(batch)), make([]time.Time, len(batch))
		for i, name := range batch {
			owners[i], limits[i], times[i] = name.TenantID, name.LimitName, lastUsed[name]
		}
		err := r.read(ctx, "mark overrides used", func(ctx context.Context, q querier) error {
			_, err := q.Exec(ctx, `
				WITH used AS (SELECT * FROM unnest($1::bigint[], $2::text[], $3::timestamptz[]) AS u (tenant_id, limit_name, at)),
				picked AS (
					SELECT o.tenant_id, o.limit_name, used.at FROM overrides o JOIN used ON used.tenant_id = o.tenant_id AND used.limit_name = o.limit_name
					WHERE o.last_used_at IS NULL OR o.last_used_at < used.at
					FOR NO KEY UPDATE OF o SKIP LOCKED)
				UPDATE overrides o SET last_used_at = picked.at FROM picked
				WHERE o.tenant_id = picked.tenant_id AND o.limit_name = picked.limit_name`, owners, limits, times)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
