package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

const selectPlans = `SELECT p.id, left(p.name, 100), left(p.title, 300), p.alert_at, p.alert_for_ms, p.request_log, p.version, p.created_at, p.updated_at FROM plans p `

type planRow struct {
	ID                   int64
	Name, Title          *string
	AlertAt              *float64
	AlertForMS           *int64
	RequestLog           *string
	Version              *int64
	CreatedAt, UpdatedAt pgtype.Timestamptz
}

type planLimitRow struct {
	PlanID int64
	Scope  *string
	limitRow
}

// ListPlans lists by name.
func (r *Repository) ListPlans(ctx context.Context, f tenants.PlanFilter, p tenants.Page) (list tenants.List[tenants.Plan], err error) {
	after, err := decodeCursor("plans", p.Cursor)
	if err != nil {
		return list, err
	}
	err = r.read(ctx, "list plans", func(ctx context.Context, q querier) error {
		plans, _, err := queryPlans(ctx, q, selectPlans+`
			WHERE p.name > $1 AND ($3 = '' OR p.name ILIKE $3 OR p.title ILIKE $3) ORDER BY p.name LIMIT $2`, after, pageSize(p)+1, contains(f.Search))
		list = page("plans", plans, pageSize(p), func(p *tenants.Plan) string { return p.Name })
		return err
	})
	return list, err
}

// Plan reads one plan; a plan with a row that cannot be read shows the limits that hold instead.
func (r *Repository) Plan(ctx context.Context, name string) (plan tenants.Plan, err error) {
	err = r.read(ctx, "read plan", func(ctx context.Context, q querier) error {
		plan, err = planByName(ctx, q, name)
		return err
	})
	return plan, err
}

// CreatePlan stores a new plan.
func (r *Repository) CreatePlan(ctx context.Context, a audit.Actor, p tenants.Plan) (stored tenants.Plan, err error) {
	err = r.change(ctx, a, "create plan", func(ctx context.Context, c *change) error {
		stored, err = c.insertPlan(ctx, p)
		return err
	})
	return stored, err
}

// PutPlan replaces the plan or creates an absent one. Without any precondition it replaces whatever is there.
func (r *Repository) PutPlan(ctx context.Context, a audit.Actor, p tenants.Plan, pre tenants.Precondition) (stored tenants.Plan, created bool, err error) {
	err = r.change(ctx, a, "put plan", func(ctx context.Context, c *change) error {
		before, err := planByName(ctx, c, p.Name)
		switch {
		case errors.Is(err, tenants.ErrNotFound) && pre.Exists():
			return tenants.ErrVersion
		case errors.Is(err, tenants.ErrNotFound):
			created = true
			stored, err = c.insertPlan(ctx, p)
			return err
		case err != nil:
			return err
		case !pre.Holds(before.Version):
			return tenants.ErrVersion
		}
		if err := c.updatePlanRow(ctx, before.ID, &p); err != nil {
			return err
		}
		if err := c.putLimits(ctx, before.ID, p.Limits); err != nil {
			return err
		}
		if stored, err = planByName(ctx, c, p.Name); err != nil {
			return err
		}
		return c.record(ctx, "plan.update", "plan", p.Name, planFields(&before), planFields(&stored))
	})
	return stored, created, err
}

// DeletePlan removes a plan that no tenant has.
func (r *Repository) DeletePlan(ctx context.Context, a audit.Actor, name string, pre tenants.Precondition) error {
	return r.change(ctx, a, "delete plan", func(ctx context.Context, c *change) error {
		before, err := planByName(ctx, c, name)
		if err != nil {
			return err
		}
		if !pre.Holds(before.Version) {
			return tenants.ErrVersion
		}
		var used int64
		if err := c.QueryRow(ctx, `SELECT count(*) FROM tenants WHERE plan_id = $1`, before.ID).Scan(&used); err != nil {
			return err
		}
		if used > 0 {
			return &tenants.ConflictError{Detail: fmt.Sprintf("the plan is used by %d tenant(s): give them another one first", used)}
		}
		if _, err := c.Exec(ctx, `DELETE FROM plans WHERE id = $1`, before.ID); err != nil {
			return err
		}
		if err := c.bury(ctx, "plan", before.ID, ""); err != nil {
			return err
		}
		return c.record(ctx, "plan.delete", "plan", name, planFields(&before), nil)
	})
}

