package postgres

import (
	"bytes"
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
	sql, args := requestsSQL(&f, after, size+1)
	err = j.reads.transact(ctx, "list the request log", func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, unsorted); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, scanRequest)
		list = page("requests", found, size, func(r *journal.Request) string { return r.ID.String() })
		return err
	})
	return list, err
}

// unsorted keeps Postgres from collecting all rows of a filter in order to sort them, for the transaction: it guesses how many there
// are from a row comparison, and guesses few.
const unsorted = `SELECT set_config('enable_sort', 'off', true)`

// requestsSQL is the query of a page: rows with an id below `below`, zero for all, the newest first.
//
// One filter, or a tenant with a verdict, has an index that ends in the order of the list, and the query asks for that order in full
// (`ORDER BY tenant, id` over a range of the pair): left to itself, Postgres takes filters for independent and expects to meet the rows
// soon by walking the whole log backwards, which for a tenant that has been silent since yesterday is never. With other
// combinations it knows best which of the indexes has the fewest rows.
func requestsSQL(f *journal.Filter, below uuid.UUID, rows int) (sql string, args []any) {
	low, high := uuid.Nil, uuid.Max
	if !f.From.IsZero() {
		low = idAt(f.From)
	}
	if !f.To.IsZero() {
		high = idAt(f.To.Add(time.Millisecond)) // ids are to the millisecond; within it the time decides
	}
	if below != uuid.Nil && bytes.Compare(below[:], high[:]) < 0 {
		high = below
	}
	columns, values := requestFilters(f)
	args = []any{low, high}
	conditions := []string{"id >= $1", "id < $2"}
	order := ""
	for i, column := range columns {
		args = append(args, values[i])
		if i == 0 && (len(columns) == 1 || column == tenantAndDecision) {
			conditions = append(conditions, fmt.Sprintf("(%s, id) >= ($%d, $1)", column, len(args)), fmt.Sprintf("(%s, id) < ($%d, $2)", column, len(args)))
			order = column + " DESC, "
		} else {
			conditions = append(conditions, fmt.Sprintf("%s = $%d", column, len(args)))
		}
	}
	if !f.From.IsZero() {
		args = append(args, f.From)
		conditions = append(conditions, fmt.Sprintf("at >= $%d", len(args)))
	}
	if !f.To.IsZero() {
		args = append(args, f.To)
		conditions = append(conditions, fmt.Sprintf("at < $%d", len(args)))
	}
	return `SELECT ` + strings.Join(requestColumns, ", ") + ` FROM request_log WHERE ` + strings.Join(conditions, " AND ") +
		` ORDER BY ` + order + fmt.Sprintf(`id DESC LIMIT %d`, rows), args
}

// tenantAndDecision is an index's expression; a slug holds no space.
const tenantAndDecision = `(tenant || ' ' || decision)`

// requestFilters are the columns that a filter names.
func requestFilters(f *journal.Filter) (columns []string, values []any) {
	tenant, verdict, both := f.Tenant, string(f.Verdict), ""
	if tenant != "" && verdict != "" {
		tenant, verdict, both = "", "", tenant+" "+verdict
	}
	for _, text := range []struct{ column, value string }{
		{tenantAndDecision, both}, {"tenant", tenant}, {"decision", verdict}, {"address", f.Address}, {"limit_name", f.LimitName}, {"door", string(f.Door)},
	} {
		if text.value != "" {
			columns, values = append(columns, text.column), append(values, text.value)
		}
	}
	if f.DecisionID != uuid.Nil {
		columns, values = append(columns, "decision_id"), append(values, f.DecisionID)
	}
	return columns, values
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
