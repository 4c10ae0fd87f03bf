package testenv

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/testcontainers/testcontainers-go"
	tcredis "github.com/testcontainers/testcontainers-go/modules/redis"

	"github.com/pegel-dev/pegel/internal/devmode"
)

// redisImage is the Redis that Pegel is tested on.
const redisImage = "redis:7.0"

// Redis is the URL of the Redis that this binary's tests share. Take random tenant names; never flush it.
func Redis(tb testing.TB) string {
	tb.Helper()
	url, err := shared.redis.get(shared.startRedis)
	if err != nil {
		tb.Fatal(err)
	}
	return url
}

func (e *environment) startRedis() (string, error) {
	if url := os.Getenv(redisURLEnv); url != "" {
		return url, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), setupLimit)
	defer cancel()
	dir, err := e.dir()
	if err != nil {
		return "", err
	}
	r, err := devmode.StartRedis(ctx, devmode.RedisOptions{Dir: filepath.Join(dir, "redis")})
	switch {
	case err == nil:
		e.atEnd(r.Stop)
		return r.URL(), nil
	case !errors.Is(err, devmode.ErrNoRedis):
		return "", err
	}
	if !dockerReachable(ctx) {
		return "", devmode.ErrNoRedis
	}
	c, err := tcredis.Run(ctx, redisImage)
	if err != nil {
		return "", errors.Join(devmode.ErrNoRedis, err)
	}
	e.atEnd(func() error { return testcontainers.TerminateContainer(c) })
	return c.ConnectionString(ctx)
}

// dockerReachable reports whether containers can be started here. (testcontainers panics while it looks for a Docker
// host in some set-ups.)
func dockerReachable(ctx context.Context) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return false
	}
	defer func() { _ = provider.Close() }()
	return provider.Health(ctx) == nil
}
