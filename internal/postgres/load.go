package postgres

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// Version is the current configuration version.
func (r *Repository) Version(ctx context.Context) (version int64, err error) {
	err = r.read(ctx, "read configuration version", func(ctx context.Context, q querier) error {
		return q.QueryRow(ctx, `SELECT version FROM config_version`).Scan(&version)
	})
	return version, err
}

// Load reads what changed after a version, in one snapshot of the database. It reads everything when since is 0, when it is
// older than the deletions that are remembered (a day), or when it is newer than the database (which was restored).
// Credentials that ended more than a day ago are left out of a full load. A row that cannot be read costs nobody but its
// owner: it is named in Broken, and safe defaults stand in for it.
func (r *Repository) Load(ctx context.Context, since int64) (c tenants.Changes, err error) {
	bounded, cancel := context.WithTimeout(ctx, loadWithin)
	defer cancel()
	err = pgx.BeginTxFunc(bounded, r.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		l := &loading{q: tx, since: since, into: &c}
		return l.run(bounded)
	})
	return c, translate(ctx, "load configuration", err)
}

// loading is one load under way.
type loading struct {
	q     querier
	since int64
	into  *tenants.Changes
}

func (l *loading) run(ctx context.Context) error {
	if err := l.head(ctx); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{l.plans, l.tenants, l.overrides, l.policy, l.networks, l.keys, l.services, l.admins, l.deletions} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// head reads the version, decides between some and all, and takes the mode.
func (l *loading) head(ctx context.Context) error {
	var deletionsSince, modeChanged int64
	var mode *string
	err := l.q.QueryRow(ctx, `SELECT version, installation, deletions_since, mode, mode_changed_in FROM config_version`).
		Scan(&l.into.Version, &l.into.Installation, &deletionsSince, &mode, &modeChanged)
	if err != nil {
		return fmt.Errorf("configuration version: %w", err)
	}
	if l.since <= 0 || l.since < deletionsSince || l.since > l.into.Version {
		l.since, l.into.Full = 0, true
	}
	if !l.into.Full && modeChanged <= l.since {
		return nil
	}
	m := ratelimit.Mode(orZero(mode))
	if mode != nil && len(tenants.ValidateMode(m)) > 0 {
		l.broken("config_version", "mode", fmt.Errorf("it is neither enforce nor shadow"))
		m = ""
	}
	l.into.Mode = &m
	return nil
}

func (l *loading) broken(table, id string, err error) {
	l.into.Broken = append(l.into.Broken, broken(table, id, err))
}

// changed is the condition that picks a table's rows: all of them in a full load, also those with a stamp of NULL.
func (l *loading) changed(alias string) string {
	if l.into.Full {
		return "$1::bigint = 0"
	}
	return alias + "changed_in > $1::bigint"
}

func (l *loading) plans(ctx context.Context) error {
	plans, bad, err := queryPlans(ctx, l.q, selectPlans+`WHERE `+l.changed("p."), l.since)
	l.into.Plans, l.into.Broken = plans, append(l.into.Broken, bad...)
	return err
}

func (l *loading) tenants(ctx context.Context) error {
	found, bad, err := queryTenants(ctx, l.q, selectTenants+`WHERE `+l.changed("t."), l.since)
	l.into.Tenants, l.into.Broken = found, append(l.into.Broken, bad...)
	return err
}

type overrideRow struct {
	TenantID          int64
	LimitName, Reason *string
	Quota             *int64

	ExpiresAt, UpdatedAt, LastUsedAt pgtype.Timestamptz
}

const (
	overrideColumns = ` o.tenant_id, left(o.limit_name, 100), left(o.reason, 600), o.quota, o.expires_at, o.updated_at, o.last_used_at `
	selectOverrides = `SELECT` + overrideColumns + `FROM overrides o `
)

func (l *loading) overrides(ctx context.Context) error {
	rows, err := collect[overrideRow](ctx, l.q, selectOverrides+`WHERE `+l.changed("o."), l.since)
	if err != nil {
		return err
	}
	for i := range rows {
		o, err := overrideFrom(&rows[i])
		if err != nil {
			l.broken("overrides", fmt.Sprintf("tenant %d, limit %s", o.TenantID, cut(o.LimitName)), err)
			l.into.DeletedOverrides = append(l.into.DeletedOverrides, o) // the plan's limit holds
			continue
		}
		l.into.Overrides = append(l.into.Overrides, o)
	}
	return nil
}

func (l *loading) policy(ctx context.Context) error {
	p, changedIn, bad, err := queryPolicy(ctx, l.q)
	if err != nil || (!l.into.Full && changedIn <= l.since) {
		return err
	}
	l.into.AddressPolicy, l.into.Broken = &p, append(l.into.Broken, bad...)
	return nil
}

type networkRow struct {
	ID                   int64
	CIDR                 netip.Prefix
	Action, Reason       *string
	ExpiresAt, CreatedAt pgtype.Timestamptz
}

const selectNetworks = `SELECT n.id, n.cidr, n.action, left(n.reason, 600), n.expires_at, n.created_at FROM networks n `

func (l *loading) networks(ctx context.Context) error {
	rows, err := collect[networkRow](ctx, l.q, selectNetworks+`WHERE n.cidr IS NOT NULL AND `+l.changed("n."), l.since)
	if err != nil {
		return err
	}
	for i := range rows {
		n, err := networkFrom(&rows[i])
		if err != nil {
			l.broken("networks", strconv.FormatInt(n.ID, 10), err)
			l.into.DeletedNetworks = append(l.into.DeletedNetworks, n.ID)
			continue
		}
		l.into.Networks = append(l.into.Networks, n)
	}
	return nil
}

// live leaves out, in a full load, credentials that ended more than a day ago.
func (l *loading) live() string {
	if !l.into.Full {
		return ""
	}
	return ` AND COALESCE(LEAST(expires_at, revoked_at), 'infinity') > now() - interval '1 day'`
}

func (l *loading) keys(ctx context.Context) error {
	rows, err := collect[keyRow](ctx, l.q, selectKeys+`WHERE `+l.changed("")+l.live(), l.since)
	if err != nil {
		return err
	}
	l.into.APIKeys = make([]tenants.APIKey, 0, len(rows))
	for i := range rows {
		k, err := keyFrom(&rows[i])
		if err != nil {
			l.broken("api_keys", k.ID, err)
			k.Hash = [32]byte{} // nobody's secret
		}
		l.into.APIKeys = append(l.into.APIKeys, k)
	}
	return nil
}

func (l *loading) services(ctx context.Context) error {
	rows, err := collect[serviceRow](ctx, l.q, selectService+`WHERE `+l.changed("")+l.live(), l.since)
	if err != nil {
		return err
	}
	for i := range rows {
		t, err := serviceFrom(&rows[i])
		if err != nil {
			l.broken("service_tokens", t.ID, err)
			t.Hash = [32]byte{}
		}
		l.into.ServiceTokens = append(l.into.ServiceTokens, t)
	}
	return nil
}

func (l *loading) admins(ctx context.Context) error {
	rows, err := collect[adminRow](ctx, l.q, selectAdmin+`WHERE `+l.changed("")+l.live(), l.since)
	if err != nil {
		return err
	}
	for i := range rows {
		t, err := adminFrom(&rows[i])
		if err != nil {
			l.broken("admin_tokens", t.ID, err)
			t.Hash = [32]byte{}
		}
		l.into.AdminTokens = append(l.into.AdminTokens, t)
	}
	return nil
}

type deletionRow struct {
	Kind      string
	ObjectID  int64
	LimitName string
}

func (l *loading) deletions(ctx context.Context) error {
	if l.into.Full {
		return nil
	}
	rows, err := collect[deletionRow](ctx, l.q, `SELECT kind, object_id, limit_name FROM config_deletions WHERE changed_in > $1 ORDER BY id`, l.since)
	if err != nil {
		return err
	}
	for _, d := range rows {
		switch d.Kind {
		case "plan":
			l.into.DeletedPlans = append(l.into.DeletedPlans, d.ObjectID)
		case "tenant":
			l.into.DeletedTenants = append(l.into.DeletedTenants, d.ObjectID)
		case "network":
			l.into.DeletedNetworks = append(l.into.DeletedNetworks, d.ObjectID)
		case "override":
			l.into.DeletedOverrides = append(l.into.DeletedOverrides, tenants.Override{TenantID: d.ObjectID, LimitName: d.LimitName})
		}
	}
	return nil
}
