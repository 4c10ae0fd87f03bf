package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/journal"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// maxRequestPage bounds a page of the request log: an export reads more at a time than anybody shows.
const maxRequestPage = 5_000

// Explanation reads why a decision fell as it did.
func (j *Journal) Explanation(ctx context.Context, id uuid.UUID) (e journal.Explanation, err error) {
	err = j.reads.read(ctx, "read an explanation", func(ctx context.Context, q querier) error {
		var body []byte
		err := q.QueryRow(ctx, `SELECT at, last_at, count, body FROM decisions WHERE id = $1 AND last_at > now() - $2::interval`, id, journal.ExplainedFor).
			Scan(&e.At, &e.LastAt, &e.Count, &body)
		if errors.Is(err, pgx.ErrNoRows) {
			return tenants.ErrNotFound
		}
		if err != nil {
			return err
		}
		if err := json.Unmarshal(body, &e); err != nil {
			return fmt.Errorf("explanation %s: %w", id, err)
		}
		return nil
	})
	e.ID, e.At, e.LastAt = id, e.At.UTC(), e.LastAt.UTC()
	return e, err
}

// ListRequests lists the request log from the newest row down. Rows never change and ids are unique, so pages neither skip nor
// repeat what is there throughout.
func (j *Journal) ListRequests(ctx context.Context, f journal.Filter, p tenants.Page) (list tenants.List[journal.Request], err error) {
	key, err := decodeCursor("requests", p.Cursor)
	if err != nil {
		return list, err
	}
	var after uuid.UUID
	if key != "" {
		if after, err = uuid.Parse(key); err != nil {
			return list, tenants.ErrCursor
		}
	}
	size := 50
	if p.Limit > 0 {
		size = min(p.Limit, maxRequestPage)
	}
	where, args := requestFilter(&f, after)
	sql := `SELECT ` + strings.Join(requestColumns, ", ") + ` FROM request_log` + where + fmt.Sprintf(` ORDER BY id DESC LIMIT %d`, size+1)
	err = j.reads.read(ctx, "list the request log", func(ctx context.Context, q querier) error {
		rows, err := q.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, scanRequest)
		list = page("requests", found, size, func(r *journal.Request) string { return r.ID.String() })
		return err
	})
	return list, err
}

// requestFilter names only the conditions that are asked for, in the form that their index has.
func requestFilter(f *journal.Filter, after uuid.UUID) (string, []any) {
	var conditions []string
	var args []any
	add := func(condition string, arg any) {
		args = append(args, arg)
		conditions = append(conditions, strings.ReplaceAll(condition, "?", fmt.Sprintf("$%d", len(args))))
	}
	if after != uuid.Nil {
		add("id < ?", after)
	}
	for _, text := range []struct{ column, value string }{
		{"tenant", f.Tenant}, {"address", f.Address}, {"limit_name", f.LimitName}, {"decision", string(f.Verdict)}, {"door", string(f.Door)},
	} {
		if text.value != "" {
			add(text.column+" = ?::text AND "+text.column+" <> ''", text.value)
		}
	}
	if f.DecisionID != uuid.Nil {
		add("decision_id = ?", f.DecisionID)
	}
	if !f.From.IsZero() { // the id is to the millisecond, the time decides within it
		add("id >= ?", idAt(f.From))
		add("at >= ?", f.From)
	}
	if !f.To.IsZero() {
		add("id < ?", idAt(f.To.Add(time.Millisecond)))
		add("at < ?", f.To)
	}
	if len(conditions) == 0 {
		return "", nil
	}
	return " WHERE " + strings.Join(conditions, " AND "), args
}

func scanRequest(row pgx.CollectableRow) (r journal.Request, err error) {
	var decisionID uuid.NullUUID
	var verdict, reason, door, source string
	var delay int64
	err = row.Scan(&r.ID, &r.At, &decisionID, &r.Count, &verdict, &r.Shadow, &reason, &r.Tenant, &r.Plan, &r.User, &r.Key, &r.Address, &r.Service,
		&r.Method, &r.Path, &door, &r.LimitName, &r.Used, &r.Quota, &r.Cost, &delay, &source, &r.Replica)
	r.At, r.DecisionID, r.Delay = r.At.UTC(), decisionID.UUID, time.Duration(delay)*time.Millisecond
	r.Verdict, r.Reason, r.Door, r.Source = decision.Verdict(verdict), journal.Reason(reason), decision.Door(door), ratelimit.Source(source)
	return r, err
}

// ListGaps lists what replicas dropped within a stretch of time; zero times are open ends.
func (j *Journal) ListGaps(ctx context.Context, from, to time.Time) (gaps []journal.Gap, err error) {
	err = j.reads.read(ctx, "list the gaps of the request log", func(ctx context.Context, q querier) error {
		rows, err := q.Query(ctx, `
			SELECT replica, since, until, requests, decisions FROM journal_gaps
			WHERE until >= coalesce($1, '-infinity'::timestamptz) AND since < coalesce($2, 'infinity'::timestamptz)
			ORDER BY until DESC, id DESC LIMIT 100`, nullable(from), nullable(to))
		if err != nil {
			return err
		}
		gaps, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (g journal.Gap, err error) {
			err = row.Scan(&g.Replica, &g.From, &g.To, &g.Requests, &g.Decisions)
			g.From, g.To = g.From.UTC(), g.To.UTC()
			return g, err
		})
		return err
	})
	return gaps, err
}
