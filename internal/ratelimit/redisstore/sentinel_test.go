package redisstore_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/devmode"
	"github.com/pegel-dev/pegel/internal/ratelimit/redisstore"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// startSentinel watches a master called main, and returns its address.
func startSentinel(t *testing.T, master *devmode.Redis) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := listener.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	require.NoError(t, listener.Close())
	host, masterPort, _ := net.SplitHostPort(master.Addr())
	config := filepath.Join(t.TempDir(), "sentinel.conf")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil,
		"port %s\nbind 127.0.0.1\nsentinel monitor main %s %s 1\nsentinel down-after-milliseconds main 2000\nsentinel failover-timeout main 5000\n",
		port, host, masterPort), 0o600))
	path, err := devmode.FindRedis()
	require.NoError(t, err)
	cmd := exec.Command(path, config, "--sentinel")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait()
	})
	return addr
}

// B028: behind Sentinel, a failover moves the store to the new master by itself.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	master, replica := testenv.RedisServer(t), testenv.RedisServer(t)
	host, port, _ := net.SplitHostPort(master.Addr())
	require.NoError(t, raw(t, replica.URL()).Do(t.Context(), "REPLICAOF", host, port).Err())
	addr := startSentinel(t, master)
	store := newStore(t, redisstore.Config{URL: "redis+sentinel://" + addr + "/main"})
	limit, group := slidingLog(1_000_000, time.Hour), tenant()
	recovers(t, store, take(group, 1, limit))

	watcher := raw(t, "redis://"+addr)
	require.Eventually(t, func() bool { // the sentinel has found the replica, and the replica has what was counted
		return watcher.Do(t.Context(), "SENTINEL", "FAILOVER", "main").Err() == nil
	}, 30*time.Second, 100*time.Millisecond)
	_, newPort, _ := net.SplitHostPort(replica.Addr())
	require.Eventually(t, func() bool {
		now, err := watcher.Do(t.Context(), "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main").StringSlice()
		return err == nil && len(now) == 2 && now[1] == newPort
	}, 30*time.Second, 50*time.Millisecond)
	promoted := raw(t, replica.URL())
	require.Eventually(t, func() bool { // every connection leads there: twenty calls in a row succeed, and count there
		for range 20 {
			if _, err := try(t.Context(), store, take(group, 1, limit)); err != nil {
				return false
			}
		}
		return promoted.DBSize(t.Context()).Val() > 0
	}, 10*time.Second, 50*time.Millisecond)
}
