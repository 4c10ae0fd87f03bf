package redisstore

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func open(t *testing.T, url string) (*Store, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	handler := slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})
	s, err := New(Config{URL: url, Now: time.Now}, slog.New(handler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, &log
}

// B025: every wait is within the budget, deadlines are honoured, and nothing is sent again. An upgrade of go-redis must
// not undo it.
func TestOptionsKeepACallWithinItsBudget(t *testing.T) {
	check := func(t *testing.T, o *redis.Options) {
		t.Helper()
		require.True(t, o.ContextTimeoutEnabled)
		require.LessOrEqual(t, o.MaxRetries, 0) // go-redis turns the -1 into 0 more attempts
		require.Equal(t, 1, o.DialerRetries)
		for _, timeout := range []time.Duration{o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout} {
			require.Positive(t, timeout)
			require.LessOrEqual(t, timeout, DefaultTimeout)
		}
		require.Equal(t, DefaultPoolSize, o.PoolSize)
		require.Negative(t, o.PipelinePoolSize, "pipelines use the same connections")
		require.Equal(t, 2, o.Protocol)
	}
	for _, url := range []string{"redis://h:1", "redis+sentinel://h:1,h:2/main"} {
		s, _ := open(t, url)
		client, ok := (*s.client.Load()).(*redis.Client)
		require.True(t, ok)
		check(t, client.Options())
	}
	secure, _ := open(t, "rediss://h:1")
	require.EqualValues(t, tls.VersionTLS12, secure.config.options(secure.target).TLSConfig.MinVersion)
	for _, url := range []string{"redis://h:1,h:2", "redis://h:1?cluster=true"} {
		s, _ := open(t, url)
		client, ok := (*s.client.Load()).(*redis.ClusterClient)
		require.True(t, ok)
		o := client.Options()
		require.True(t, o.ContextTimeoutEnabled)
		require.LessOrEqual(t, o.MaxRetries, 0)
		require.Positive(t, o.MaxRedirects, "MOVED and ASK are followed")
		require.True(t, o.DisableRoutingPolicies)
		require.Equal(t, 1, o.DialerRetries)
		require.LessOrEqual(t, max(o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout), DefaultTimeout)
	}
	require.True(t, command{}.NoRetry(), "a cluster client sends again after a timeout unless told not to")
}

func TestURLs(t *testing.T) {
	for url, want := range map[string]target{
		"redis://h":                         {addrs: []string{"h:6379"}},
		"redis://h:7/3":                     {addrs: []string{"h:7"}, db: 3},
		"rediss://u:p%2Cw%40@[::1]:7":       {addrs: []string{"[::1]:7"}, tls: true, username: "u", password: "p,w@"},
		"redis://:pw@h":                     {addrs: []string{"h:6379"}, password: "pw"},
		"redis://u:p@a:1,b:2,c":             {addrs: []string{"a:1", "b:2", "c:6379"}, cluster: true, username: "u", password: "p"},
		"redis://a:1,redis://b:2":           {addrs: []string{"a:1", "b:2"}, cluster: true},
		"redis://a:1?cluster=true":          {addrs: []string{"a:1"}, cluster: true},
		"redis+sentinel://u:p@a,b:7/main/2": {addrs: []string{"a:26379", "b:7"}, master: "main", db: 2, username: "u", password: "p"},
		"rediss+sentinel://a/main?sentinel_username=su&sentinel_password=sp": {
			addrs: []string{"a:26379"}, tls: true, master: "main", sentinelUsername: "su", sentinelPassword: "sp",
		},
	} {
		got, err := parseURL(url)
		require.NoError(t, err, url)
		require.Equal(t, &want, got, url)
	}
}

// B060: a URL that is refused is not repeated, because any part of it may be the password.
func TestRefusedURLsAreNotRepeated(t *testing.T) {
	for _, url := range []string{
		"", "canary", "redis://", "http://u:canary@h", "redis://u:canary@", "redis://:can/ary@h", "redis://u:canary@h:port",
		"redis://u:canary@h/x", "redis://u:canary@h/-1", "redis://u:canary@h?timeout=canary", "redis://u:canary@a,b/1",
		"redis+sentinel://u:canary@a", "redis://u:canary@a,rediss://b", "redis://u:%zzcanary@h", "redis://u:canary@h?cluster=canary",
		"redis://u:12?canary@h", "redis://u:12?canary=1@h", "redis://u:12#canary@h", "redis+sentinel://u:12/canary@h/main",
	} {
		_, err := New(Config{URL: url, Now: time.Now}, slog.New(slog.DiscardHandler))
		require.Error(t, err, url)
		require.NotContains(t, err.Error(), "canary")
		require.NotContains(t, err.Error(), "ary@")
	}
	_, err := New(Config{URL: "redis://h"}, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "Config.Now")
}

// B060: neither errors nor go-redis's log, which goes to slog, ever say a password.
func TestPasswordsAreNotLogged(t *testing.T) {
	s, log := open(t, "redis://user:canary@127.0.0.1:1")
	err := s.Ping(context.Background())
	require.ErrorContains(t, err, "connection failed")
	require.NotContains(t, err.Error(), "canary")
	require.Contains(t, log.String(), "failed to dial", "go-redis's log arrives")
	libraryLog{log: s.log, secrets: s.target.secrets()}.Printf(context.Background(), "AUTH %s", "canary")
	require.Contains(t, log.String(), "AUTH ***")
	require.NotContains(t, log.String(), "canary")
}

// The variant for tests differs from the script in its clock and in its expiries, everywhere.
func TestTheTestClockReplacesEveryClock(t *testing.T) {
	variant := onTestClock(chargeScript)
	require.NotContains(t, variant, "TIME'")
	require.Equal(t, strings.Count(chargeScript, "PX', ")+strings.Count(chargeScript, "PEXPIRE', key"), strings.Count(variant, "600000 + "))
	require.Equal(t, 3, strings.Count(variant, "600000 + "))
	require.NotContains(t, chargeScript, "redis.call(", "a script never raises")
}
