package httpapi

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// ListPlans is GET /admin/plans.
func (a *admin) ListPlans(c *gin.Context, params gen.ListPlansParams) {
	page, err := a.repository.ListPlans(c.Request.Context(), tenants.PlanFilter{Search: orZero(params.Search)}, pageOf(params.Limit, params.Cursor))
	list(a, c, page, err, showPlan)
}

// CreatePlan is POST /admin/plans.
func (a *admin) CreatePlan(c *gin.Context, params gen.CreatePlanParams) {
	plan, err := readPlan(c)
	if err != nil {
		a.fail(c, err)
		return
	}
	a.post(c, params.IdempotencyKey, func(ctx context.Context) (outcome, error) {
		stored, err := a.repository.CreatePlan(ctx, actor(c), plan)
		return outcome{status: http.StatusCreated, location: planPath(stored.Name), version: stored.Version, body: showPlan(&stored)}, err
	})
}

// GetPlan is GET /admin/plans/{plan}.
func (a *admin) GetPlan(c *gin.Context, name gen.PlanName) {
	plan, err := a.repository.Plan(c.Request.Context(), name)
	a.tagged(c, plan.Version, showPlan(&plan), err)
}

// PutPlan is PUT /admin/plans/{plan}.
func (a *admin) PutPlan(c *gin.Context, name gen.PlanName, params gen.PutPlanParams) {
	plan, err := readPlan(c)
	if err == nil && plan.Name != name {
		err = invalid("/name", "must be the name in the path")
	}
	if err != nil {
		a.fail(c, err)
		return
	}
	pre, matching, err := readIfMatch(params.IfMatch)
	switch {
	case err != nil:
		a.fail(c, err)
		return
	case matching && params.IfNoneMatch != nil:
		a.fail(c, invalid("/header/If-None-Match", "must not come with If-Match"))
		return
	case !matching: // whatever was asked for, it can only be to create
		pre.Absent = true
	}
	before, err := a.planBefore(c.Request.Context(), name)
	if err != nil {
		a.fail(c, err)
		return
	}
	stored, created, err := a.repository.PutPlan(c.Request.Context(), actor(c), plan, pre)
	if err != nil {
		a.fail(c, orRequired(err, matching || params.IfNoneMatch != nil))
		return
	}
	done := outcome{status: http.StatusOK, version: stored.Version, body: showPlan(&stored)}
	if created {
		done.status, done.location = http.StatusCreated, planPath(stored.Name)
	}
	tellNewCounters(c, before, &stored)
	a.finish(c, &done, nil)
}

// DeletePlan is DELETE /admin/plans/{plan}.
func (a *admin) DeletePlan(c *gin.Context, name gen.PlanName, params gen.DeletePlanParams) {
	ctx := c.Request.Context()
	pre, err := mustMatch(ctx, params.IfMatch, func(ctx context.Context) error {
		_, err := a.repository.Plan(ctx, name)
		return err
	})
	if err == nil {
		err = a.repository.DeletePlan(ctx, actor(c), name, pre)
	}
	a.deleted(c, err)
}

func planPath(name string) string { return "/admin/plans/" + name }

// readPlan is the plan in the body, with its defaults and within all bounds.
func readPlan(c *gin.Context) (tenants.Plan, error) {
	var in gen.PlanInput
	if err := decodeBody(c, &in); err != nil {
		return tenants.Plan{}, err
	}
	var d durations
	plan := readPlanInput(&d, "", &in)
	if err := d.err(); err != nil {
		return plan, err
	}
	plan.SetDefaults()
	return plan, invalidConfig(tenants.ValidatePlan(&plan))
}

// readPlanInput is the plan that a body describes at a pointer. What is left out stays empty.
func readPlanInput(d *durations, at string, in *gen.PlanInput) tenants.Plan {
	plan := tenants.Plan{Name: in.Name, Title: orZero(in.Title), RequestLog: tenants.RequestLog(orZero(in.RequestLog))}
	if in.Alert != nil {
		plan.Alert = tenants.Alert{At: in.Alert.At, For: d.read(at+"/alert/for", in.Alert.For)}
		if plan.Alert == (tenants.Alert{}) { // not the same as leaving alert out
			d.wrong = append(d.wrong, problem.FieldError{Pointer: at + "/alert/at", Message: "must be above 0 and at most 1"})
		}
	}
	plan.Limits = readRules(d, at+"/limits", in.Limits)
	return plan
}

func showPlan(p *tenants.Plan) gen.Plan {
	return gen.Plan{
		Id: p.ID, Name: p.Name, Title: p.Title, RequestLog: gen.RequestLog(p.RequestLog),
		Alert:  gen.Alert{At: p.Alert.At, For: formatDuration(p.Alert.For)},
		Limits: showRules(p.Limits), Version: p.Version, CreatedAt: p.CreatedAt.UTC(), UpdatedAt: p.UpdatedAt.UTC(),
	}
}
