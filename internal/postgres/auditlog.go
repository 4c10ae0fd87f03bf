package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// ListAudit lists entries from the newest down. Filter.Actor is an actor's id or name. From is inclusive, To exclusive.
func (r *Repository) ListAudit(ctx context.Context, f audit.Filter, p tenants.Page) (list tenants.List[audit.Entry], err error) {
	key, err := decodeCursor("audit", p.Cursor)
	if err != nil {
		return list, err
	}
	before, err := placeOf(key)
	if err != nil {
		return list, err
	}
	sql, args := auditQuery(f, before, pageSize(p)+1)
	err = r.read(ctx, "list audit log", func(ctx context.Context, q querier) error {
		rows, err := q.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		entries, err := pgx.CollectRows(rows, scanEntry)
		list = page("audit", entries, pageSize(p), func(e *audit.Entry) string {
			return fmt.Sprintf("%d %d", e.Time.UnixMicro(), e.ID)
		})
		return err
	})
	return list, err
}

// RecordRefusals writes entries about attempts that changed nothing. Their time is the database's.
func (r *Repository) RecordRefusals(ctx context.Context, entries []audit.Entry) error {
	return r.transact(ctx, "record refused attempts", func(ctx context.Context, tx pgx.Tx) error {
		for i := range entries {
			e := &entries[i]
			if !e.Actor.Valid() {
				return audit.ErrNoActor
			}
			_, err := tx.Exec(ctx, `
				INSERT INTO audit_log (actor_kind, actor_id, actor_name, actor_address, request_id, action, resource, resource_id, diff)
				VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
				e.Actor.Kind, clip(e.Actor.ID), clip(e.Actor.Name), clip(e.Actor.Address), clip(e.Actor.RequestID), e.Action, e.Resource, clip(e.ResourceID), e.Diff)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// place is where a page of the audit log starts: before an entry, in the order of time and id; nil: from the newest.
type place struct {
	at time.Time
	id int64
}

func placeOf(key string) (*place, error) {
	if key == "" {
		return nil, nil //nolint:nilnil // the first page starts nowhere in particular
	}
	micros, id, _ := strings.Cut(key, " ")
	at, err := strconv.ParseInt(micros, 10, 64)
	if err != nil {
		return nil, tenants.ErrCursor
	}
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return nil, tenants.ErrCursor
	}
	const furthest = 200_000_000_000_000_000 // micros from 1970 to the year 8307, which Postgres and JSON can both hold
	if at < -furthest/4 || at > furthest {
		return nil, tenants.ErrCursor
	}
	return &place{at: time.UnixMicro(at).UTC(), id: n}, nil
}

// auditQuery names only the conditions that are asked for, so that each has its index, and every index ends in the order of
// the list. An actor is looked for by id and by name, one after the other, because an OR would have neither index. The entries of a
// tenant are walked by the index that audit_tenants is.
func auditQuery(f audit.Filter, before *place, most int) (sql string, args []any) {
	arg := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	}
	from, at, id := "audit_log AS a", "a.at", "a.id"
	conditions := []string{"true"}
	if f.Tenant != "" {
		from, at, id = "audit_tenants AS o JOIN audit_log AS a ON a.id = o.audit_id", "o.at", "o.audit_id"
		conditions = append(conditions, "o.tenant = "+arg(f.Tenant))
	}
	if before != nil {
		conditions = append(conditions, "("+at+", "+id+") < ("+arg(before.at)+", "+arg(before.id)+")")
	}
	if f.Action != "" {
		conditions = append(conditions, "a.action = "+arg(f.Action))
	}
	if f.Resource != "" {
		conditions = append(conditions, "a.resource = "+arg(f.Resource))
	}
	if f.ResourceID != "" {
		conditions = append(conditions, "a.resource_id = "+arg(f.ResourceID))
	}
	if !f.From.IsZero() {
		conditions = append(conditions, at+" >= "+arg(f.From))
	}
	if !f.To.IsZero() {
		conditions = append(conditions, at+" < "+arg(f.To))
	}
	branch := func(more string) string {
		return `SELECT a.* FROM ` + from + ` WHERE ` + strings.Join(conditions, " AND ") + more +
			fmt.Sprintf(" ORDER BY %s DESC, %s DESC LIMIT %d", at, id, most)
	}
	found := branch("")
	if f.Actor != "" {
		actor := arg(f.Actor)
		found = "(" + branch(" AND a.actor_id = "+actor) + ") UNION ALL (" + branch(" AND a.actor_name = "+actor+" AND a.actor_id <> "+actor) + ")"
	}
	return `SELECT id, at, actor_kind, actor_id, actor_name, actor_address, request_id, action, resource, resource_id, diff,
		coalesce((SELECT tenant FROM audit_tenants WHERE audit_id = found.id), '')
		FROM (` + found + fmt.Sprintf(`) AS found ORDER BY at DESC, id DESC LIMIT %d`, most), args
}

func scanEntry(row pgx.CollectableRow) (audit.Entry, error) {
	var e audit.Entry
	var diff []byte
	err := row.Scan(&e.ID, &e.Time, &e.Actor.Kind, &e.Actor.ID, &e.Actor.Name, &e.Actor.Address, &e.Actor.RequestID, &e.Action, &e.Resource, &e.ResourceID, &diff, &e.Tenant)
	if err != nil {
		return e, err
	}
	e.Time = e.Time.UTC()
	if err := json.Unmarshal(diff, &e.Diff); err != nil {
		return e, fmt.Errorf("diff of audit entry %d: %w", e.ID, err)
	}
	return e, nil
}
