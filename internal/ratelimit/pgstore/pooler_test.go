package pgstore_test

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/pgstore"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// Behind PgBouncer in transaction mode, as it comes: two server connections for 32 callers, so that every call lands on
// another session than the one before.
func TestBehindATransactionPooler(t *testing.T) {
	t.Parallel()
	binary, err := exec.LookPath("pgbouncer")
	if err != nil {
		binary, err = exec.LookPath("/usr/sbin/pgbouncer") // not on everybody's PATH
	}
	require.NoError(t, err, "install the Debian package pgbouncer, as make setup does")
	target, err := url.Parse(testenv.Postgres(t))
	require.NoError(t, err)
	pooled := startPooler(t, binary, target)

	pool := newPool(t, pooled, 8)
	s := pgstore.New(pool, pgstore.WithTimeout(patient))
	k := counter(window(ratelimit.SlidingWindowLog, 100, time.Hour))
	var admitted atomic.Int64
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			out := make([]ratelimit.Outcome, 2)
			for range 10 {
				if err := s.Decide(t.Context(), []ratelimit.Charge{take(1, 1, k), peek(k)}, out); err != nil {
					t.Error(err)
					return
				}
				admitted.Add(out[0].Admitted)
			}
		})
	}
	all.Wait()
	require.Equal(t, int64(100), admitted.Load())
	_, err = s.Prune(t.Context(), 10)
	require.NoError(t, err)
}

// startPooler runs PgBouncer in front of the target until the test ends, and returns its URL.
func startPooler(t *testing.T, binary string, target *url.URL) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755)) // it may run as another user
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := listener.Addr().(*net.TCPAddr).Port //nolint:errcheck // a TCP listener
	require.NoError(t, listener.Close())

	user := target.User.Username()
	password, _ := target.User.Password()
	users := filepath.Join(dir, "users")
	require.NoError(t, os.WriteFile(users, fmt.Appendf(nil, "%q %q\n", user, password), 0o644))
	ini := filepath.Join(dir, "pgbouncer.ini")
	require.NoError(t, os.WriteFile(ini, fmt.Appendf(nil, `[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = transaction
default_pool_size = 2
server_tls_sslmode = disable
`, target.Hostname(), target.Port(), port, users), 0o644))

	cmd := exec.Command(binary, "-q", ini)
	cmd.Stderr = t.Output()
	if os.Getuid() == 0 { // PgBouncer refuses to run as root
		cmd.Args = append(cmd.Args, "-u", "nobody")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
		_ = cmd.Wait()
	})
	address := fmt.Sprintf("127.0.0.1:%d", port)
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, patient, 20*time.Millisecond)
	pooled := *target
	pooled.Host = address
	query := pooled.Query()
	query.Del("host")
	pooled.RawQuery = query.Encode()
	return pooled.String()
}
