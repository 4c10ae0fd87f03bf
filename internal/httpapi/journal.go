package httpapi

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/journal"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

const unexplained = "there is no explanation of this decision: they are kept for 24 hours, of allowed hits only a sample has one, " +
	"and a decision just made is found a second later"

// GetDecision is GET /admin/decisions/{id}.
func (a *admin) GetDecision(c *gin.Context, id uuid.UUID) {
	e, err := a.journal.Explanation(c.Request.Context(), id)
	if errors.Is(err, tenants.ErrNotFound) {
		err = refuse(problem.NotFound, unexplained)
	}
	if err != nil {
		a.fail(c, err)
		return
	}
	a.writeJSON(c, http.StatusOK, showExplanation(&e))
}

func showExplanation(e *journal.Explanation) gen.Explanation {
	out := gen.Explanation{
		Id: e.ID, Time: e.At, LastTime: e.LastAt, Count: e.Count, Decision: gen.Verdict(e.Verdict), Shadow: e.Shadow, Peek: e.Peek,
		Reason: orAbsent(gen.RefusalReason(e.Reason)), Why: e.Why(), Tenant: orAbsent(e.Tenant), Plan: orAbsent(e.Plan), User: orAbsent(e.User),
		Key: orAbsent(e.Key), Address: orAbsent(e.Address), Service: orAbsent(e.Service), Method: orAbsent(e.Method), Door: orAbsent(gen.Door(e.Door)),
		Source: gen.SourceName(e.Source), Replica: e.Replica, Cost: e.Cost, DelayMs: e.Delay.Milliseconds(), LimitName: orAbsent(e.LimitName),
		RetryAfterMs: waitOrAbsent(e.RetryAfter), Limits: make([]gen.ExplainedLimit, len(e.Limits)),
	}
	for i := range e.Limits {
		out.Limits[i] = showExplainedLimit(&e.Limits[i])
	}
	return out
}

func showExplainedLimit(l *journal.LimitLine) gen.ExplainedLimit {
	out := gen.ExplainedLimit{
		Name: l.Name, Scope: gen.Scope(l.Scope), Subject: l.Subject, Algorithm: gen.Algorithm(l.Algorithm), EffectiveAlgorithm: orAbsent(string(l.Effective)),
		Methods: listOrNil(l.Methods), Pattern: orAbsent(l.Pattern), WindowMs: l.Window.Milliseconds(), Limit: l.Quota, PlanLimit: l.PlanQuota,
		Used: l.Used, Remaining: l.Remaining, DelayMs: l.Delay.Milliseconds(), ResetAfterMs: ceilMillis(l.ResetAfter), RetryAfterMs: waitOrAbsent(l.RetryAfter),
		Refused: l.Refused, Mode: gen.Mode(ratelimit.Enforce), Source: gen.SourceName(l.Source),
	}
	if l.Watches {
		out.Mode = gen.Mode(ratelimit.Shadow)
	}
	if l.Override != nil {
		out.Override = &gen.ExplainedOverride{Reason: l.Override.Reason, ExpiresAt: timeOrNull(l.Override.ExpiresAt)}
	}
	return out
}

// ListRequests is GET /admin/requests.
func (a *admin) ListRequests(c *gin.Context, params gen.ListRequestsParams) {
	ctx := c.Request.Context()
	filter, err := a.requestFilter(&requestFilter{
		params.Tenant, params.Decision, params.Address, params.Door, params.LimitName, params.DecisionId, params.From, params.To,
	})
	if err != nil {
		a.fail(c, err)
		return
	}
	page, err := a.journal.ListRequests(ctx, filter, pageOf(params.Limit, params.Cursor))
	if err != nil {
		a.fail(c, err)
		return
	}
	gaps, err := a.journal.ListGaps(ctx, filter.From, filter.To)
	if err != nil {
		a.fail(c, err)
		return
	}
	body := requestsBody{Gaps: make([]gen.RequestGap, len(gaps))}
	body.Items, body.NextCursor = make([]gen.LoggedRequest, len(page.Items)), page.Next
	for i := range page.Items {
		body.Items[i] = showRequest(&page.Items[i])
	}
	for i, g := range gaps {
		body.Gaps[i] = gen.RequestGap{Replica: g.Replica, From: g.From, To: g.To, Requests: g.Requests, Decisions: g.Decisions}
	}
	a.writeJSON(c, http.StatusOK, body)
}

type requestsBody struct {
	pageBody[gen.LoggedRequest]

	Gaps []gen.RequestGap `json:"gaps"`
}

