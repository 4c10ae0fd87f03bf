package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// SQLSTATEs that are looked at one by one.
const (
	codeUniqueViolation     = "23505"
	codeForeignKeyViolation = "23503"
	codeReadOnly            = "25006" // a standby, or a primary on its way to being one
	codeLockNotAvailable    = "55P03"
	codeUndefinedTable      = "42P01"
	codeUndefinedColumn     = "42703"
)

// unavailableClasses are the SQLSTATE classes of a server that cannot do the work now, whatever the statement: connection
// exception, transaction rollback (deadlock, serialization), insufficient resources, operator intervention, system error.
var unavailableClasses = map[string]bool{"08": true, "40": true, "53": true, "57": true, "58": true}

// conflicts are the unique constraints an operator can run into, with what to tell him.
var conflicts = map[string]string{ //nolint:gosec // names of constraints, no credentials
	"plans_name_key":           "a plan of this name exists already",
	"tenants_slug_key":         "a tenant of this slug exists already",
	"limits_plan_id_name_key":  "two limits of the plan have the same name",
	"address_limits_name_key":  "two limits of the address policy have the same name",
	"api_keys_id_key":          "an API key of this id exists already",
	"service_tokens_id_key":    "a service token of this id exists already",
	"admin_tokens_id_key":      "an admin token of this id exists already",
	"networks_cidr_action_key": "the network is on this list already",
	"tenants_plan_id_fkey":     "the plan is used by tenants",
}

// translate turns a driver's error into one of internal/tenants. caller is the context the method was called with: that it
// was cancelled is the caller's own affair, while a deadline, his or ours, means that Postgres did not answer in time.
// Errors that are no driver's pass unchanged.
func translate(caller context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	var pgErr *pgconn.PgError
	switch {
	case errors.Is(caller.Err(), context.Canceled):
		return fmt.Errorf("%s: %w", doing, caller.Err())
	case errors.As(err, &pgErr):
		return fmt.Errorf("%s: %w", doing, translateServer(pgErr))
	case errors.Is(err, context.DeadlineExceeded), isConnectionError(err):
		return fmt.Errorf("%s: %w: %w", doing, tenants.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

func translateServer(err *pgconn.PgError) error {
	if detail, known := conflicts[err.ConstraintName]; known && (err.Code == codeUniqueViolation || err.Code == codeForeignKeyViolation) {
		return &tenants.ConflictError{Detail: detail}
	}
	switch {
	case unavailableClasses[err.Code[:min(2, len(err.Code))]], err.Code == codeReadOnly, err.Code == codeLockNotAvailable:
		return fmt.Errorf("%w: %w", tenants.ErrUnavailable, err)
	case err.Code == codeUndefinedTable, err.Code == codeUndefinedColumn:
		return fmt.Errorf("%w: the database is not migrated: %w", tenants.ErrUnavailable, err)
	}
	return err
}

// isConnectionError reports whether the connection failed rather than the statement.
func isConnectionError(err error) bool {
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || pgconn.SafeToRetry(err)
}
