package pgstore

import (
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// warmConnections are kept open so that the first fallback decisions do not wait for a dial and a fork.
	warmConnections = 4
	// minDialTimeout is the least that one attempt to connect is given. It runs in the pool's background: a decision waits
	// for it no longer than its own deadline, and a connection that comes too late for one serves the next.
	minDialTimeout = 2 * time.Second
	// warmCheck is how often the pool looks whether warmConnections are open.
	warmCheck = time.Second
)

// PoolConfig is the configuration of the pool that decisions have to themselves, so that administration and reports never
// take a connection from them: size connections (at least 1), of which 4 are kept warm. timeout is that of the store
// (WithTimeout), which a dial may outlast. The url is a Postgres URL or key=value string; it is never part of an error.
func PoolConfig(url string, size int, timeout time.Duration) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		// pgx quotes the string with the password redacted as well as it can; a broken one may defeat that.
		return nil, errBadURL
	}
	size = max(1, min(size, maxPoolSize))
	cfg.MaxConns = int32(size)
	cfg.MinConns = min(warmConnections, cfg.MaxConns)
	cfg.HealthCheckPeriod = warmCheck
	cfg.ConnConfig.ConnectTimeout = max(minDialTimeout, timeout)
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	cfg.ConnConfig.StatementCacheCapacity = 0
	cfg.ConnConfig.DescriptionCacheCapacity = 0
	return cfg, nil
}

// maxPoolSize is far above any useful number of Postgres connections.
const maxPoolSize = 10_000

var errBadURL = errors.New("the database URL is not a valid Postgres URL or key=value string")
