package postgres

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

const selectTenants = `
	SELECT t.id, left(t.slug, 100), left(t.name, 300), left(p.name, 100), t.status, left(t.contact_email, 300), left(t.metadata::text, 500000),
		t.generation, t.version, t.created_at, t.updated_at
	FROM tenants t LEFT JOIN plans p ON p.id = t.plan_id `

type tenantRow struct {
	ID                   int64
	Slug, Name, Plan     *string
	Status, ContactEmail *string
	Metadata             *string
	Generation, Version  *int64
	CreatedAt, UpdatedAt pgtype.Timestamptz
}

// ListTenants lists by slug.
func (r *Repository) ListTenants(ctx context.Context, f tenants.TenantFilter, p tenants.Page) (list tenants.List[tenants.Tenant], err error) {
	after, err := decodeCursor("tenants", p.Cursor)
	if err != nil {
		return list, err
	}
	err = r.read(ctx, "list tenants", func(ctx context.Context, q querier) error {
		found, _, err := queryTenants(ctx, q, selectTenants+`
			WHERE t.slug > $1 AND ($2 = '' OR p.name = $2) AND ($3 = '' OR t.status = $3)
				AND ($4 = '' OR t.slug ILIKE $4 OR t.name ILIKE $4)
			ORDER BY t.slug LIMIT $5`, after, f.Plan, string(f.Status), contains(f.Search), pageSize(p)+1)
		list = page("tenants", found, pageSize(p), func(t *tenants.Tenant) string { return t.Slug })
		return err
	})
	return list, err
}

// Tenant reads one tenant.
func (r *Repository) Tenant(ctx context.Context, slug string) (t tenants.Tenant, err error) {
	err = r.read(ctx, "read tenant", func(ctx context.Context, q querier) error {
		t, err = tenantBySlug(ctx, q, slug)
		return err
	})
	return t, err
}

// insertTenant inserts nothing when there is no such plan.
const insertTenant = `
	INSERT INTO tenants (slug, name, plan_id, status, contact_email, metadata, version, changed_in)
	SELECT $1, $2, id, $4, $5, $6, $7, $7 FROM plans WHERE name = $3`

// CreateTenant stores a new tenant; a plan that does not exist is an ErrUnknownPlan.
func (r *Repository) CreateTenant(ctx context.Context, a audit.Actor, t tenants.Tenant) (stored tenants.Tenant, err error) {
	err = r.change(ctx, a, "create tenant", func(ctx context.Context, c *change) error {
		tag, err := c.Exec(ctx, insertTenant,
			t.Slug, t.Name, t.Plan, string(t.Status), t.ContactEmail, orEmpty(t.Metadata), c.version)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return tenants.ErrUnknownPlan
		}
		if stored, err = tenantBySlug(ctx, c, t.Slug); err != nil {
			return err
		}
		return c.record(ctx, "tenant.create", "tenant", t.Slug, nil, tenantFields(&stored))
	})
	return stored, err
}

// PatchTenant changes what the patch names.
func (r *Repository) PatchTenant(ctx context.Context, a audit.Actor, slug string, patch tenants.TenantPatch, pre tenants.Precondition) (tenants.Tenant, error) {
	return r.updateTenant(ctx, a, "update", slug, pre, func(ctx context.Context, c *change, before *tenants.Tenant) error {
		if patch.Plan != nil {
			tag, err := c.Exec(ctx, `UPDATE tenants SET plan_id = p.id FROM plans p WHERE tenants.id = $1 AND p.name = $2`, before.ID, *patch.Plan)
			if err != nil {
				return err
			}
			if tag.RowsAffected() == 0 {
				return tenants.ErrUnknownPlan
			}
		}
		var metadata any
		if patch.Metadata != nil {
			metadata = orEmpty(*patch.Metadata)
		}
		_, err := c.Exec(ctx, `
			UPDATE tenants SET name = COALESCE($2, name), contact_email = COALESCE($3, contact_email), status = COALESCE($4, status), metadata = COALESCE($5, metadata)
			WHERE id = $1`, before.ID, patch.Name, patch.ContactEmail, (*string)(patch.Status), metadata)
		return err
	})
}

// ResetTenant starts all of the tenant's counters anew.
func (r *Repository) ResetTenant(ctx context.Context, a audit.Actor, slug string) (tenants.Tenant, error) {
	return r.updateTenant(ctx, a, "reset", slug, tenants.Precondition{}, func(ctx context.Context, c *change, before *tenants.Tenant) error {
		_, err := c.Exec(ctx, `UPDATE tenants SET generation = generation + 1 WHERE id = $1`, before.ID)
		return err
	})
}