// requestFilter is the query of a list and of an export.
type requestFilter struct {
	tenant     *gen.Slug
	decision   *gen.Verdict
	address    *string
	door       *gen.Door
	limitName  *string
	decisionID *uuid.UUID
	from, to   *time.Time
}

// requestFilter reads the query. An address is looked for in the form it is counted in.
func (a *admin) requestFilter(q *requestFilter) (f journal.Filter, err error) {
	f = journal.Filter{
		Tenant: orZero(q.tenant), Verdict: decision.Verdict(orZero(q.decision)), Door: decision.Door(orZero(q.door)), LimitName: orZero(q.limitName),
		DecisionID: orZero(q.decisionID), From: orZero(q.from), To: orZero(q.to),
	}
	if q.decisionID != nil && *q.decisionID == uuid.Nil {
		return f, invalid("/query/decision_id", "must be the id of a decision")
	}
	if q.address == nil {
		return f, nil
	}
	if group, err := netip.ParsePrefix(*q.address); err == nil {
		f.Address = group.Masked().String()
		return f, nil
	}
	group, ok := a.engine.AddressPrefix(*q.address)
	if !ok {
		return f, invalid("/query/address", msgAddress)
	}
	f.Address = group.Masked().String()
	return f, nil
}

func showRequest(r *journal.Request) gen.LoggedRequest {
	out := gen.LoggedRequest{
		Id: r.ID, Time: r.At, Count: r.Count, Decision: gen.Verdict(r.Verdict), Shadow: r.Shadow, Reason: orAbsent(gen.RefusalReason(r.Reason)),
		DecisionId: orAbsent(r.DecisionID), Tenant: orAbsent(r.Tenant), Plan: orAbsent(r.Plan), User: orAbsent(r.User), Key: orAbsent(r.Key),
		Address: orAbsent(r.Address), Service: orAbsent(r.Service), Method: orAbsent(r.Method), Path: orAbsent(r.Path), Door: orAbsent(gen.Door(r.Door)),
		LimitName: orAbsent(r.LimitName), Cost: r.Cost, DelayMs: r.Delay.Milliseconds(), Source: orAbsent(gen.SourceName(r.Source)), Replica: r.Replica,
	}
	if r.LimitName != "" {
		out.Used, out.Limit = pointer(r.Used), pointer(r.Quota)
	}
	return out
}

// ExportRequests is GET /admin/requests/export.
func (a *admin) ExportRequests(c *gin.Context, params gen.ExportRequestsParams) {
	filter, err := a.requestFilter(&requestFilter{
		params.Tenant, params.Decision, params.Address, params.Door, params.LimitName, params.DecisionId, params.From, params.To,
	})
	if err != nil {
		a.fail(c, err)
		return
	}
	e := export[journal.Request]{
		name: "pegel-requests",
		page: func(ctx context.Context, p tenants.Page) (tenants.List[journal.Request], error) {
			return a.journal.ListRequests(ctx, filter, p)
		},
		show:    func(r *journal.Request) any { return showRequest(r) },
		columns: requestColumns(), cells: requestCells,
	}
	e.send(a, c, string(orZero(params.Format)))
}

func requestColumns() []string {
	return []string{
		"id", "time", "count", "decision_id", "decision", "shadow", "reason", "tenant", "plan", "user", "key", "address", "service", "method", "path",
		"door", "limit_name", "used", "limit", "cost", "delay_ms", "source", "replica",
	}
}

func requestCells(r *journal.Request) []string {
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	used, quota, decisionID := "", "", ""
	if r.LimitName != "" {
		used, quota = number(r.Used), number(r.Quota)
	}
	if r.DecisionID != uuid.Nil {
		decisionID = r.DecisionID.String()
	}
	return []string{
		r.ID.String(), r.At.Format(time.RFC3339Nano), number(r.Count), decisionID, string(r.Verdict), strconv.FormatBool(r.Shadow), string(r.Reason),
		r.Tenant, r.Plan, r.User, r.Key, r.Address, r.Service, r.Method, r.Path, string(r.Door), r.LimitName, used, quota, number(r.Cost),
		number(r.Delay.Milliseconds()), string(r.Source), r.Replica,
	}
}

// orAbsent leaves out what is empty.
func orAbsent[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// waitOrAbsent is a wait in milliseconds, rounded up; absent for none and for one that never ends.
func waitOrAbsent(d time.Duration) *int64 {
	if d <= 0 || d == ratelimit.Never {
		return nil
	}
	return pointer(ceilMillis(d))
}

func ceilMillis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
