package app_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// prometheus is a real one that scrapes replicas every 400 ms, and judges the rules that are shipped.
type prometheus struct {
	t      *testing.T
	url    string
	output *syncBuffer
	ended  chan error
}

// startPrometheus judges a copy of the shipped rules that waits 2 s where they wait for a while.
func startPrometheus(t *testing.T, replicas ...string) *prometheus {
	t.Helper()
	binary, err := exec.LookPath("prometheus")
	if err != nil {
		require.Empty(t, os.Getenv("CI"), "prometheus is missing: scripts/setup installs it (Debian: prometheus)")
		t.Skip("prometheus is missing: scripts/setup installs it (Debian: prometheus)")
	}
	dir := t.TempDir()
	rules, err := os.ReadFile("../../deploy/prometheus/pegel.rules.yml")
	require.NoError(t, err)
	rules = regexp.MustCompile(`(?m)^( +for:) .*$`).ReplaceAll(rules, []byte("$1 2s"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rules.yml"), rules, 0o600))
	config := fmt.Sprintf(`
global: {scrape_interval: 400ms, scrape_timeout: 400ms, evaluation_interval: 400ms}
rule_files: [rules.yml]
scrape_configs: [{job_name: pegel, static_configs: [{targets: ["%s"]}]}]
`, strings.Join(replicas, `", "`))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600))
	p := &prometheus{t: t, output: &syncBuffer{}, ended: make(chan error, 1)}
	port, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := port.Addr().String()
	require.NoError(t, port.Close())
	p.url = "http://" + address
	cmd := exec.Command(binary, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = p.output, p.output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // its death is what kills the child
		err := cmd.Start()
		started <- err
		if err == nil {
			p.ended <- cmd.Wait()
		}
	}()
	require.NoError(t, <-started)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		err := <-p.ended
		if t.Failed() {
			t.Log(err, p.output.String())
		}
	})
	p.eventually("it scrapes", func() bool { return p.ask("sum(up)") == fmt.Sprint(len(replicas)) })
	return p
}

// ask is the one value that a query has now; empty for none.
func (p *prometheus) ask(query string) string {
	p.t.Helper()
	var answer struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	p.get("/api/v1/query?query="+url.QueryEscape(query), &answer)
	if len(answer.Data.Result) != 1 {
		return ""
	}
	return fmt.Sprint(answer.Data.Result[0].Value[1])
}

func (p *prometheus) get(path string, into any) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, p.url+path, http.NoBody)
	require.NoError(p.t, err)
	res, err := http.DefaultClient.Do(req)
	if err != nil { // it starts
		return
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		require.NoError(p.t, json.NewDecoder(res.Body).Decode(into))
	}
}

func (p *prometheus) eventually(what string, ok func() bool) {
	p.t.Helper()
	for until := time.Now().Add(30 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
		select {
		case err := <-p.ended:
			p.ended <- err
			require.Fail(p.t, "Prometheus ended", "%v: %s", err, p.output.String())
		default:
		}
		require.True(p.t, time.Now().Before(until), "not within 30 s: %s; active: %v", what, p.alerts())
	}
}

// ofLoad are alerts that depend on how fast the machine of the test is.
var ofLoad = []string{"PegelStoreSlow", "PegelChargesShed"}

// alerts are those that are active, as "name state", sorted, but for those of load.
func (p *prometheus) alerts() []string {
	p.t.Helper()
	var answer struct {
		Data struct {
			Alerts []struct {
				State       string
				Labels      map[string]string
				Annotations map[string]string
			}
		}
	}
	p.get("/api/v1/alerts", &answer)
	active := []string{}
	for _, a := range answer.Data.Alerts {
		require.NotEmpty(p.t, a.Labels["severity"])
		require.NotContains(p.t, a.Annotations["summary"]+a.Annotations["description"], "no value", "a label that its series does not have")
		if name := a.Labels["alertname"]; !slices.Contains(ofLoad, name) {
			active = append(active, name+" "+a.State)
		}
	}
	slices.Sort(active)
	return slices.Compact(active)
}

// fires waits until an alert, which was pending first, fires alone.
func (p *prometheus) fires(name string) {
	p.t.Helper()
	p.eventually(name+" fires alone", func() bool { return slices.Equal(p.alerts(), []string{name + " firing"}) })
	require.NotEmpty(p.t, p.ask(`count_over_time(ALERTS{alertname="`+name+`", alertstate="pending"}[5m])`), "%s fired at once", name)
}

func (p *prometheus) calm() {
	p.t.Helper()
	p.eventually("all is well", func() bool { return len(p.alerts()) == 0 })
}

// Guarantee: the shipped rules, judged by a real Prometheus over a real replica, are silent while all is well, and each store that really
// fails is told by its alert, and by no other, until it is back.
func TestAlertsFireOnRealFailures(t *testing.T) {
	t.Parallel()
	redis, pg := testenv.RedisServer(t), testenv.PostgresServer(t)
	r := startReplica(t, "PEGEL_DATABASE_URL="+pg.URL(), "PEGEL_REDIS_URL="+redis.URL(), "PEGEL_REDIS_TIMEOUT=1s", "PEGEL_DATABASE_DECISION_TIMEOUT=1s").ready()
	service := r.service()
	slug, _ := r.tenant(perMinute(1_000_000))
	check, err := json.Marshal(map[string]any{"tenant": slug})
	require.NoError(t, err)
	traffic := make(chan struct{})
	var failed error
	go func() { // a decision at a time: what fails is noticed by those who ask
		defer close(traffic)
		for t.Context().Err() == nil {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.public+"/v1/check", bytes.NewReader(check))
			if err != nil {
				failed = err
				return
			}
			req.Header.Set("Authorization", "Bearer "+service)
			req.Header.Set("Content-Type", "application/json")
			if res, err := http.DefaultClient.Do(req); err == nil {
				_ = res.Body.Close()
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	t.Cleanup(func() {
		<-traffic
		require.NoError(t, failed)
	})
	p := startPrometheus(t, strings.TrimPrefix(r.admin, "http://"))
	p.eventually("it has looked for longer than its rules wait", func() bool { return p.ask("count_over_time(pegel_ready[1m]) >= 8") != "" })
	p.calm()

	require.NoError(t, redis.Kill())
	p.fires("PegelRedisDown")
	require.NoError(t, redis.Start())
	p.calm()

	require.NoError(t, pg.Kill())
	p.fires("PegelPostgresDown")
	require.NoError(t, redis.Kill())
	p.fires("PegelNobodyDecides")
	require.NoError(t, redis.Start())
	require.NoError(t, pg.Start())
	p.calm()
}
