package main

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// run is one command in this process.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&out)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestMigrateUpDownStatus(t *testing.T) {
	t.Parallel()
	url := "--database-url=" + testenv.EmptyPostgres(t)
	out, err := run(t, "migrate", "status", url)
	require.NoError(t, err)
	require.Contains(t, out, "version 0 of ")
	require.Contains(t, out, "pending: ")

	out, err = run(t, "migrate", "up", url)
	require.NoError(t, err)
	require.Contains(t, out, ": up to date")
	out, err = run(t, "migrate", "down", "1", url)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(out, "pending: "))
	_, err = run(t, "migrate", "down", "-1", url)
	require.Error(t, err)
	_, err = run(t, "migrate", "down", "zero", url)
	require.ErrorContains(t, err, "zero")
	_, err = run(t, "migrate", "down", url)
	require.ErrorContains(t, err, "`pegel migrate down 1`")
}

// Guarantee: a mistyped command is an error of one line, never a page of help with exit status 0.
func TestMistypedCommandsAreErrors(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"servee":         "there is no `pegel servee`; did you mean serve?",
		"nonsense":       "there is no `pegel nonsense`; `pegel --help` lists what there is",
		"migrate stauts": "there is no `pegel migrate stauts`; did you mean status?",
		"migrate x":      "there is no `pegel migrate x`; `pegel migrate --help` lists what there is",
		"admin-token x":  "there is no `pegel admin-token x`; `pegel admin-token --help` lists what there is",
		"config chek":    "there is no `pegel config chek`; did you mean check?",

		"completion bash x":      "\"x\" is one argument too many: `pegel completion bash`",
		"completion powershel":   "there is no `pegel completion powershel`; did you mean powershell?",
		"completion fish --nope": "unknown flag: --nope",
		"help tenannt":           "there is no `pegel tenannt`; did you mean tenant?",
		"help tenant x":          "there is no `pegel tenant x`; `pegel tenant --help` lists what there is",
		"help tenant set x":      "there is no `pegel tenant set x`; `pegel tenant --help` lists what there is",
	} {
		out, err := run(t, strings.Fields(args)...)
		require.EqualError(t, err, want)
		status, _ := exitStatus(err)
		require.Equal(t, exitUsage, status, args)
		require.Empty(t, out)
	}
	for _, args := range []string{"help tenant set", "help", "completion"} {
		out, err := run(t, strings.Fields(args)...)
		require.NoError(t, err, args)
		require.Contains(t, out, "Examples:", args)
		require.Contains(t, out, "--help", args)
	}
	out, err := run(t, "migrate")
	require.NoError(t, err)
	require.Contains(t, out, "Available Commands:")
}

// Guarantee: the help of a setting that quotes a command does not take that for the name of its value.
func TestHelpNamesNoCommandAsAValue(t *testing.T) {
	t.Parallel()
	out, err := run(t, "serve", "--help")
	require.NoError(t, err)
	require.Contains(t, out, "--admin-token string ")
	require.NotContains(t, out, "`")
}

// Guarantee: the first administrator needs only the database.
func TestAdminTokenCreate(t *testing.T) {
	t.Parallel()
	url := "--database-url=" + testenv.Postgres(t)
	out, err := run(t, "admin-token", "create", "--name", "ops", url)
	require.NoError(t, err)
	require.Regexp(t, `^pga_[0-9A-Za-z]+_[0-9A-Za-z]+\n$`, out)

	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--name", ""}, "--name: "},
		{[]string{"--name", "x", "--role", "god"}, "--role: must be viewer, operator or admin"},
		{[]string{"--name", "x", "--expires-in", "-1h"}, "--expires-in: "},
	} {
		_, err := run(t, append([]string{"admin-token", "create", url}, c.args...)...)
		require.ErrorContains(t, err, c.want)
	}
	_, err = run(t, "admin-token", "create", "--name", "x", "--database-url=postgres://u:canary@127.0.0.1:1/x")
	require.ErrorContains(t, err, "is it up")
	require.NotContains(t, err.Error(), "canary")
}

func TestHealthcheck(t *testing.T) {
	t.Parallel()
	status := http.StatusOK
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(status)
	})
	server, secure := httptest.NewServer(h), httptest.NewTLSServer(h)
	defer server.Close()
	defer secure.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)

	for _, listen := range []string{"127.0.0.1:" + port, ":" + port, "0.0.0.0:" + port} {
		_, err := run(t, "healthcheck", "--listen", listen)
		require.NoError(t, err, listen)
	}
	_, err = run(t, "healthcheck", "--listen", ":"+port, "--ready")
	require.ErrorContains(t, err, "503")
	_, err = run(t, "healthcheck", "--listen", secure.Listener.Addr().String(), "--tls-cert-file", "/some/cert.pem")
	require.NoError(t, err, "a certificate means TLS, whatever name it is for")
	status = http.StatusInternalServerError
	_, err = run(t, "healthcheck", "--listen", ":"+port)
	require.ErrorContains(t, err, "500")
	_, err = run(t, "healthcheck", "--listen", "127.0.0.1:1")
	require.Error(t, err)
}

