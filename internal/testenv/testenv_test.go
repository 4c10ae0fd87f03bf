package testenv_test

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func query(t *testing.T, url, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	var s string
	require.NoError(t, conn.QueryRow(t.Context(), sql).Scan(&s))
	return s
}

func TestEachTestHasItsOwnMigratedDatabase(t *testing.T) {
	t.Parallel()
	a, b := testenv.Postgres(t), testenv.Postgres(t)
	require.NotEqual(t, a, b)
	for _, url := range []string{a, b} {
		require.Equal(t, "tenants", query(t, url, "SELECT coalesce(to_regclass('tenants')::text, 'absent')"))
	}
	require.Equal(t, "absent", query(t, testenv.EmptyPostgres(t), "SELECT coalesce(to_regclass('tenants')::text, 'absent')"))
}

func TestRedisIsSharedWithinTheBinary(t *testing.T) {
	t.Parallel()
	first, second := testenv.Redis(t), testenv.Redis(t)
	require.Equal(t, first, second)
	opts, err := redis.ParseURL(first)
	require.NoError(t, err)
	client := redis.NewClient(opts)
	defer func() { require.NoError(t, client.Close()) }()
	require.NoError(t, client.Ping(t.Context()).Err())
}

func TestOwnServers(t *testing.T) {
	t.Parallel()
	require.NotEqual(t, testenv.Redis(t), testenv.RedisServer(t).URL())
	require.Equal(t, "1", query(t, testenv.PostgresServer(t).URL(), "SELECT '1'"))
}
