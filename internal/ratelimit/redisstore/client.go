package redisstore

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"strings"

	"github.com/redis/go-redis/extra/redisotel/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// noRetries is go-redis for "send once". (0 means three more times.)
const noRetries = -1

// open makes a client for the target. It contacts nobody.
func (c *Config) open(t *target) redis.UniversalClient {
	client := c.plain(t)
	if c.Tracing != nil {
		// It fails for clients that it does not know, and these are all go-redis has.
		_ = redisotel.InstrumentTracing(client, redisotel.WithTracerProvider(c.Tracing), redisotel.WithDBStatement(false))
	}
	return client
}

func (c *Config) plain(t *target) redis.UniversalClient {
	o := c.options(t)
	switch {
	case t.master != "":
		failover := o.Failover()
		failover.SentinelUsername, failover.SentinelPassword = t.sentinelUsername, t.sentinelPassword
		return redis.NewFailoverClient(failover)
	case t.cluster:
		cluster := o.Cluster()
		cluster.DisableRoutingPolicies = true
		cluster.NewClient = func(node *redis.Options) *redis.Client {
			node.OnConnect = c.lives.ask(node.Addr)
			return redis.NewClient(node)
		}
		return redis.NewClusterClient(cluster)
	}
	return redis.NewClient(o.Simple())
}

func (c *Config) options(t *target) *redis.UniversalOptions {
	o := &redis.UniversalOptions{
		Addrs:      t.addrs,
		MasterName: t.master,
		Username:   t.username,
		Password:   t.password,
		DB:         t.db,
		Protocol:   2, // no push messages: nothing here subscribes

		// Everything within the budget of one call. Only NoRetry commands are sent, so that a cluster client does not
		// send again either, except after MOVED and ASK, and then at once.
		MaxRetries:            noRetries,
		MinRetryBackoff:       -1,
		MaxRetryBackoff:       -1,
		DialerRetries:         1,
		DialTimeout:           c.Timeout,
		ReadTimeout:           c.Timeout,
		WriteTimeout:          c.Timeout,
		PoolTimeout:           c.Timeout,
		ContextTimeoutEnabled: true,

		// go-redis dials in the background: a connection that comes too late for the call that asked for it serves the
		// next one, so that connections complete under load however short the calls' deadlines are.
		PoolSize:         c.PoolSize,
		PipelinePoolSize: -1,
		DisableIdentity:  true,
		OnConnect:        c.lives.ask(""),
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled,
		},
	}
	if t.tls {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		if c.TLS != nil {
			o.TLSConfig = c.TLS.Clone()
		}
	}
	return o
}

// libraryLog is where go-redis says what it has to say about connections. Outages are logged by those who decide what to
// do about them; this is detail.
type libraryLog struct {
	log     *slog.Logger
	secrets []string
}

// Printf logs one of go-redis's lines, with secrets blanked out should one ever contain any.
func (l libraryLog) Printf(ctx context.Context, format string, args ...any) {
	if !l.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	line := fmt.Sprintf(format, args...)
	for _, secret := range l.secrets {
		line = strings.ReplaceAll(line, secret, "***")
	}
	l.log.DebugContext(ctx, "go-redis", slog.String("message", line))
}
