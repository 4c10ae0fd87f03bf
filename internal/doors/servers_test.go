package doors_test

import (
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// freePort is a loopback port that nobody listened on a moment ago, outside the range of outgoing connections.
func freePort(t *testing.T) string {
	t.Helper()
	for range 200 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(20_000+rand.IntN(12_000)))
		if l, err := net.Listen("tcp", addr); err == nil {
			require.NoError(t, l.Close())
			return addr
		}
	}
	require.Fail(t, "no free port")
	return ""
}

// change is a configuration as a user would change it: each old text is there, and becomes the new one.
func change(t *testing.T, file string, pairs ...string) {
	t.Helper()
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	text := string(raw)
	for i := 0; i+1 < len(pairs); i += 2 {
		require.Contains(t, text, pairs[i], file)
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
}

// nginx is a real one on a copy of deploy/nginx.
type nginx struct {
	t         *testing.T
	addr, dir string
	binary    string
}

// nginxBinary finds Debian's, which is not on everybody's PATH.
func nginxBinary(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"nginx", "/usr/sbin/nginx"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	require.Fail(t, "nginx is missing: scripts/setup installs it (Debian: apt-get install nginx-light)")
	return ""
}

// startNginx runs deploy/nginx with the three addresses changed, and with this machine as the CDN whose word on the client's
// address is believed.
func startNginx(t *testing.T, pegel, app string) *nginx {
	t.Helper()
	n := &nginx{t: t, dir: filepath.Join(t.TempDir(), "nginx"), binary: nginxBinary(t)}
	require.NoError(t, os.CopyFS(n.dir, os.DirFS(filepath.Join(root, "deploy/nginx"))))
	require.NoError(t, fs.WalkDir(os.DirFS(n.dir), ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			err = os.Chmod(filepath.Join(n.dir, name), 0o755)
		}
		return err
	}))
	change(t, n.conf("pegel/http.conf"), "127.0.0.1:8080", pegel, "127.0.0.1:3000", app)
	require.NoError(t, os.WriteFile(n.conf("pegel/cdn.conf"), []byte("set_real_ip_from 127.0.0.0/8;\nreal_ip_header X-Forwarded-For;\nreal_ip_recursive on;\n"), 0o644))
	temp := "server_tokens off;"
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temp += "\n    " + kind + "_temp_path " + n.conf("tmp-"+kind) + ";"
	}
	n.addr = freePort(t)
	change(t, n.conf("nginx.conf"), "listen 80;", "listen "+n.addr+";", "/run/nginx.pid", n.conf("nginx.pid"),
		"/var/log/nginx/", n.dir+"/", "server_tokens off;", temp, "worker_processes auto;", "worker_processes 2;")

	logs := &syncBuffer{}
	cmd := exec.Command(n.binary, append(n.args(), "-g", "daemon off;")...)
	cmd.Stderr = logs
	startServer(t, "nginx", cmd, n.addr, logs)
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range []string{"error.log", "access.log"} {
				text, _ := os.ReadFile(n.conf(name))
				t.Logf("nginx %s:\n%s", name, text)
			}
		}
	})
	return n
}

func (n *nginx) conf(name string) string { return filepath.Join(n.dir, name) }

func (n *nginx) args() []string {
	return []string{"-p", n.dir, "-c", n.conf("nginx.conf"), "-e", n.conf("error.log")}
}

// startServer starts a program and waits until it listens. It is told to end at the end of the test.
func startServer(t *testing.T, name string, cmd *exec.Cmd, addr string, logs *syncBuffer) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	var failure error // once it has ended
	go func() {
		defer close(ended)
		failure = cmd.Wait()
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s:\n%s", name, logs)
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // its own group
			<-ended
		}
	})
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		select {
		case <-ended:
			require.Fail(t, name+" ended", "%v\n%s", failure, logs)
		default:
		}
		var dialer net.Dialer
		conn, err := dialer.DialContext(t.Context(), "tcp", addr)
		if err == nil {
			require.NoError(t, conn.Close())
			return
		}
		require.True(t, time.Now().Before(deadline), "%s does not listen: %s", name, logs)
	}
}

// caddy is a real one on a copy of deploy/caddy.
type caddy struct{ addr string }

// caddyBinary is the one that make builds (tools/caddy), else one on the PATH.
func caddyBinary(t *testing.T) string {
	t.Helper()
	built, err := filepath.Abs(filepath.Join(root, ".bin/caddy"))
	require.NoError(t, err)
	for _, name := range []string{built, "caddy"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	require.Fail(t, "caddy is missing: make test builds it (tools/caddy)")
	return ""
}

// startCaddy runs deploy/caddy with the three addresses changed, and with this machine as the CDN whose word on the client's
// address is believed.
func startCaddy(t *testing.T, pegel, app string) *caddy {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "Caddyfile")
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(root, "deploy/caddy"))))
	c := &caddy{addr: freePort(t)}
	_, port, err := net.SplitHostPort(c.addr)
	require.NoError(t, err)
	change(t, file, "127.0.0.1:8080", pegel, "127.0.0.1:3000", app, ":8000 {", "http://:"+port+" {\n\tbind 127.0.0.1",
		"# trusted_proxies static 198.51.100.0/24 2001:db8:cd00::/40", "trusted_proxies static 127.0.0.0/8", "{\n\tservers {", "{\n\tadmin off\n\tservers {")
	cmd := exec.Command(caddyBinary(t), "run", "--adapter", "caddyfile", "--config", file)
	cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir, "HOME="+dir)
	logs := &syncBuffer{}
	cmd.Stderr = logs
	startServer(t, "caddy", cmd, c.addr, logs)
	return c
}
