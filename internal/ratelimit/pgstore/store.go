package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// DefaultTimeout is how long one Decide may take in all: waiting for a connection, dialling and locks included.
const DefaultTimeout = 150 * time.Millisecond

// Store is a ratelimit.Store on Postgres.
type Store struct {
	pool    *pgxpool.Pool
	timeout time.Duration
	clock   func() time.Time
}

var _ ratelimit.Store = (*Store)(nil)

// Option changes a Store.
type Option func(*Store)

// WithTimeout replaces DefaultTimeout; it must be positive.
func WithTimeout(d time.Duration) Option { return func(s *Store) { s.timeout = d } }

// WithClock makes the store count by the given clock instead of the server's. For tests only: replicas whose clocks
// differ would disagree.
func WithClock(now func() time.Time) Option { return func(s *Store) { s.clock = now } }

// New returns a store on a pool made from PoolConfig, which the caller keeps and closes. The migrations must have run by
// the first Decide; until then it answers ratelimit.ErrUnavailable.
func New(pool *pgxpool.Pool, options ...Option) *Store {
	s := &Store{pool: pool, timeout: DefaultTimeout}
	for _, option := range options {
		option(s)
	}
	return s
}

// Source is ratelimit.SourcePostgres.
func (s *Store) Source() ratelimit.Source { return ratelimit.SourcePostgres }

// Decide settles the charges as ratelimit.Store says. A batch is several transactions, so after an error any prefix of it
// may have been counted.
func (s *Store) Decide(ctx context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
	within, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()

	var conn *pgxpool.Conn
	defer func() {
		if conn != nil {
			conn.Release()
		}
	}()
	for len(charges) > 0 {
		n := nextCall(charges)
		settle := s.call(charges[:n], out[:n])
		charges, out = charges[n:], out[n:]
		if settle == nil {
			continue // nothing in it needs the database
		}
		if conn == nil {
			var err error
			if conn, err = s.pool.Acquire(within); err != nil {
				return failure(ctx, "acquire a connection", err)
			}
		}
		if err := settle(within, conn); err != nil {
			discardUnfit(within, conn, err)
			return failure(ctx, "decide", err)
		}
	}
	return nil
}

// call is what settles charges that go together, nil when that needs no database.
func (s *Store) call(charges []ratelimit.Charge, out []ratelimit.Outcome) func(context.Context, *pgxpool.Conn) error {
	if charges[0].Kind == ratelimit.Raise {
		return func(ctx context.Context, conn *pgxpool.Conn) error { return s.raise(ctx, conn, charges, out) }
	}
	c := newCall(charges, out)
	if c.empty() {
		return nil
	}
	return func(ctx context.Context, conn *pgxpool.Conn) error { return s.run(ctx, conn, c) }
}

const decide = `SELECT at, starts, counts, admitted, passed
FROM rate_limit_decide($1::bigint, $2::text, $3::integer[], $4::integer[], $5::bigint[], $6::integer[], $7::text[],
	$8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::integer[], $13::boolean[])`

// run makes one call: one round trip, one transaction.
func (s *Store) run(ctx context.Context, conn *pgxpool.Conn, c *call) error {
	rows, err := conn.Query(ctx, decide, s.now(), patience(ctx), c.locks, c.kinds, c.hits, c.sizes, c.keys,
		c.quotas, c.units, c.spans, c.segments, c.rows, c.shadow)
	if err != nil {
		return err
	}
	defer rows.Close()
	return c.read(rows)
}

// now is the clock that Postgres is told, or nil for its own.
func (s *Store) now() *int64 {
	if s.clock == nil {
		return nil
	}
	us := s.clock().UnixMicro()
	return &us
}

// answerMargin is what the server's own limit on waiting stays below the caller's, so that its error still arrives in time.
const answerMargin = 20 * time.Millisecond

// patience is the time left to the deadline less answerMargin, as lock_timeout reads it.
func patience(ctx context.Context) string {
	deadline, _ := ctx.Deadline()
	left := time.Until(deadline) //nolint:forbidigo // a context's deadline is on the process's own clock
	return strconv.FormatInt(max(1, (left-answerMargin).Milliseconds()), 10)
}

// failure turns what went wrong into what the contract says: the caller's own cancellation, or ErrUnavailable.
func failure(caller context.Context, doing string, err error) error {
	if errors.Is(caller.Err(), context.Canceled) {
		return fmt.Errorf("postgres: %s: %w", doing, caller.Err())
	}
	return fmt.Errorf("postgres: %s: %w: %w", doing, ratelimit.ErrUnavailable, err)
}

// discardUnfit closes a connection whose server cannot count any more although it still answers: the pool judges a
// connection by whether it is alive, and would keep one to a server that lost its role for minutes.
func discardUnfit(ctx context.Context, conn *pgxpool.Conn, err error) {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return // pgx has closed it already
	}
	switch {
	case pgErr.Code == "25006", // read-only transaction
		pgErr.Code[:min(2, len(pgErr.Code))] == "57" && pgErr.Code != "57014": // operator intervention, but not a timeout
		_ = conn.Conn().Close(ctx) // it is going away either way
	}
}
