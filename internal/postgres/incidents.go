package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/pegel-dev/pegel/internal/alert"
	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// incidentColumns are an incident with its messages. While it lasts its level is what was last seen.
const incidentColumns = `i.id, i.kind, i.subject, i.facts, i.since, i.opened_at, i.resolved_at, coalesce(s.value, i.value) AS value,
	greatest(i.peak, s.peak) AS peak, i.acked_at, i.acked_by, i.remind_at, i.reminders, coalesce(d.deliveries, '[]') AS deliveries
	FROM incidents i LEFT JOIN alert_states s ON s.kind = i.kind AND s.subject = i.subject AND i.resolved_at IS NULL
	LEFT JOIN LATERAL (
		SELECT jsonb_agg(jsonb_build_object('channel', o.channel, 'occasion', o.occasion, 'attempts', o.attempts, 'error', o.error,
			'status', CASE WHEN o.sent THEN 'sent' WHEN o.done_at IS NOT NULL THEN 'failed' ELSE 'pending' END,
			'at', coalesce(o.done_at, o.due_at)) ORDER BY o.id) AS deliveries
		FROM (SELECT * FROM outbox WHERE incident_id = i.id ORDER BY id DESC LIMIT 50) o) d ON true`

type incidentRow struct {
	ID              int64
	Kind, Subject   string
	Facts           []byte
	Since, OpenedAt time.Time
	ResolvedAt      *time.Time
	Value, Peak     float64
	AckedAt         *time.Time
	AckedBy         string
	RemindAt        *time.Time
	Reminders       int
	Deliveries      []byte
}

func incidentFrom(r *incidentRow) (alert.Incident, error) {
	in := alert.Incident{
		ID: r.ID, Key: alert.Key{Kind: alert.Kind(r.Kind), Subject: r.Subject}, Since: r.Since.UTC(), OpenedAt: r.OpenedAt.UTC(),
		ResolvedAt: orZero(r.ResolvedAt).UTC(), Value: r.Value, Peak: r.Peak, AckedAt: orZero(r.AckedAt).UTC(), AckedBy: r.AckedBy,
		RemindAt: orZero(r.RemindAt).UTC(), Reminders: r.Reminders,
	}
	if err := json.Unmarshal(r.Facts, &in.Facts); err != nil {
		return in, fmt.Errorf("facts of incident %d: %w", r.ID, err)
	}
	if err := json.Unmarshal(r.Deliveries, &in.Deliveries); err != nil {
		return in, fmt.Errorf("messages of incident %d: %w", r.ID, err)
	}
	for i := range in.Deliveries {
		in.Deliveries[i].At = in.Deliveries[i].At.UTC()
	}
	return in, nil
}

func loadOpen(ctx context.Context, q querier) (map[alert.Key]alert.Incident, error) {
	rows, err := collect[incidentRow](ctx, q, `
		SELECT id, kind, subject, facts, since, opened_at, resolved_at, value, peak, acked_at, acked_by, remind_at, reminders, '[]'::jsonb AS deliveries
		FROM incidents WHERE resolved_at IS NULL`)
	if err != nil {
		return nil, fmt.Errorf("read open incidents: %w", err)
	}
	open := make(map[alert.Key]alert.Incident, len(rows))
	for i := range rows {
		in, err := incidentFrom(&rows[i])
		if err != nil {
			return nil, err
		}
		open[in.Key] = in
	}
	return open, nil
}

// ListIncidents implements alert.Incidents.
func (r *Repository) ListIncidents(ctx context.Context, f alert.Filter, p tenants.Page) (list tenants.List[alert.Incident], err error) {
	before, err := decodeNumber("incidents", p.Cursor, math.MaxInt64)
	if err != nil {
		return list, err
	}
	where, args := incidentFilter(f, before)
	var items []alert.Incident
	err = r.read(ctx, "list incidents", func(ctx context.Context, q querier) error {
		rows, err := collect[incidentRow](ctx, q, `SELECT `+incidentColumns+` WHERE `+where+fmt.Sprintf(` ORDER BY i.id DESC LIMIT %d`, pageSize(p)+1), args...)
		if err != nil {
			return err
		}
		for i := range rows {
			in, err := incidentFrom(&rows[i])
			if err != nil {
				return err
			}
			items = append(items, in)
		}
		return nil
	})
	if err != nil {
		return list, err
	}
	return page("incidents", items, pageSize(p), func(in *alert.Incident) string { return strconv.FormatInt(in.ID, 10) }), nil
}

// incidentFilter names only the conditions that are asked for.
func incidentFilter(f alert.Filter, before int64) (string, []any) {
	conditions, args := []string{"i.id < $1"}, []any{before}
	add := func(condition string, arg any) {
		args = append(args, arg)
		conditions = append(conditions, strings.ReplaceAll(condition, "?", fmt.Sprintf("$%d", len(args))))
	}
	switch f.Status {
	case "open":
		conditions = append(conditions, "i.resolved_at IS NULL")
	case "acknowledged":
		conditions = append(conditions, "i.resolved_at IS NULL AND i.acked_at IS NOT NULL")
	case "resolved":
		conditions = append(conditions, "i.resolved_at IS NOT NULL")
	}
	if f.Kind != "" {
		add("i.kind = ?", string(f.Kind))
	}
	if f.Tenant != "" {
		add("i.tenant = ?", f.Tenant)
	}
	if !f.From.IsZero() {
		add("i.opened_at >= ?", f.From)
	}
	if !f.To.IsZero() {
		add("i.opened_at < ?", f.To)
	}
	return strings.Join(conditions, " AND "), args
}

// AckIncident implements alert.Incidents.
func (r *Repository) AckIncident(ctx context.Context, a audit.Actor, id int64) (in alert.Incident, err error) {
	read := func(ctx context.Context, q querier) error {
		row, err := one[incidentRow](ctx, q, `SELECT `+incidentColumns+` WHERE i.id = $1`, id)
		if err != nil {
			return err
		}
		in, err = incidentFrom(row)
		return err
	}
	err = r.change(ctx, a, "acknowledge an incident", func(ctx context.Context, c *change) error {
		if err := read(ctx, c); err != nil {
			return err
		}
		switch {
		case !in.ResolvedAt.IsZero():
			return &tenants.ConflictError{Detail: "the incident is over"}
		case !in.AckedAt.IsZero():
			return errNothingToDo
		}
		before := map[string]any{"acknowledged": false}
		_, err := c.Exec(ctx, `UPDATE incidents SET acked_at = clock_timestamp(), acked_by = $2 WHERE id = $1 AND acked_at IS NULL`, id, clip(a.Name))
		if err != nil {
			return err
		}
		if err := read(ctx, c); err != nil {
			return err
		}
		return c.record(ctx, "alert.ack", "alert", strconv.FormatInt(id, 10), before, map[string]any{"acknowledged": true})
	})
	return in, err
}