func (c *change) insertPlan(ctx context.Context, p tenants.Plan) (stored tenants.Plan, err error) {
	id, err := c.insertPlanRow(ctx, &p)
	if err != nil {
		return stored, err
	}
	if err := c.putLimits(ctx, id, p.Limits); err != nil {
		return stored, err
	}
	if stored, err = planByName(ctx, c, p.Name); err != nil {
		return stored, err
	}
	return stored, c.record(ctx, "plan.create", "plan", p.Name, nil, planFields(&stored))
}

// insertPlanRow and updatePlanRow write a plan without its limits. A new object starts at the configuration's version, which no object
// before it has reached: an ETag of a deleted plan never fits another one of its name. The same holds for tenants.
func (c *change) insertPlanRow(ctx context.Context, p *tenants.Plan) (id int64, err error) {
	err = c.QueryRow(ctx, `
		INSERT INTO plans (name, title, alert_at, alert_for_ms, request_log, version, changed_in) VALUES ($1, $2, $3, $4, $5, $6, $6) RETURNING id`,
		p.Name, p.Title, p.Alert.At, p.Alert.For.Milliseconds(), string(p.RequestLog), c.version).Scan(&id)
	return id, err
}

func (c *change) updatePlanRow(ctx context.Context, id int64, p *tenants.Plan) error {
	_, err := c.Exec(ctx, `
		UPDATE plans SET title = $2, alert_at = $3, alert_for_ms = $4, request_log = $5, version = version + 1, changed_in = $6, updated_at = now()
		WHERE id = $1`, id, p.Title, p.Alert.At, p.Alert.For.Milliseconds(), string(p.RequestLog), c.version)
	return err
}

// putLimits replaces the limits of a plan.
func (c *change) putLimits(ctx context.Context, planID int64, rules []tenants.Rule) error {
	if _, err := c.Exec(ctx, `DELETE FROM limits WHERE plan_id = $1`, planID); err != nil {
		return err
	}
	for i := range rules {
		args := append([]any{planID, i, string(rules[i].Scope)}, limitArgs(&rules[i])...)
		_, err := c.Exec(ctx, `
			INSERT INTO limits (plan_id, position, scope, name, algorithm, quota, window_ms, refill_units, refill_every_ms, cost,
				slowdown_from, slowdown_max_delay_ms, on_store_failure, mode, match_methods, match_paths)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`, args...)
		if err != nil {
			return err
		}
	}
	return nil
}

func planByName(ctx context.Context, q querier, name string) (tenants.Plan, error) {
	plans, _, err := queryPlans(ctx, q, selectPlans+`WHERE p.name = $1`, name)
	if err != nil {
		return tenants.Plan{}, err
	}
	if len(plans) == 0 {
		return tenants.Plan{}, tenants.ErrNotFound
	}
	return plans[0], nil
}

// queryPlans reads the plans of a query with their limits, and says which of them are broken.
func queryPlans(ctx context.Context, q querier, sql string, args ...any) ([]tenants.Plan, []tenants.BrokenRow, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[planRow])
	if err != nil || len(found) == 0 {
		return nil, nil, err
	}
	ids := make([]int64, len(found))
	for i := range found {
		ids[i] = found[i].ID
	}
	limitsOf, err := queryLimits(ctx, q, ids)
	if err != nil {
		return nil, nil, err
	}
	plans := make([]tenants.Plan, len(found))
	var bad []tenants.BrokenRow
	for i := range found {
		plan, rowsBad := planFrom(&found[i], limitsOf[found[i].ID])
		plans[i] = plan
		bad = append(bad, rowsBad...)
	}
	return plans, bad, nil
}