// updateTenant is what every change of an existing tenant has in common.
func (r *Repository) updateTenant(ctx context.Context, a audit.Actor, verb, slug string, pre tenants.Precondition,
	update func(ctx context.Context, c *change, before *tenants.Tenant) error,
) (stored tenants.Tenant, err error) {
	err = r.change(ctx, a, verb+" tenant", func(ctx context.Context, c *change) error {
		before, err := tenantBySlug(ctx, c, slug)
		if err != nil {
			return err
		}
		if !pre.Holds(before.Version) {
			return tenants.ErrVersion
		}
		if err := update(ctx, c, &before); err != nil {
			return err
		}
		_, err = c.Exec(ctx, `UPDATE tenants SET version = version + 1, changed_in = $2, updated_at = now() WHERE id = $1`, before.ID, c.version)
		if err != nil {
			return err
		}
		if stored, err = tenantBySlug(ctx, c, slug); err != nil {
			return err
		}
		return c.record(ctx, "tenant."+verb, "tenant", slug, tenantFields(&before), tenantFields(&stored))
	})
	return stored, err
}

// DeleteTenant removes a tenant with its keys and overrides. Its counters belong to its id, which is never given again.
func (r *Repository) DeleteTenant(ctx context.Context, a audit.Actor, slug string, pre tenants.Precondition) error {
	return r.change(ctx, a, "delete tenant", func(ctx context.Context, c *change) error {
		before, err := tenantBySlug(ctx, c, slug)
		if err != nil {
			return err
		}
		if !pre.Holds(before.Version) {
			return tenants.ErrVersion
		}
		if _, err := c.Exec(ctx, `DELETE FROM tenants WHERE id = $1`, before.ID); err != nil {
			return err
		}
		if err := c.bury(ctx, "tenant", before.ID, ""); err != nil {
			return err
		}
		return c.record(ctx, "tenant.delete", "tenant", slug, tenantFields(&before), nil)
	})
}

func tenantBySlug(ctx context.Context, q querier, slug string) (tenants.Tenant, error) {
	found, _, err := queryTenants(ctx, q, selectTenants+`WHERE t.slug = $1`, slug)
	if err != nil {
		return tenants.Tenant{}, err
	}
	if len(found) == 0 {
		return tenants.Tenant{}, tenants.ErrNotFound
	}
	return found[0], nil
}

// queryTenants reads the tenants of a query and says which of them are broken.
func queryTenants(ctx context.Context, q querier, sql string, args ...any) ([]tenants.Tenant, []tenants.BrokenRow, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, nil, err
	}
	var bad []tenants.BrokenRow
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (tenants.Tenant, error) {
		var r tenantRow
		err := row.Scan(&r.ID, &r.Slug, &r.Name, &r.Plan, &r.Status, &r.ContactEmail, &r.Metadata, &r.Generation, &r.Version, &r.CreatedAt, &r.UpdatedAt)
		t, why := tenantFrom(&r)
		if why != nil {
			bad = append(bad, broken("tenants", cut(t.Slug), why))
		}
		return t, err
	})
	return found, bad, err
}

// noPlan is a name that no plan can have: a tenant of it gets the built-in limits.
const noPlan = ""

// tenantFrom makes a tenant of its row. One that breaks the rules stays reachable under its slug, active unless it says
// suspended, without a plan of its own, so that the built-in limits hold for it.
func tenantFrom(row *tenantRow) (tenants.Tenant, error) {
	var why error
	t := tenants.Tenant{
		ID: row.ID, Slug: textOf(row.Slug, &why), Name: textOf(row.Name, &why), Plan: orZero(row.Plan),
		Status: tenants.Status(textOf(row.Status, &why)), ContactEmail: orZero(row.ContactEmail),
		Generation: orZero(row.Generation), Version: orZero(row.Version), CreatedAt: moment(row.CreatedAt), UpdatedAt: moment(row.UpdatedAt),
	}
	metadata, err := metadataOf(row.Metadata)
	t.Metadata = metadata
	why = together(why, err)
	if row.Plan != nil {
		why = together(why, invalid(tenants.ValidateStoredTenant(&t)))
	} else {
		why = together(why, errors.New("its plan does not exist"))
	}
	if why != nil {
		t.Name, t.Plan, t.ContactEmail, t.Metadata = t.Slug, noPlan, "", map[string]string{}
		if t.Status != tenants.Suspended {
			t.Status = tenants.Active
		}
	}
	return t, why
}

func tenantFields(t *tenants.Tenant) map[string]any {
	return map[string]any{
		"slug": t.Slug, "name": t.Name, "plan": t.Plan, "status": t.Status, "contact_email": t.ContactEmail,
		"metadata": t.Metadata, "generation": t.Generation,
	}
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// contains is an ILIKE pattern for a literal part; empty for no filter.
func contains(part string) string {
	if part == "" {
		return ""
	}
	return "%" + strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(part) + "%"
}
