package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pegel-dev/pegel/internal/usage"
)

// Exchange is where replicas tell each other what they see when Redis cannot carry it.
type Exchange struct{ repository *Repository }

var _ usage.Exchange = Exchange{}

// NewExchange makes one on the repository's database.
func NewExchange(r *Repository) Exchange { return Exchange{repository: r} }

// Name is "postgres".
func (Exchange) Name() string { return "postgres" }

// Publish is in usage.Exchange.
func (e Exchange) Publish(ctx context.Context, instance string, report []byte) error {
	return e.repository.read(ctx, "publish the usage report", func(ctx context.Context, q querier) error {
		_, err := q.Exec(ctx, `
			INSERT INTO usage_reports (instance, reported_at, report) VALUES ($1, clock_timestamp(), $2)
			ON CONFLICT (instance) DO UPDATE SET reported_at = EXCLUDED.reported_at, report = EXCLUDED.report`, instance, report)
		return err
	})
}

// Reports is in usage.Exchange.
func (e Exchange) Reports(ctx context.Context) (reports map[string][]byte, err error) {
	reports = make(map[string][]byte)
	err = e.repository.read(ctx, "read the usage reports", func(ctx context.Context, q querier) error {
		rows, err := q.Query(ctx, `SELECT instance::text, report FROM usage_reports WHERE reported_at > clock_timestamp() - $1::interval`, usage.ReplicaTTL)
		if err != nil {
			return err
		}
		_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (none struct{}, err error) {
			var instance string
			var report []byte
			err = row.Scan(&instance, &report)
			reports[instance] = report
			return none, err
		})
		return err
	})
	return reports, err
}

// Withdraw is in usage.Exchange.
func (e Exchange) Withdraw(ctx context.Context, instance string) error {
	return e.repository.read(ctx, "withdraw the usage report", func(ctx context.Context, q querier) error {
		_, err := q.Exec(ctx, `DELETE FROM usage_reports WHERE instance = $1`, instance)
		return err
	})
}

var _ usage.HistoryStore = (*UsageHistory)(nil)

// UsageHistory is usage.HistoryStore. Its bounds are its callers', not the repository's.
type UsageHistory struct{ repository *Repository }

// NewUsageHistory makes one on the repository's database.
func NewUsageHistory(r *Repository) *UsageHistory { return &UsageHistory{repository: r} }

// Write is in usage.HistoryStore. A total never shrinks, so rows that come twice, or in another order, change nothing.
func (h *UsageHistory) Write(ctx context.Context, instance string, rows []usage.Row) error {
	columns := struct {
		tenants, admitted, slowed, refused, exempt, units []int64
		kinds                                             []int16
		at                                                []time.Time
		names                                             []string
		peaks                                             []float32
	}{}
	for i := range rows {
		r := &rows[i]
		columns.tenants = append(columns.tenants, r.TenantID)
		columns.kinds = append(columns.kinds, int16(r.Kind))
		columns.at = append(columns.at, r.Minute)
		columns.names = append(columns.names, clip(r.Name))
		columns.admitted = append(columns.admitted, r.Admitted)
		columns.slowed = append(columns.slowed, r.Slowed)
		columns.refused = append(columns.refused, r.Refused)
		columns.exempt = append(columns.exempt, r.Exempt)
		columns.units = append(columns.units, r.Units)
		columns.peaks = append(columns.peaks, float32(r.Peak))
	}
	return h.begin(ctx, "write usage history", func(tx pgx.Tx) error {
		// Sharing the mark's lock keeps an hour from being rolled up between these rows and the note that they came late.
		if _, err := tx.Exec(ctx, `SELECT FROM usage_marks WHERE step = 'minute' FOR SHARE`); err != nil {
			return fmt.Errorf("lock the mark: %w", err)
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO usage_minutes AS m (tenant_id, kind, at, name, instance, admitted, slowed, refused, exempt, units, peak)
			SELECT tenant_id, kind, at, name, $1, max(admitted), max(slowed), max(refused), max(exempt), max(units), max(peak)
			FROM unnest($2::bigint[], $3::smallint[], $4::timestamptz[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[],
				$10::bigint[], $11::real[]) AS r (tenant_id, kind, at, name, admitted, slowed, refused, exempt, units, peak)
			GROUP BY tenant_id, kind, at, name ORDER BY tenant_id, kind, at, name
			ON CONFLICT (tenant_id, kind, at, name, instance) DO UPDATE SET
				admitted = GREATEST(m.admitted, EXCLUDED.admitted), slowed = GREATEST(m.slowed, EXCLUDED.slowed),
				refused = GREATEST(m.refused, EXCLUDED.refused), exempt = GREATEST(m.exempt, EXCLUDED.exempt),
				units = GREATEST(m.units, EXCLUDED.units), peak = GREATEST(m.peak, EXCLUDED.peak)`,
			instance, columns.tenants, columns.kinds, columns.at, columns.names, columns.admitted, columns.slowed, columns.refused,
			columns.exempt, columns.units, columns.peaks)
		if err != nil {
			return fmt.Errorf("write the minutes: %w", err)
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO usage_late (hour)
			SELECT DISTINCT date_bin('1 hour', at, 'epoch') FROM unnest($1::timestamptz[]) AS r (at)
			WHERE at < (SELECT rolled_to FROM usage_marks WHERE step = 'minute')
			ON CONFLICT DO NOTHING`, columns.at)
		if err != nil {
			return fmt.Errorf("note late minutes: %w", err)
		}
		return nil
	})
}

// Totals is in usage.HistoryStore.
func (h *UsageHistory) Totals(ctx context.Context, since time.Time) (totals []usage.TotalRow, err error) {
	err = h.repository.read(ctx, "read the totals of usage", func(ctx context.Context, q querier) error {
		rows, err := q.Query(ctx, `
			SELECT instance::text, at, admitted, slowed, refused FROM usage_minutes WHERE tenant_id = 0 AND kind = $1 AND at >= $2`,
			usage.KindTotal, since)
		if err != nil {
			return err
		}
		totals, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t usage.TotalRow, err error) {
			err = row.Scan(&t.Instance, &t.Minute, &t.Admitted, &t.Slowed, &t.Refused)
			return t, err
		})
		return err
	})
	return totals, err
}

