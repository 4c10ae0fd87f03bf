package pgstore

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

const (
	// maxKeys is how many distinct counters one transaction may lock: Postgres keeps all sessions' locks in one table of
	// max_locks_per_transaction (64) entries per session.
	maxKeys = 32
	// maxCharges bounds how long one transaction holds its locks when a batch repeats few counters many times.
	maxCharges = 128
	// maxKeyBytes is the longest key stored. ratelimit.CounterKey makes 41; a B-tree entry holds 2.7 kB.
	maxKeyBytes = 256
)

// What rate_limit_decide calls the kinds.
const (
	kindTake   = 0
	kindPeek   = 1
	kindRefund = 2
)

// call is one invocation of rate_limit_decide: its arguments, and where the answers go.
type call struct {
	charges []ratelimit.Charge
	out     []ratelimit.Outcome
	sent    []int // indices in charges of those that go to the database
	counted []counted

	locks                          []int32
	kinds, sizes                   []int32
	hits                           []int64
	keys                           []string
	quotas, units, spans, segments []int64
	rows                           []int32
	shadow                         []bool
}

// nextCall is how many of the charges go into one call: at least one. Raises go in calls of their own.
func nextCall(charges []ratelimit.Charge) int {
	keys := make(map[ratelimit.Key]struct{}, maxKeys)
	for i := range charges {
		if i == maxCharges || (charges[i].Kind == ratelimit.Raise) != (charges[0].Kind == ratelimit.Raise) {
			return i
		}
		for j := range charges[i].Counters {
			if k := charges[i].Kind; k != ratelimit.Peek && k != ratelimit.Account { // those lock nothing
				keys[charges[i].Counters[j].Key] = struct{}{}
			}
		}
		if len(keys) > maxKeys && i > 0 {
			return i
		}
	}
	return len(charges)
}

// newCall encodes the charges. Those that need no counter, or cannot have one, are answered at once.
func newCall(charges []ratelimit.Charge, out []ratelimit.Outcome) *call {
	c := &call{charges: charges, out: out, locks: []int32{}}
	for i := range charges {
		ch, o := &charges[i], &out[i]
		o.Admitted, o.Err, o.Source, o.Portions = 0, nil, ratelimit.SourcePostgres, nil
		o.Counters = slices.Grow(o.Counters[:0], len(ch.Counters))[:len(ch.Counters)]
		clear(o.Counters)
		if err := check(ch); err != nil {
			o.Err = err
			continue
		}
		if len(ch.Counters) == 0 {
			o.Admitted = ch.Hits
			continue
		}
		c.add(i)
	}
	slices.Sort(c.locks)
	c.locks = slices.Compact(c.locks)
	return c
}

func (c *call) empty() bool { return len(c.sent) == 0 }

// add appends one charge to the arguments.
func (c *call) add(i int) {
	ch := &c.charges[i]
	kind, hits := int32(kindTake), ch.Hits
	switch {
	case ch.Kind == ratelimit.Refund:
		kind, hits = kindRefund, 1
	case ch.Kind == ratelimit.Peek, ch.Kind == ratelimit.Account, ch.Cost == 0:
		kind = kindPeek
	}
	c.sent = append(c.sent, i)
	c.kinds = append(c.kinds, kind)
	c.hits = append(c.hits, hits)
	c.sizes = append(c.sizes, int32(len(ch.Counters))) //nolint:gosec // a plan's limits
	for j := range ch.Counters {
		counter := &ch.Counters[j]
		how := countedBy(counter.Limit, ch.Cost)
		units := how.units
		if kind == kindRefund {
			units = timesUpTo(units, ch.Hits)
		}
		c.counted = append(c.counted, how)
		c.keys = append(c.keys, string(counter.Key))
		c.quotas = append(c.quotas, how.room())
		c.units = append(c.units, units)
		c.spans = append(c.spans, how.span)
		c.segments = append(c.segments, how.segment)
		c.rows = append(c.rows, how.rows())
		c.shadow = append(c.shadow, counter.Shadow)
		if kind != kindPeek {
			c.locks = append(c.locks, lockID(counter.Key))
		}
	}
}

// read fills the outcomes from the function's rows.
func (c *call) read(rows pgx.Rows) error {
	counters := c.counted
	for _, i := range c.sent {
		ch, o := &c.charges[i], &c.out[i]
		n := len(ch.Counters)
		found := make([]segments, n)
		var now int64
		for j := range found {
			if err := next(rows, &now, &found[j].starts, &found[j].counts, nil, nil); err != nil {
				return err
			}
		}
		if ch.Kind == ratelimit.Account {
			o.Portions = make([][]ratelimit.Portion, n)
			for j := range found {
				o.Portions[j] = counters[j].portions(found[j], now)
			}
		}
		for j := range found {
			var wrote *int64
			var passed int64
			if err := next(rows, &wrote, nil, nil, &o.Admitted, &passed); err != nil {
				return err
			}
			switch {
			case ch.Kind == ratelimit.Refund:
				found[j].refund(timesUpTo(counters[j].units, ch.Hits))
			case wrote != nil:
				found[j].add(*wrote, passed*counters[j].units)
			}
			o.Counters[j] = counters[j].state(found[j], now, passed, ch.Kind)
		}
		if ch.Kind == ratelimit.Refund {
			o.Admitted = ch.Hits
		}
		counters = counters[n:]
	}
	if rows.Next() {
		return errAnswer
	}
	return rows.Err()
}

var errAnswer = errors.New("rate_limit_decide returned another number of rows than it was asked for")

func next(rows pgx.Rows, dest ...any) error {
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return err
		}
		return errAnswer
	}
	return rows.Scan(dest...)
}

// algorithms are those that rows can stand for.
var algorithms = []ratelimit.Algorithm{
	ratelimit.SlidingWindowLog, ratelimit.SlidingWindowCounter, ratelimit.FixedWindow, ratelimit.TokenBucket, ratelimit.LeakyBucket,
}

// check refuses what no counter can be kept for, so that it harms no other charge of its call.
func check(ch *ratelimit.Charge) error {
	if ch.Hits < 1 || ch.Cost < 0 {
		return fmt.Errorf("%w: %d hits of cost %d", ratelimit.ErrCounter, ch.Hits, ch.Cost)
	}
	for j := range ch.Counters {
		if how := ch.Counters[j].Limit.Algorithm; !slices.Contains(algorithms, how) {
			return fmt.Errorf("%w: postgres does not count by %q", ratelimit.ErrCounter, how)
		}
		key := string(ch.Counters[j].Key)
		if key == "" || len(key) > maxKeyBytes || strings.IndexByte(key, 0) >= 0 || !utf8.ValidString(key) {
			return fmt.Errorf("%w: a key is 1 to %d bytes of text, not %d bytes of %.40q", ratelimit.ErrCounter, maxKeyBytes, len(key), key)
		}
	}
	return nil
}

// lockID is the counter's advisory lock: every process must derive the same. Two counters with one id only wait for each
// other.
func lockID(key ratelimit.Key) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key)) // never fails
	return int32(h.Sum32())     //nolint:gosec // all 32 bits, as Postgres's integer
}

// timesUpTo is a·b for non-negative numbers, or the largest number if that is more.
func timesUpTo(a, b int64) int64 {
	if a != 0 && b > math.MaxInt64/a {
		return math.MaxInt64
	}
	return a * b
}