func TestConfigCheck(t *testing.T) {
	t.Parallel()
	out, err := run(t, "config", "check", "--database-url", "postgres://u:canary@x/y", "--ipv6-prefix", "56")
	require.NoError(t, err)
	require.Regexp(t, `PEGEL_IPV6_PREFIX +56 +\(flag\)`, out)
	require.Regexp(t, `PEGEL_LISTEN +127\.0\.0\.1:8080 +\(default\)`, out)
	require.NotContains(t, out, "canary")
	_, err = run(t, "config", "check", "--database-url", "postgres://u:canary@x/y", "--ipv6-prefix", "1")
	require.EqualError(t, err, `PEGEL_IPV6_PREFIX: "1" is not a whole number from 16 to 128`)
}

// Guarantee: every command has a line that says what it is for, a usage line and an example that starts with its own name.
func TestHelp(t *testing.T) {
	t.Parallel()
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		require.NotEmpty(t, cmd.Short, cmd.CommandPath())
		require.Contains(t, cmd.Example, cmd.CommandPath(), "an example of %s", cmd.CommandPath())
		for line := range strings.Lines(cmd.Example) {
			require.LessOrEqual(t, len([]rune(line)), 130, cmd.CommandPath())
		}
		if !cmd.HasSubCommands() && cmd.Name() != "help" {
			require.NotNil(t, cmd.Args, "%s checks its arguments", cmd.CommandPath())
		}
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	root := rootCommand()
	walk(root)
	for _, command := range []string{"", "serve", "apply", "tenant set"} {
		out, err := run(t, append(strings.Fields(command), "--help")...)
		require.NoError(t, err)
		require.Contains(t, out, "Usage:", command)
		require.Contains(t, out, "Examples:", command)
	}
	out, err := run(t, "serve", "--help")
	require.NoError(t, err)
	require.Contains(t, out, "--redis-timeout")
	out, err = run(t, "version")
	require.NoError(t, err)
	require.Equal(t, "pegel unknown\n", out)
}

// Guarantee: the help of -o names the forms there are and the one that is printed without it; where there is one form it is not offered.
func TestHelpOfOutput(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{
		"export": `yaml or json (default "yaml")`, "apply": `table, json or yaml (default "table")`, "tenant list": `table, json or yaml (default "table")`,
		"audit export": "", "request export": "", "network export": "", "tenant delete": "", "plan delete": "", "override delete": "",
		"network delete": "", "key revoke": "", "service-token revoke": "", "admin-token revoke": "", "alert ack": "",
	} {
		out, err := run(t, append(strings.Fields(command), "--help")...)
		require.NoError(t, err)
		if want == "" {
			require.NotContains(t, out, "--output", command)
			continue
		}
		require.Contains(t, out, want, command)
	}
}

// Guarantee: SIGTERM ends a process with status 0 after its drain; a second one ends it at once.
func TestSignals(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	start := func(pause string) (*exec.Cmd, chan error) {
		cmd := exec.Command(os.Args[0], "serve", "--listen", anyAddr, "--admin-listen", anyAddr, "--drain-pause", pause, "--log-format", "json")
		cmd.Env = append(os.Environ(), mainEnv+"=1", "PEGEL_DATABASE_URL="+database)
		logs := &syncBuffer{}
		cmd.Stderr = logs
		require.NoError(t, cmd.Start())
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		require.Eventually(t, func() bool {
			public := regexp.MustCompile(`"public":"([^"]+)"`).FindStringSubmatch(logs.String())
			if public == nil {
				return false
			}
			_, err := run(t, "healthcheck", "--ready", "--listen", public[1])
			return err == nil
		}, 30*time.Second, 50*time.Millisecond)
		return cmd, ended
	}
	await := func(ended chan error) error {
		select {
		case err := <-ended:
			return err
		case <-time.After(20 * time.Second):
			require.Fail(t, "it does not end")
			return nil
		}
	}
	cmd, ended := start("100ms")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, await(ended))

	cmd, ended = start("5m")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.Eventually(t, func() bool { // until the first one has been taken note of, a second is the same one
		_ = cmd.Process.Signal(syscall.SIGTERM)
		return len(ended) == 1
	}, 20*time.Second, 100*time.Millisecond)
	err := await(ended)
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	status, ok := exit.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	require.Equal(t, syscall.SIGTERM, status.Signal())
}
