package httpapi

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// ListAudit is GET /admin/audit.
func (a *admin) ListAudit(c *gin.Context, params gen.ListAuditParams) {
	page, err := a.repository.ListAudit(c.Request.Context(), auditFilter(gen.ExportAuditParams{
		Actor: params.Actor, Action: params.Action, Resource: params.Resource, ResourceId: params.ResourceId, Tenant: params.Tenant, From: params.From, To: params.To,
	}), pageOf(params.Limit, params.Cursor))
	list(a, c, page, err, showEntry)
}

// ExportAudit is GET /admin/audit/export.
func (a *admin) ExportAudit(c *gin.Context, params gen.ExportAuditParams) {
	filter := auditFilter(params)
	stream := &export[audit.Entry]{
		name: "pegel-audit",
		page: func(ctx context.Context, p tenants.Page) (tenants.List[audit.Entry], error) {
			return a.repository.ListAudit(ctx, filter, p)
		},
		show:    func(e *audit.Entry) any { return showEntry(e) },
		columns: []string{"id", "time", "actor_kind", "actor_id", "actor_name", "actor_address", "request_id", "action", "resource", "resource_id", "tenant", "diff"},
		cells:   entryCells,
	}
	stream.send(a, c, string(orZero(params.Format)))
}

func auditFilter(p gen.ExportAuditParams) audit.Filter { //nolint:gocritic // a handful of pointers
	return audit.Filter{
		Actor: orZero(p.Actor), Action: orZero(p.Action), Resource: orZero(p.Resource), ResourceID: orZero(p.ResourceId), Tenant: orZero(p.Tenant),
		From: orZero(p.From), To: orZero(p.To),
	}
}

func showEntry(e *audit.Entry) gen.AuditEntry {
	return gen.AuditEntry{
		Tenant: orAbsent(e.Tenant), Id: e.ID, Time: e.Time.UTC(), Action: e.Action, Resource: e.Resource, ResourceId: e.ResourceID,
		Actor: gen.AuditActor{Kind: e.Actor.Kind, Id: e.Actor.ID, Name: e.Actor.Name, Address: e.Actor.Address, RequestId: e.Actor.RequestID},
		Diff:  showDiff(e.Diff),
	}
}

func showDiff(diff []audit.Change) []gen.AuditChange {
	out := make([]gen.AuditChange, len(diff))
	for i, change := range diff {
		out[i] = gen.AuditChange{Field: change.Field, From: anyJSON(change.From), To: anyJSON(change.To)}
	}
	return out
}

// entryCells are an entry's cells in a CSV file; the diff is one of them, as JSON.
func entryCells(e *audit.Entry) []string {
	diff, err := json.Marshal(e.Diff)
	if err != nil { // it was read as JSON
		diff = nil
	}
	return []string{
		strconv.FormatInt(e.ID, 10), e.Time.UTC().Format(time.RFC3339Nano), e.Actor.Kind, e.Actor.ID, e.Actor.Name, e.Actor.Address, e.Actor.RequestID,
		e.Action, e.Resource, e.ResourceID, e.Tenant, string(diff),
	}
}

// anyJSON is a value of the audit log; null and nothing are both left out.
func anyJSON(raw json.RawMessage) any {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	return raw
}
