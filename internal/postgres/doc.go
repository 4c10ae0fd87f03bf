// Package postgres keeps the configuration, the audit log and incidents in Postgres: the migration runner, the connection pool, and
// Repository, which implements the interfaces of internal/tenants. Counters are not here (internal/ratelimit/pgstore).
//
// # Concurrency
//
// Everything is safe for concurrent use, in one process and between replicas. Every change locks the one row of
// config_version before anything else, so changes come one after another and a configuration version never becomes visible
// before a smaller one: a poller that reads version n has seen all changes up to n.
//
// # Failure
//
// Postgres down, hung, read-only or overloaded is tenants.ErrUnavailable, at the latest after the repository's bound (2 s).
// After a timeout around COMMIT it is unknown whether the change happened: an Idempotency-Key or the object's version
// tells. A caller's own cancellation is its context's error, not ErrUnavailable.
package postgres
