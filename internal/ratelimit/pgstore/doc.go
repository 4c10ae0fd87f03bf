// Package pgstore keeps rate-limit counters in Postgres: the store while Redis is away, and the only one of an
// installation without Redis. Only app constructs it; everybody else sees a ratelimit.Store.
//
// # What decides
//
// fixed_window is one row per window and exact. Every other algorithm is rows of one eighth of the window
// (ratelimit.SlidingWindowSegments): no burst at a window's edge, at most an eighth of the window stricter than the exact
// log, never looser. The function rate_limit_decide (migrations/000004) reads, judges and writes under advisory locks;
// this package encodes its arguments and turns the rows it returns into waits.
//
// # Concurrency
//
// A Store is safe for concurrent use and exact between any number of processes on one database: each call locks its
// counters first, in one order for all callers, so calls on one counter queue and never deadlock. A batch is cut into
// calls of at most 32 counters, which bounds the locks one transaction holds. Peeks take no lock and write nothing.
//
// # Handing over
//
// Raises, which make sure that a counter shows at least what Redis has counted, are settled by rate_limit_raise
// (migrations/000005) in calls of their own; an Account says how old the units of a counter are, row by row.
//
// # When Postgres is away
//
// Decide answers ratelimit.ErrUnavailable within the store's timeout (150 ms unless told otherwise), whether the server is
// down, hung, read-only, shutting down or without a free connection. A call that waits for a lock is ended by the server just
// before that (lock_timeout), so its connection stays usable; one that the server leaves without an answer loses its
// connection. Connections to a server that turned read-only or is shutting down are closed, so that the pool finds its
// successor.
//
// # Durability
//
// Counters are written with synchronous_commit off: a crash of the Postgres server may forget the last moments before it
// (three times wal_writer_delay, 0.6 s by default), never corrupt anything.
//
// # Poolers
//
// Works behind PgBouncer in transaction mode and asks nothing of it: no prepared statement, session setting, session lock
// or startup parameter (statement_timeout would be one, and PgBouncer refuses the ones it does not know). Statements go
// as unnamed ones in one round trip (pgx.QueryExecModeExec); the function's settings are local to its transaction.
package pgstore