// Usage is in usage.History. Each part of the time is read from one table: days as far as they are rolled up, then hours, then
// minutes; a step that a table is too coarse for is read from finer ones alone.
func (h *UsageHistory) Usage(ctx context.Context, q usage.HistoryQuery) (series usage.HistorySeries, err error) {
	err = h.repository.read(ctx, "read the history of usage", func(ctx context.Context, db querier) error {
		rows, err := db.Query(ctx, `
			WITH mark AS (
				SELECT CASE WHEN $5::interval >= '1 hour' THEN (SELECT rolled_to FROM usage_marks WHERE step = 'minute') ELSE '-infinity' END AS hours,
					CASE WHEN $5::interval >= '1 day' THEN (SELECT rolled_to FROM usage_marks WHERE step = 'hour') ELSE '-infinity' END AS days),
			part AS (
				SELECT at, name, admitted, slowed, refused, exempt, units, peak FROM usage_days, mark
				WHERE tenant_id = $1 AND kind = $2 AND at >= $3 AND at < LEAST($4, days)
				UNION ALL
				SELECT at, name, admitted, slowed, refused, exempt, units, peak FROM usage_hours, mark
				WHERE tenant_id = $1 AND kind = $2 AND at >= GREATEST($3, days) AND at < LEAST($4, hours)
				UNION ALL
				SELECT at, name, admitted, slowed, refused, exempt, units, peak FROM usage_minutes, mark
				WHERE tenant_id = $1 AND kind = $2 AND at >= GREATEST($3, hours) AND at < $4),
			most AS (
				SELECT name, row_number() OVER (ORDER BY sum(admitted + slowed + refused) DESC, name) AS place FROM part
				GROUP BY name ORDER BY place LIMIT $6)
			SELECT name, date_bin($5, at, 'epoch') AS step, sum(admitted)::bigint, sum(slowed)::bigint, sum(refused)::bigint,
				sum(exempt)::bigint, sum(units)::bigint, max(peak)
			FROM part JOIN most USING (name) GROUP BY place, name, step ORDER BY place, step`,
			q.TenantID, int16(q.By), q.From, q.To, q.Step, usage.MaxHistoryNames)
		if err != nil {
			return err
		}
		_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (none struct{}, err error) {
			var name string
			var point usage.HistoryPoint
			err = row.Scan(&name, &point.At, &point.Admitted, &point.Slowed, &point.Refused, &point.Exempt, &point.Units, &point.Peak)
			if n := len(series.Names); n == 0 || series.Names[n-1].Name != name {
				series.Names = append(series.Names, usage.HistoryName{Name: name})
			}
			last := &series.Names[len(series.Names)-1]
			point.At = point.At.UTC()
			last.Total.Add(&point.Counts)
			last.Points = append(last.Points, point)
			return none, err
		})
		return err
	})
	return series, err
}

// begin runs fn in a transaction within its caller's bound.
func (h *UsageHistory) begin(ctx context.Context, doing string, fn func(tx pgx.Tx) error) error {
	return translate(ctx, doing, pgx.BeginFunc(ctx, h.repository.pool, fn))
}
