package postgres

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// batchSize is how many statements travel together.
const batchSize = 1000

// statements are sent in batches: twenty thousand tenants must not be twenty thousand round trips.
type statements struct {
	ctx   context.Context //nolint:containedctx // lives as long as one change
	tx    pgx.Tx
	batch *pgx.Batch
	err   error
}

func (s *statements) add(sql string, args ...any) *pgx.QueuedQuery {
	if s.batch.Len() >= batchSize {
		s.flush()
	}
	return s.batch.Queue(sql, args...)
}

// flush sends what is queued, after an error nothing any more.
func (s *statements) flush() {
	if s.err == nil && s.batch.Len() > 0 {
		s.err = s.tx.SendBatch(s.ctx, s.batch).Close()
	}
	s.batch = &pgx.Batch{}
}

func (s *statements) done() error {
	s.flush()
	return s.err
}

// carryOut writes a reconciliation and its audit entries.
func (c *change) carryOut(ctx context.Context, r *reconciliation) error {
	for i := range r.plans {
		if err := c.writePlan(ctx, r.plans[i]); err != nil {
			return fmt.Errorf("plan %s: %w", r.plans[i].after.Name, err)
		}
	}
	if r.policy != nil {
		if err := c.writePolicy(ctx, r.policy); err != nil {
			return fmt.Errorf("address policy: %w", err)
		}
	}
	if r.mode != "" {
		if err := c.writeMode(ctx, r.mode); err != nil {
			return fmt.Errorf("mode: %w", err)
		}
	}
	s := &statements{ctx: ctx, tx: c.Tx, batch: &pgx.Batch{}}
	c.writeTenants(s, r.tenants)
	c.writeOverrides(s, r.overrides)
	c.writeNetworks(s, r)
	c.deleteAll(s, r)
	s.flush() // the ids of new networks are in their entries from here on
	for _, e := range r.entries {
		s.add(insertAudit, c.auditArgs(e.auditAction, e.resource, e.auditID, e.diff)...)
	}
	if err := s.done(); err != nil {
		return err
	}
	if len(r.deadPlans)+len(r.deadTenants)+len(r.deadOverrides)+len(r.deadNetworks) > 0 {
		return c.forgetDeletions(ctx)
	}
	return nil
}

func (c *change) writePlan(ctx context.Context, p pair[tenants.Plan]) error {
	var id int64
	var err error
	if p.before == nil {
		id, err = c.insertPlanRow(ctx, p.after)
	} else {
		id, err = p.before.ID, c.updatePlanRow(ctx, p.before.ID, p.after)
	}
	if err != nil {
		return err
	}
	return c.putLimits(ctx, id, p.after.Limits)
}

func (c *change) writeTenants(s *statements, list []pair[tenants.Tenant]) {
	for _, p := range list {
		t := p.after
		if p.before == nil {
			s.add(insertTenant, t.Slug, t.Name, t.Plan, string(t.Status), t.ContactEmail, orEmpty(t.Metadata), c.version)
			continue
		}
		s.add(`
			UPDATE tenants SET name = $2, plan_id = (SELECT id FROM plans WHERE name = $3), status = $4, contact_email = $5, metadata = $6,
				version = version + 1, changed_in = $7, updated_at = now()
			WHERE id = $1`, t.ID, t.Name, t.Plan, string(t.Status), t.ContactEmail, orEmpty(t.Metadata), c.version)
	}
}

func (c *change) writeOverrides(s *statements, list []pair[tenantOverride]) {
	for _, p := range list {
		o := p.after
		s.add(`
			INSERT INTO overrides (tenant_id, limit_name, quota, reason, expires_at, changed_in)
			SELECT id, $2, $3, $4, $5, $6 FROM tenants WHERE slug = $1
			ON CONFLICT (tenant_id, limit_name) DO UPDATE SET quota = EXCLUDED.quota, reason = EXCLUDED.reason, expires_at = EXCLUDED.expires_at,
				changed_in = EXCLUDED.changed_in, updated_at = now()`,
			o.tenant, o.LimitName, o.Quota, o.Reason, nullable(o.ExpiresAt), c.version)
	}
}

func (c *change) writeNetworks(s *statements, r *reconciliation) {
	for i, p := range r.networks {
		n, e := p.after, r.networkEntries[i]
		s.add(`
			INSERT INTO networks (cidr, action, reason, expires_at, changed_in) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (cidr, action) DO UPDATE SET reason = EXCLUDED.reason, expires_at = EXCLUDED.expires_at, changed_in = EXCLUDED.changed_in
			RETURNING id`, n.CIDR, string(n.Action), n.Reason, nullable(n.ExpiresAt), c.version).
			QueryRow(func(row pgx.Row) error {
				var id int64
				err := row.Scan(&id)
				e.auditID = strconv.FormatInt(id, 10)
				return err
			})
	}
}

// deleteAll deletes what was pruned, and notes it for the replicas. Tenants go before their plans, and take their overrides with
// them.
func (c *change) deleteAll(s *statements, r *reconciliation) {
	for _, p := range r.deadOverrides {
		s.add(`DELETE FROM overrides WHERE tenant_id = $1 AND limit_name = $2`, p.before.TenantID, p.before.LimitName)
		s.add(insertDeletion, "override", p.before.TenantID, p.before.LimitName, c.version)
	}
	for _, p := range r.deadTenants {
		s.add(`DELETE FROM tenants WHERE id = $1`, p.before.ID)
		s.add(insertDeletion, "tenant", p.before.ID, "", c.version)
	}
	for _, p := range r.deadPlans {
		s.add(`DELETE FROM plans WHERE id = $1`, p.before.ID)
		s.add(insertDeletion, "plan", p.before.ID, "", c.version)
	}
	for _, p := range r.deadNetworks {
		s.add(`DELETE FROM networks WHERE id = $1`, p.before.ID)
		s.add(insertDeletion, "network", p.before.ID, "", c.version)
	}
}

// warnOfKeys says how many credentials end with the tenants that are pruned: they cannot be made again.
func (c *change) warnOfKeys(ctx context.Context, r *reconciliation) error {
	if len(r.deadTenants) == 0 {
		return nil
	}
	ids := make([]int64, len(r.deadTenants))
	for i, p := range r.deadTenants {
		ids[i] = p.before.ID
	}
	var keys int
	err := c.QueryRow(ctx, `
		SELECT count(*) FROM api_keys WHERE tenant_id = ANY($1) AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())`, ids).Scan(&keys)
	if err != nil {
		return fmt.Errorf("count the keys of tenants to prune: %w", err)
	}
	if keys > 0 {
		r.warn("pruning %d tenant(s) ends %d API key(s) for good", len(ids), keys)
	}
	return nil
}