func queryLimits(ctx context.Context, q querier, planIDs []int64) (map[int64][]planLimitRow, error) {
	rows, err := q.Query(ctx, `SELECT l.plan_id, l.scope, `+columnsOfLimit+` FROM limits l WHERE l.plan_id = ANY($1) ORDER BY l.plan_id, l.position`, planIDs)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[planLimitRow])
	if err != nil {
		return nil, err
	}
	of := make(map[int64][]planLimitRow, len(planIDs))
	for i := range found {
		of[found[i].PlanID] = append(of[found[i].PlanID], found[i])
	}
	return of, nil
}

// planFrom makes a plan of its rows. A plan that breaks the rules anywhere keeps its name and gets the built-in limits:
// half a plan would be a guess.
func planFrom(row *planRow, limits []planLimitRow) (tenants.Plan, []tenants.BrokenRow) {
	var nulls error
	plan := tenants.Plan{
		ID: row.ID, Name: textOf(row.Name, &nulls), Title: textOf(row.Title, &nulls),
		Alert:      tenants.Alert{At: orZero(row.AlertAt), For: millis(row.AlertForMS)},
		RequestLog: tenants.RequestLog(textOf(row.RequestLog, &nulls)),
		Version:    orZero(row.Version), CreatedAt: moment(row.CreatedAt), UpdatedAt: moment(row.UpdatedAt),
		Limits: make([]tenants.Rule, 0, len(limits)),
	}
	var bad []tenants.BrokenRow
	for i := range limits {
		rule, err := limits[i].rule(ratelimit.Scope(orZero(limits[i].Scope)))
		if err != nil {
			bad = append(bad, broken("limits", fmt.Sprintf("plan %d (%s), limit %s", row.ID, cut(plan.Name), cut(orZero(limits[i].Name))), err))
			continue
		}
		plan.Limits = append(plan.Limits, rule)
	}
	if err := together(nulls, invalid(tenants.ValidateStoredPlan(&plan))); err != nil {
		bad = append(bad, broken("plans", fmt.Sprintf("%d (%s)", row.ID, cut(plan.Name)), err))
	}
	if len(bad) > 0 {
		plan.Limits, plan.Title, plan.Alert, plan.RequestLog = tenants.BuiltinLimits(), "", tenants.Alert{}, ""
		plan.SetDefaults()
	}
	return plan, bad
}

// planFields is a plan as the audit log shows it: limits by name, so that a diff names the limit that changed.
func planFields(p *tenants.Plan) map[string]any {
	return map[string]any{
		"name": p.Name, "title": p.Title, "request_log": p.RequestLog,
		"alert": map[string]any{"at": p.Alert.At, "for": p.Alert.For.String()}, "limits": ruleFields(p.Limits),
	}
}

func ruleFields(rules []tenants.Rule) map[string]any {
	out := make(map[string]any, len(rules))
	for i := range rules {
		r := &rules[i]
		fields := map[string]any{
			"position": i, "scope": r.Scope, "algorithm": r.Algorithm, "limit": r.Quota, "cost": r.Cost,
			"on_store_failure": r.OnStoreFailure, "mode": r.Mode,
		}
		if r.Algorithm.Bucket() {
			fields["refill"] = strconv.FormatInt(r.Refill.Units, 10) + " per " + r.Refill.Every.String()
		} else {
			fields["window"] = r.Window.String()
		}
		if r.Slowdown != nil {
			fields["slowdown"] = map[string]any{"from": r.Slowdown.From, "max_delay": r.Slowdown.MaxDelay.String()}
		}
		if len(r.Match.Methods) > 0 {
			fields["match_methods"] = r.Match.Methods
		}
		if len(r.Match.Paths) > 0 {
			fields["match_paths"] = r.Match.Paths
		}
		if r.AppliesTo != "" {
			fields["applies_to"] = r.AppliesTo
		}
		out[r.Name] = fields
	}
	return out
}

// timeField shows a moment, or null for never.
func timeField(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format(time.RFC3339Nano)
}
