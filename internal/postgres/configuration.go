package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// applyWithin bounds applying a whole configuration. Other administrative changes wait for it, and give up after their own
// bound; decisions do not notice it.
const applyWithin = 30 * time.Second

var _ tenants.ConfigurationRepository = (*Repository)(nil)

// within is the same repository with another bound.
func (r *Repository) within(d time.Duration) *Repository {
	other := *r
	other.answerWithin = max(d, r.answerWithin)
	return &other
}

// Configuration reads everything but credentials, in one snapshot of the database.
func (r *Repository) Configuration(ctx context.Context) (c tenants.Configuration, err error) {
	bounded, cancel := context.WithTimeout(ctx, loadWithin)
	defer cancel()
	err = pgx.BeginTxFunc(bounded, r.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		c, err = readConfiguration(bounded, tx)
		return err
	})
	return c, translate(ctx, "read configuration", err)
}

// errDryRun undoes a dry run; it never leaves the package.
var errDryRun = errors.New("dry run")

// ApplyConfiguration brings the described sections to what want says. A dry run is the same transaction, rolled back at its
// end, so what it answers is what applying does, failures included.
func (r *Repository) ApplyConfiguration(
	ctx context.Context, a audit.Actor, want tenants.Configuration, o tenants.ApplyOptions,
) (done tenants.Applied, err error) {
	err = r.within(applyWithin).change(ctx, a, "apply configuration", func(ctx context.Context, c *change) error {
		before := c.version - 1
		if !o.If.Holds(before) {
			return tenants.ErrVersion
		}
		have, err := readConfiguration(ctx, c)
		if err != nil {
			return err
		}
		plan, err := reconcile(&have, &want, o)
		if err != nil {
			return err
		}
		if err := c.warnOfKeys(ctx, plan); err != nil {
			return err
		}
		done = tenants.Applied{Version: before, Changes: plan.changes(), Warnings: plan.warned()}
		if len(plan.entries) == 0 {
			return errNothingToDo
		}
		if err := c.carryOut(ctx, plan); err != nil {
			return err
		}
		if o.DryRun {
			return errDryRun
		}
		done.Version = c.version
		return nil
	})
	if err != nil && !errors.Is(err, errDryRun) {
		return tenants.Applied{}, err
	}
	return done, nil
}

// readConfiguration reads every section, each in a fixed order.
func readConfiguration(ctx context.Context, q querier) (c tenants.Configuration, err error) {
	var mode *string
	if err := q.QueryRow(ctx, `SELECT version, mode FROM config_version`).Scan(&c.Version, &mode); err != nil {
		return c, fmt.Errorf("configuration version: %w", err)
	}
	c.Mode = ratelimit.Mode(orZero(mode))
	if mode != nil && len(tenants.ValidateMode(c.Mode)) > 0 {
		c.Broken = append(c.Broken, broken("config_version", "mode", errors.New("it is neither enforce nor shadow")))
		c.Mode = ""
	}
	policy, _, bad, err := queryPolicy(ctx, q)
	if err != nil {
		return c, fmt.Errorf("address policy: %w", err)
	}
	c.AddressPolicy, c.Broken = &policy, append(c.Broken, bad...)
	if c.Plans, bad, err = queryPlans(ctx, q, selectPlans+`ORDER BY p.name`); err != nil {
		return c, fmt.Errorf("plans: %w", err)
	}
	c.Broken = append(c.Broken, bad...)
	if err := readTenants(ctx, q, &c); err != nil {
		return c, fmt.Errorf("tenants: %w", err)
	}
	if err := readNetworks(ctx, q, &c); err != nil {
		return c, fmt.Errorf("networks: %w", err)
	}
	return c, nil
}

func readTenants(ctx context.Context, q querier, c *tenants.Configuration) error {
	found, bad, err := queryTenants(ctx, q, selectTenants+`ORDER BY t.slug`)
	if err != nil {
		return err
	}
	c.Broken = append(c.Broken, bad...)
	rows, err := collect[overrideRow](ctx, q, selectOverrides+`ORDER BY o.tenant_id, o.limit_name`)
	if err != nil {
		return err
	}
	of := make(map[int64][]tenants.Override)
	for i := range rows {
		o, err := overrideFrom(&rows[i])
		if err != nil { // it does not hold, so it is not there
			c.Broken = append(c.Broken, broken("overrides", fmt.Sprintf("tenant %d, limit %s", o.TenantID, cut(o.LimitName)), err))
			continue
		}
		of[o.TenantID] = append(of[o.TenantID], o)
	}
	c.Tenants = make([]tenants.ConfiguredTenant, len(found))
	for i := range found {
		c.Tenants[i] = tenants.ConfiguredTenant{Tenant: found[i], Overrides: of[found[i].ID]}
	}
	return nil
}

func readNetworks(ctx context.Context, q querier, c *tenants.Configuration) error {
	rows, err := collect[networkRow](ctx, q, selectNetworks+`WHERE n.cidr IS NOT NULL ORDER BY n.cidr, n.action`)
	if err != nil {
		return err
	}
	c.Networks = make([]tenants.Network, 0, len(rows))
	for i := range rows {
		n, err := networkFrom(&rows[i])
		if err != nil {
			c.Broken = append(c.Broken, broken("networks", fmt.Sprint(n.ID), err))
			continue
		}
		c.Networks = append(c.Networks, n)
	}
	return nil
}
