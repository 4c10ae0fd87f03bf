package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// AddressPolicy reads the address policy; with a row that cannot be read it is the built-in one, which then holds.
func (r *Repository) AddressPolicy(ctx context.Context) (p tenants.AddressPolicy, err error) {
	err = r.read(ctx, "read address policy", func(ctx context.Context, q querier) error {
		p, _, _, err = queryPolicy(ctx, q)
		return err
	})
	return p, err
}

// PutAddressPolicy replaces the address policy, which always exists. Without a precondition it replaces whatever is there.
func (r *Repository) PutAddressPolicy(ctx context.Context, a audit.Actor, p tenants.AddressPolicy, pre tenants.Precondition) (stored tenants.AddressPolicy, err error) {
	err = r.change(ctx, a, "put address policy", func(ctx context.Context, c *change) error {
		stored, err = c.putPolicy(ctx, p, pre)
		return err
	})
	return stored, err
}

func (c *change) putPolicy(ctx context.Context, p tenants.AddressPolicy, pre tenants.Precondition) (stored tenants.AddressPolicy, err error) {
	before, _, _, err := queryPolicy(ctx, c)
	if err != nil {
		return stored, err
	}
	if !pre.Holds(before.Version) {
		return stored, tenants.ErrVersion
	}
	if err := c.writePolicy(ctx, &p); err != nil {
		return stored, err
	}
	if stored, _, _, err = queryPolicy(ctx, c); err != nil {
		return stored, err
	}
	return stored, c.record(ctx, "address_policy.update", "address_policy", "address-policy", policyFields(&before), policyFields(&stored))
}

// policyFields is the address policy as the audit log shows it.
func policyFields(p *tenants.AddressPolicy) map[string]any {
	return map[string]any{"limits": ruleFields(p.Limits)}
}

// writePolicy replaces the address policy.
func (c *change) writePolicy(ctx context.Context, p *tenants.AddressPolicy) error {
	if _, err := c.Exec(ctx, `UPDATE address_policy SET version = version + 1, changed_in = $1, updated_at = now()`, c.version); err != nil {
		return err
	}
	if _, err := c.Exec(ctx, `DELETE FROM address_limits`); err != nil {
		return err
	}
	for i := range p.Limits {
		args := append([]any{i, string(p.Limits[i].AppliesTo)}, limitArgs(&p.Limits[i])...)
		_, err := c.Exec(ctx, `
			INSERT INTO address_limits (position, applies_to, name, algorithm, quota, window_ms, refill_units, refill_every_ms, cost,
				slowdown_from, slowdown_max_delay_ms, on_store_failure, mode, match_methods, match_paths)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`, args...)
		if err != nil {
			return err
		}
	}
	return nil
}

type policyRow struct {
	Version   *int64
	UpdatedAt pgtype.Timestamptz
	ChangedIn *int64
}

type addressLimitRow struct {
	AppliesTo *string
	limitRow
}

// queryPolicy reads the address policy, the configuration version that last touched it, and what is broken in it.
func queryPolicy(ctx context.Context, q querier) (p tenants.AddressPolicy, changedIn int64, bad []tenants.BrokenRow, err error) {
	head, err := collect[policyRow](ctx, q, `SELECT version, updated_at, changed_in FROM address_policy`)
	if err != nil {
		return p, 0, nil, err
	}
	if len(head) > 0 {
		p.Version, p.UpdatedAt, changedIn = orZero(head[0].Version), moment(head[0].UpdatedAt), orZero(head[0].ChangedIn)
	}
	rows, err := collect[addressLimitRow](ctx, q, `SELECT l.applies_to, `+columnsOfLimit+` FROM address_limits l ORDER BY l.position`)
	if err != nil {
		return p, 0, nil, err
	}
	p.Limits = make([]tenants.Rule, 0, len(rows))
	for i := range rows {
		rule, err := rows[i].rule(ratelimit.ScopeAddress)
		if err != nil {
			bad = append(bad, broken("address_limits", fmt.Sprintf("limit %s", cut(orZero(rows[i].Name))), err))
			continue
		}
		rule.AppliesTo = tenants.AppliesTo(orZero(rows[i].AppliesTo))
		p.Limits = append(p.Limits, rule)
	}
	if err := invalid(tenants.ValidateAddressPolicy(&p)); err != nil {
		bad = append(bad, broken("address_limits", "the policy", err))
	}
	if len(bad) > 0 {
		p.Limits = tenants.DefaultAddressPolicy().Limits
	}
	return p, changedIn, bad, nil
}

// Mode is the stored mode, or empty when no one has set it.
func (r *Repository) Mode(ctx context.Context) (m ratelimit.Mode, err error) {
	err = r.read(ctx, "read mode", func(ctx context.Context, q querier) error {
		var stored *string
		err := q.QueryRow(ctx, `SELECT mode FROM config_version`).Scan(&stored)
		m = ratelimit.Mode(orZero(stored))
		return err
	})
	return m, err
}

// SetMode stores the mode of the whole service.
func (r *Repository) SetMode(ctx context.Context, a audit.Actor, m ratelimit.Mode) error {
	return r.change(ctx, a, "set mode", func(ctx context.Context, c *change) error {
		var before *string
		if err := c.QueryRow(ctx, `SELECT mode FROM config_version`).Scan(&before); err != nil {
			return err
		}
		if err := c.writeMode(ctx, m); err != nil {
			return err
		}
		return c.record(ctx, "mode.update", "mode", "mode", map[string]any{"mode": before}, map[string]any{"mode": m})
	})
}

func (c *change) writeMode(ctx context.Context, m ratelimit.Mode) error {
	_, err := c.Exec(ctx, `UPDATE config_version SET mode = $1, mode_changed_in = $2`, string(m), c.version)
	return err
}

// InstallDefaults installs the default plans and address policy on a new installation, once and for all: any number of
// replicas may call it at every start, and what an operator changed or deleted since is left alone.
func (r *Repository) InstallDefaults(ctx context.Context) error {
	r = r.within(applyWithin) // nobody waits for the answer, and from afar its questions take longer than a caller would wait
	installed := false
	err := r.read(ctx, "install defaults", func(ctx context.Context, q querier) error {
		return q.QueryRow(ctx, `SELECT defaults_installed_at IS NOT NULL FROM config_version`).Scan(&installed)
	})
	if err != nil || installed {
		return err
	}
	system := audit.Actor{Kind: "system", Name: "pegel"}
	return r.change(ctx, system, "install defaults", func(ctx context.Context, c *change) error {
		// Asked again under the lock that change holds: another replica may have been first.
		tag, err := c.Exec(ctx, `UPDATE config_version SET defaults_installed_at = now() WHERE defaults_installed_at IS NULL`)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return errNothingToDo
		}
		for _, plan := range tenants.DefaultPlans() {
			_, err := planByName(ctx, c, plan.Name)
			if err == nil {
				continue // somebody was quicker with one of his own
			}
			if !isNotFound(err) {
				return err
			}
			if _, err := c.insertPlan(ctx, plan); err != nil {
				return err
			}
		}
		policy, _, _, err := queryPolicy(ctx, c)
		if err != nil || policy.Version > 1 {
			return err
		}
		_, err = c.putPolicy(ctx, tenants.DefaultAddressPolicy(), tenants.Precondition{})
		return err
	})
}
