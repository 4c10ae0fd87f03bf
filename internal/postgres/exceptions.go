package postgres

import (
	"context"
	"net/netip"
	"strconv"
	"time"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// ListOverrides lists a tenant's overrides by limit name.
func (r *Repository) ListOverrides(ctx context.Context, tenant string, f tenants.OverrideFilter, p tenants.Page) (list tenants.List[tenants.Override], err error) {
	name := "overrides of " + tenant
	after, err := decodeCursor(name, p.Cursor)
	if err != nil {
		return list, err
	}
	err = r.read(ctx, "list overrides", func(ctx context.Context, q querier) error {
		t, err := tenantBySlug(ctx, q, tenant)
		if err != nil {
			return err
		}
		rows, err := collect[overrideRow](ctx, q, selectOverrides+`
			WHERE o.tenant_id = $1 AND o.limit_name > $2 AND ($4 = '' OR o.limit_name ILIKE $4 OR o.reason ILIKE $4) ORDER BY o.limit_name LIMIT $3`,
			t.ID, after, pageSize(p)+1, contains(f.Search))
		overrides := make([]tenants.Override, len(rows))
		for i := range rows {
			overrides[i], _ = overrideFrom(&rows[i]) // a broken one is listed as it is
		}
		list = page(name, overrides, pageSize(p), func(o *tenants.Override) string { return o.LimitName })
		return err
	})
	return list, err
}

// PutOverride sets a tenant's exception to one limit.
func (r *Repository) PutOverride(ctx context.Context, a audit.Actor, tenant string, o tenants.Override) (stored tenants.Override, created bool, err error) {
	err = r.change(ctx, a, "put override", func(ctx context.Context, c *change) error {
		t, err := tenantBySlug(ctx, c, tenant)
		if err != nil {
			return err
		}
		var before any
		created = false
		old, err := one[overrideRow](ctx, c, selectOverrides+`WHERE o.tenant_id = $1 AND o.limit_name = $2`, t.ID, o.LimitName)
		switch {
		case err == nil:
			was, _ := overrideFrom(old)
			before = overrideFields(&was)
		case isNotFound(err):
			created = true
		default:
			return err
		}
		row, err := one[overrideRow](ctx, c, `
			INSERT INTO overrides AS o (tenant_id, limit_name, quota, reason, expires_at, changed_in) VALUES ($1, $2, $3, $4, $5, $6)
			ON CONFLICT (tenant_id, limit_name) DO UPDATE SET quota = EXCLUDED.quota, reason = EXCLUDED.reason, expires_at = EXCLUDED.expires_at,
				changed_in = EXCLUDED.changed_in, updated_at = now()
			RETURNING`+overrideColumns,
			t.ID, o.LimitName, o.Quota, o.Reason, nullable(o.ExpiresAt), c.version)
		if err != nil {
			return err
		}
		if stored, err = overrideFrom(row); err != nil {
			return err
		}
		return c.record(ctx, "override.put", "override", tenant+"/"+o.LimitName, before, overrideFields(&stored))
	})
	return stored, created, err
}

// DeleteOverride ends a tenant's exception to one limit.
func (r *Repository) DeleteOverride(ctx context.Context, a audit.Actor, tenant, limit string) error {
	return r.change(ctx, a, "delete override", func(ctx context.Context, c *change) error {
		t, err := tenantBySlug(ctx, c, tenant)
		if err != nil {
			return err
		}
		row, err := one[overrideRow](ctx, c, selectOverrides+`WHERE o.tenant_id = $1 AND o.limit_name = $2`, t.ID, limit)
		if err != nil {
			return err
		}
		if _, err := c.Exec(ctx, `DELETE FROM overrides WHERE tenant_id = $1 AND limit_name = $2`, t.ID, limit); err != nil {
			return err
		}
		if err := c.bury(ctx, "override", t.ID, limit); err != nil {
			return err
		}
		before, _ := overrideFrom(row)
		return c.record(ctx, "override.delete", "override", tenant+"/"+limit, overrideFields(&before), nil)
	})
}

// ListNetworks lists by age.
func (r *Repository) ListNetworks(ctx context.Context, f tenants.NetworkFilter, p tenants.Page) (list tenants.List[tenants.Network], err error) {
	after, err := decodeNumber("networks", p.Cursor, 0)
	if err != nil {
		return list, err
	}
	err = r.read(ctx, "list networks", func(ctx context.Context, q querier) error {
		rows, err := collect[networkRow](ctx, q, selectNetworks+`
			WHERE n.id > $1 AND n.cidr IS NOT NULL AND ($3 = '' OR n.action = $3) AND ($4 = '' OR n.reason ILIKE $4)
				AND ($5::inet IS NULL OR n.cidr >>= $5::inet) ORDER BY n.id LIMIT $2`,
			after, pageSize(p)+1, string(f.Action), contains(f.Search), nullableAddress(f.Holds))
		list = pageOf("networks", rows, pageSize(p), func(r *networkRow) int64 { return r.ID }, func(r *networkRow) tenants.Network {
			n, _ := networkFrom(r) // a broken one is listed as it is
			return n
		})
		return err
	})
	return list, err
}

// CreateNetwork adds an entry to the network lists.
func (r *Repository) CreateNetwork(ctx context.Context, a audit.Actor, n tenants.Network) (stored tenants.Network, err error) {
	err = r.change(ctx, a, "create network", func(ctx context.Context, c *change) error {
		row, err := one[networkRow](ctx, c, `
			INSERT INTO networks AS n (cidr, action, reason, expires_at, changed_in) VALUES ($1, $2, $3, $4, $5)
			RETURNING id, cidr, action, reason, expires_at, created_at`, n.CIDR, string(n.Action), n.Reason, nullable(n.ExpiresAt), c.version)
		if err != nil {
			return err
		}
		if stored, err = networkFrom(row); err != nil {
			return err
		}
		return c.record(ctx, "network.create", "network", strconv.FormatInt(stored.ID, 10), nil, networkFields(&stored))
	})
	return stored, err
}

// DeleteNetwork removes an entry from the network lists.
func (r *Repository) DeleteNetwork(ctx context.Context, a audit.Actor, id int64) error {
	return r.change(ctx, a, "delete network", func(ctx context.Context, c *change) error {
		row, err := one[networkRow](ctx, c, `DELETE FROM networks n WHERE n.id = $1 RETURNING id, cidr, action, reason, expires_at, created_at`, id)
		if err != nil {
			return err
		}
		if err := c.bury(ctx, "network", id, ""); err != nil {
			return err
		}
		before, _ := networkFrom(row)
		return c.record(ctx, "network.delete", "network", strconv.FormatInt(id, 10), networkFields(&before), nil)
	})
}

func overrideFrom(r *overrideRow) (tenants.Override, error) {
	var err error
	if r.Quota == nil {
		err = errNull
	}
	o := tenants.Override{
		TenantID: r.TenantID, LimitName: textOf(r.LimitName, &err), Quota: orZero(r.Quota), Reason: textOf(r.Reason, &err),
		ExpiresAt: end(r.ExpiresAt), UpdatedAt: moment(r.UpdatedAt), LastUsedAt: moment(r.LastUsedAt),
	}
	// An expiry in the past is how overrides end, not a fault: it is left out of the check.
	check := tenants.Override{LimitName: o.LimitName, Quota: o.Quota, Reason: o.Reason}
	return o, together(err, invalid(tenants.ValidateOverride(&check, time.Time{})))
}

func networkFrom(r *networkRow) (tenants.Network, error) {
	var err error
	n := tenants.Network{
		ID: r.ID, CIDR: r.CIDR, Action: tenants.NetworkAction(textOf(r.Action, &err)), Reason: textOf(r.Reason, &err),
		ExpiresAt: end(r.ExpiresAt), CreatedAt: moment(r.CreatedAt),
	}
	check := tenants.Network{CIDR: n.CIDR, Action: n.Action, Reason: n.Reason}
	return n, together(err, invalid(tenants.ValidateNetwork(&check, time.Time{})))
}

func overrideFields(o *tenants.Override) map[string]any {
	return map[string]any{"limit": o.Quota, "reason": o.Reason, "expires_at": timeField(o.ExpiresAt)}
}

func networkFields(n *tenants.Network) map[string]any {
	return map[string]any{"cidr": n.CIDR.String(), "action": n.Action, "reason": n.Reason, "expires_at": timeField(n.ExpiresAt)}
}

func nullableAddress(a netip.Addr) *netip.Addr {
	if !a.IsValid() {
		return nil
	}
	return &a
}
