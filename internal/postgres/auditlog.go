package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// ListAudit lists entries from the newest down. Filter.Actor is an actor's id or name. From is inclusive, To exclusive.
func (r *Repository) ListAudit(ctx context.Context, f audit.Filter, p tenants.Page) (list tenants.List[audit.Entry], err error) {
	before, err := decodeNumber("audit", p.Cursor, math.MaxInt64)
	if err != nil {
		return list, err
	}
	where, args := auditFilter(f, before)
	sql := `SELECT id, at, actor_kind, actor_id, actor_name, actor_address, request_id, action, resource, resource_id, diff
		FROM audit_log WHERE ` + where + fmt.Sprintf(` ORDER BY id DESC LIMIT %d`, pageSize(p)+1)
	err = r.read(ctx, "list audit log", func(ctx context.Context, q querier) error {
		rows, err := q.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		entries, err := pgx.CollectRows(rows, scanEntry)
		list = pageOf("audit", entries, pageSize(p), func(e *audit.Entry) int64 { return e.ID }, func(e *audit.Entry) audit.Entry { return *e })
		return err
	})
	return list, err
}

// auditFilter names only the conditions that are asked for, so that each has its index.
func auditFilter(f audit.Filter, before int64) (string, []any) {
	conditions, args := []string{"id < $1"}, []any{before}
	add := func(condition string, arg any) {
		args = append(args, arg)
		conditions = append(conditions, strings.ReplaceAll(condition, "?", fmt.Sprintf("$%d", len(args))))
	}
	if f.Actor != "" {
		add("(actor_id = ? OR actor_name = ?)", f.Actor)
	}
	if f.Action != "" {
		add("action = ?", f.Action)
	}
	if f.Resource != "" {
		add("resource = ?", f.Resource)
	}
	if f.ResourceID != "" {
		add("resource_id = ?", f.ResourceID)
	}
	if !f.From.IsZero() {
		add("at >= ?", f.From)
	}
	if !f.To.IsZero() {
		add("at < ?", f.To)
	}
	return strings.Join(conditions, " AND "), args
}

func scanEntry(row pgx.CollectableRow) (audit.Entry, error) {
	var e audit.Entry
	var diff []byte
	err := row.Scan(&e.ID, &e.Time, &e.Actor.Kind, &e.Actor.ID, &e.Actor.Name, &e.Actor.Address, &e.Actor.RequestID, &e.Action, &e.Resource, &e.ResourceID, &diff)
	if err != nil {
		return e, err
	}
	e.Time = e.Time.UTC()
	if err := json.Unmarshal(diff, &e.Diff); err != nil {
		return e, fmt.Errorf("diff of audit entry %d: %w", e.ID, err)
	}
	return e, nil
}
