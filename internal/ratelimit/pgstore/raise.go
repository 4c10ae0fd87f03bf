package pgstore

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// raising is one invocation of rate_limit_raise: its arguments.
type raising struct {
	locks           []int32
	keys            []string
	spans, segments []int64
	rows            []int32
	refills, every  []int64
	units, ages     []int64
}

// raise settles raises: one round trip, one transaction. The portions of a counter are taken together, at the age of the
// youngest, which can only be stricter.
func (s *Store) raise(ctx context.Context, conn *pgxpool.Conn, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
	r := &raising{locks: []int32{}}
	for i := range charges {
		ch, o := &charges[i], &out[i]
		*o = ratelimit.Outcome{Source: ratelimit.SourcePostgres, Counters: slices.Grow(o.Counters[:0], len(ch.Counters))[:len(ch.Counters)]}
		clear(o.Counters)
		if o.Err = check(ch); o.Err != nil {
			continue
		}
		o.Admitted = ch.Hits
		for j := range ch.Counters {
			r.add(&ch.Counters[j], ch.KnownOf(j))
		}
	}
	if len(r.keys) == 0 {
		return nil
	}
	slices.Sort(r.locks)
	r.locks = slices.Compact(r.locks)
	_, err := conn.Exec(ctx, raise, s.now(), patience(ctx), r.locks, r.keys, r.spans, r.segments, r.rows, r.refills, r.every, r.units, r.ages)
	return err
}

const raise = `SELECT rate_limit_raise($1::bigint, $2::text, $3::integer[], $4::text[], $5::bigint[], $6::bigint[], $7::integer[],
	$8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[])`

func (r *raising) add(c *ratelimit.Counter, known []ratelimit.Portion) {
	how := countedBy(c.Limit, 1)
	var units int64
	youngest := int64(-1)
	for _, p := range known {
		age := max(0, p.Age.Microseconds())
		if p.Units <= 0 || (how.span > 0 && age >= how.span) {
			continue
		}
		units += p.Units
		if youngest < 0 || age < youngest {
			youngest = age
		}
	}
	if units == 0 {
		return
	}
	var refill, every int64
	if c.Limit.Algorithm.Bucket() {
		refill, every = max(1, c.Limit.Refill.Units), max(1, c.Limit.Refill.Every.Microseconds())
	}
	r.locks = append(r.locks, lockID(c.Key))
	r.keys = append(r.keys, string(c.Key))
	r.spans = append(r.spans, how.span)
	r.segments = append(r.segments, how.segment)
	r.rows = append(r.rows, how.rows())
	r.refills = append(r.refills, refill)
	r.every = append(r.every, every)
	r.units = append(r.units, units)
	r.ages = append(r.ages, youngest)
}

// portions says how old the live rows' units are: those of a row are as old as its end, a fixed window's as half of what
// has passed of it, so that clocks that differ a little still agree on which window that is.
func (c counted) portions(live segments, now int64) []ratelimit.Portion {
	var all []ratelimit.Portion
	for i, start := range live.starts {
		if live.counts[i] <= 0 {
			continue
		}
		age := max(0, now-start-c.segment)
		if c.span == 0 {
			age = max(0, now-start) / 2
		}
		all = append(all, ratelimit.Portion{Age: time.Duration(age) * time.Microsecond, Units: live.counts[i]})
	}
	return all
}
