package doors_test

import (
	"bufio"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// process is a replica in a process of its own, which can be stopped and killed.
type process struct {
	replica

	cmd   *exec.Cmd
	ended chan struct{} // closed when it has
}

func startProcess(t *testing.T) *process {
	t.Helper()
	p := &process{replica: replica{t: t, public: freePort(t)}, ended: make(chan struct{})}
	logs := &syncBuffer{}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), playEnv+"=1", "LISTEN="+p.public, "DATABASE="+testenv.Postgres(t))
	p.cmd.Stderr = logs
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Log(logs.String())
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // killed
	}()
	require.NoError(t, err, "%s", logs)
	p.admin = strings.TrimSpace(line)
	require.Eventually(t, func() bool {
		a, err := trySend(t.Context(), p.public, question{method: "GET", target: "/readyz"})
		return err == nil && a.status == http.StatusOK
	}, time.Minute, 20*time.Millisecond, "%s", logs)
	return p
}

// fronts are the servers that ask Pegel, each on its shipped configuration.
func fronts() map[string]func(t *testing.T, pegel, app string) string {
	return map[string]func(t *testing.T, pegel, app string) string{
		"nginx": func(t *testing.T, pegel, app string) string { t.Helper(); return startNginx(t, pegel, app).addr },
		"caddy": func(t *testing.T, pegel, app string) string { t.Helper(); return startCaddy(t, pegel, app).addr },
	}
}

// Guarantee: Pegel killed or hung takes nothing down. Behind the shipped configurations traffic goes through: at once when nobody
// listens, after the timeout when nobody answers, and at once again when that was noticed. When Pegel is back it decides again.
func TestTrafficFlowsWithoutPegel(t *testing.T) {
	t.Parallel()
	for name, start := range fronts() {
		for fault, hurt := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "hung": syscall.SIGSTOP} {
			t.Run(name+" "+fault, func(t *testing.T) {
				t.Parallel()
				p := startProcess(t)
				front := start(t, p.public, startApplication(t).addr)
				_, key := p.tenant(perMinute(3))
				get := func() answer {
					return send(t, front, question{method: "GET", target: "/v1/messages?a=b", header: []string{"X-API-Key", key, "X-Forwarded-For", randomAddress(t)}})
				}
				for range 3 {
					require.Equal(t, http.StatusOK, get().status)
				}
				requireRefused(t, get(), "a runaway tenant") // until Pegel is gone

				require.NoError(t, p.cmd.Process.Signal(hurt))
				if hurt == syscall.SIGKILL {
					<-p.ended
				}
				require.Eventually(t, func() bool { return get().status == http.StatusOK }, sendLimit, time.Millisecond, "a signal takes a moment")
				slowest, fastest := time.Duration(0), sendLimit
				for range 10 {
					a := get()
					require.Equal(t, "/v1/messages?a=b", a.reached(t).URI)
					require.NotContains(t, string(a.body), "pgk_", "no credential goes through")
					require.Empty(t, a.header.Get("X-Pegel-Decision"))
					slowest, fastest = max(slowest, a.took), min(fastest, a.took)
				}
				t.Logf("slowest of ten %s, fastest %s", slowest.Round(time.Millisecond), fastest.Round(time.Millisecond))
				require.Less(t, fastest, 2*time.Second, "once noticed, nobody waits for the timeout")
				require.Less(t, slowest, 15*time.Second, "the timeout is 3 s")
				post := send(t, front, question{method: "POST", target: "/v1/messages", header: []string{"X-API-Key", key}, body: []byte(`{"a":1}`)})
				require.Equal(t, "POST", post.reached(t).Method)

				if hurt == syscall.SIGSTOP {
					require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
					require.Eventually(t, func() bool { return get().header.Get("X-Pegel-Decision") != "" }, 30*time.Second, 100*time.Millisecond, "it decides again")
				}
			})
		}
	}
}

// Guarantee: while Pegel is away nginx still limits logins by itself, and a service token that nobody can check is no way around.
func TestNginxAloneLimitsLogins(t *testing.T) {
	t.Parallel()
	n := startNginx(t, freePort(t), startApplication(t).addr)
	counts, took := logins(t, n.addr, "44.0.0.1", 40, time.Millisecond)
	require.LessOrEqual(t, counts["passed"], 5*(int(took/time.Second)+1), "%v in %s", counts, took)
	require.Positive(t, counts["passed"])
	require.Positive(t, counts["refused by nginx"])
	a := send(t, n.addr, question{method: "POST", target: "/login", header: []string{"X-Pegel-Service-Token", "pgs_forged_forged"}, body: []byte("{}")})
	require.Equal(t, http.StatusServiceUnavailable, a.status)
	require.Contains(t, string(a.body), `"store_unavailable"`)
	log, err := os.ReadFile(n.conf("access.log"))
	require.NoError(t, err)
	require.Contains(t, string(log), "away=1")
}

// Guarantee: a failure of the application is the client's to see; it is neither taken for Pegel's nor repeated.
func TestTheApplicationsFailuresStayItsOwn(t *testing.T) {
	t.Parallel()
	r := startReplica(t, stores(t)...)
	for name, start := range fronts() {
		front := start(t, r.public, freePort(t)) // nobody is there
		_, key := r.tenant(perMinute(10))
		a := send(t, front, question{method: "GET", target: "/", header: []string{"X-API-Key", key}})
		require.Equal(t, http.StatusBadGateway, a.status, name)
		a = send(t, r.public, question{method: "GET", target: "/v1/status", header: []string{"X-API-Key", key}})
		require.Contains(t, string(a.body), `"used":1,`, name)
	}
}
