package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"
)

// PoolOptions sizes a pool. The zero value is 16 connections, 4 of them kept warm.
type PoolOptions struct {
	MaxConns int32 // default 16
	MinIdle  int32 // kept open and idle; default 4, at most MaxConns
	Name     string
	// Tracing makes a span of every query; nil: none.
	Tracing trace.TracerProvider
}

// NewPool prepares a pool and returns at once: connections are made in the background and on demand, so a server that is
// down does not keep anybody from starting. Statements are described anew each time and never named, so a transaction pooler
// in between and a migration under a running replica both work.
func NewPool(databaseURL string, o PoolOptions) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", redact(err))
	}
	if o.MaxConns <= 0 {
		o.MaxConns = 16
	}
	if o.MinIdle <= 0 {
		o.MinIdle = 4
	}
	if o.Name == "" {
		o.Name = "pegel"
	}
	config.MaxConns, config.MinIdleConns = o.MaxConns, min(o.MinIdle, o.MaxConns)
	config.MaxConnIdleTime = 5 * time.Minute
	config.MaxConnLifetime = time.Hour
	config.MaxConnLifetimeJitter = 5 * time.Minute
	config.HealthCheckPeriod = 15 * time.Second
	config.ConnConfig.ConnectTimeout = 2 * time.Second
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec
	if _, set := config.ConnConfig.RuntimeParams["application_name"]; !set {
		config.ConnConfig.RuntimeParams["application_name"] = o.Name
	}
	if o.Tracing != nil {
		config.ConnConfig.Tracer = NewTracer(o.Tracing)
	}
	// The pool lives until its owner closes it, not as long as the call that made it.
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, fmt.Errorf("database pool: %w", redact(err))
	}
	return pool, nil
}
