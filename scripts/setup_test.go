// Package scripts_test runs the scripts on machines made up for the purpose: a PATH with what the test put there.
package scripts_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// machine is a PATH of its own, with a root user and an apt-get that notes what it is asked.
type machine struct {
	t    *testing.T
	dir  string
	asks string // what apt-get was asked, one call a line
	env  []string
}

// newMachine has Go and Postgres and the programs of every Unix; nothing else.
func newMachine(t *testing.T) *machine {
	t.Helper()
	dir := t.TempDir()
	m := &machine{t: t, dir: filepath.Join(dir, "bin"), asks: filepath.Join(dir, "asks")}
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "postgres"), 0o755))
	require.NoError(t, os.MkdirAll(m.dir, 0o755))
	for _, tool := range []string{"bash", "sh", "chmod", "mktemp", "rm", "tail"} {
		path, err := exec.LookPath(tool)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(m.dir, tool)))
	}
	m.has("go", "")
	m.has("../postgres/initdb", "")
	m.has("../postgres/postgres", "")
	m.has("id", "echo 0")
	policy := filepath.Join(dir, "policy-rc.d")
	m.env = []string{
		"PATH=" + m.dir, "TMPDIR=" + t.TempDir(), "CC=a-c-compiler", "SETUP_POLICY_FILE=" + policy, "PEGEL_DEV_PG_BIN=" + filepath.Join(dir, "postgres"), "PEGEL_TEST_PYTHON=" + filepath.Join(dir, "bin", "python"),
	}
	m.aptGet(`[ -x "` + policy + `" ] || exit 9 # servers would be started`)
	t.Cleanup(func() { require.NoFileExists(t, policy) })
	return m
}

// has puts a program there.
func (m *machine) has(name, script string) {
	m.t.Helper()
	require.NoError(m.t, os.WriteFile(filepath.Join(m.dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
}

// aptGet is what apt-get does after it has noted what it was asked.
func (m *machine) aptGet(script string) {
	m.t.Helper()
	m.has("apt-get", `echo "$*" >>"`+m.asks+`"`+"\n"+script)
}

// setUp runs scripts/setup, which must succeed, and returns what it said and which packages it had installed, call by call.
func (m *machine) setUp(need string) (said string, installed []string) {
	m.t.Helper()
	cmd := exec.CommandContext(m.t.Context(), filepath.Join(m.dir, "bash"), "setup", need)
	cmd.Env = m.env
	out, err := cmd.CombinedOutput()
	require.NoError(m.t, err, "%s", out)
	asks, err := os.ReadFile(m.asks)
	if !os.IsNotExist(err) {
		require.NoError(m.t, err)
	}
	for line := range strings.Lines(string(asks)) {
		if _, packages, ok := strings.Cut(strings.TrimSpace(line), "install --no-install-recommends "); ok {
			installed = append(installed, packages)
		}
	}
	return string(out), installed
}

// Guarantee: on a machine with Go and nothing else, `make run` and `make test` install what they need.
func TestSetupInstallsWhatIsMissing(t *testing.T) {
	t.Parallel()
	for need, want := range map[string]string{"run": "redis-server curl jq procps", "test": "redis-server curl jq procps pgbouncer nginx-light nodejs php-cli python3-fastapi python3-httpx python3-uvicorn chromium prometheus gcc libc6-dev"} {
		m := newMachine(t)
		for binary, name := range map[string]string{"pgbouncer": "pgbouncer", "nginx": "nginx-light"} {
			if _, err := os.Stat("/usr/sbin/" + binary); err == nil {
				want = strings.Replace(want, name+" ", "", 1) // it is looked for there, too
			}
		}
		said, installed := m.setUp(need)
		require.Equal(t, []string{want}, installed, need)
		require.Equal(t, "setup: installing "+want+"\n", said)
	}
}

func TestSetupDoesNothingWhenAllIsThere(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, name := range []string{"valkey-server", "curl", "jq", "pgrep", "pkill", "pgbouncer", "nginx", "node", "php", "python", "chromium", "promtool", "a-c-compiler"} {
		m.has(name, "")
	}
	for _, need := range []string{"run", "test"} {
		said, _ := m.setUp(need)
		require.Empty(t, said)
	}
	require.NoFileExists(t, m.asks)
}

// Guarantee: where nothing can be installed, one line names the packages and the caller goes on: `pegel dev` can do without a
// Redis server.
func TestSetupNamesWhatItCannotInstall(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, name := range []string{"curl", "jq", "pgrep", "pkill"} {
		m.has(name, "")
	}
	m.has("id", "echo 1000")
	said, installed := m.setUp("run")
	require.Empty(t, installed)
	require.Equal(t, "setup: not installed: redis-server (names of Debian's packages; as root: apt-get install redis-server)\n", said)

	// Of two packages one cannot be had: the other is installed all the same.
	m = newMachine(t)
	for _, name := range []string{"jq", "pgrep", "pkill"} {
		m.has(name, "")
	}
	m.aptGet(`case "$*" in *curl*) echo "E: no curl"; exit 100 ;; esac`)
	said, installed = m.setUp("run")
	require.Equal(t, []string{"redis-server curl", "redis-server", "curl"}, installed)
	require.Contains(t, said, "E: no curl\nsetup: could not install curl; the whole log is in ")
}

// Guarantee: what README.md has its reader paste runs on a bare machine once `make run` has set it up.
func TestSetupInstallsWhatTheREADMEPastes(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	_, installed := m.setUp("run")
	packageOf := map[string]string{"curl": "curl", "jq": "jq", "pgrep": "procps", "pkill": "procps"}
	everywhere := strings.Fields("seq sleep sort uniq xargs ask try") // the last two are its own functions
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	used := map[string]bool{}
	for line := range strings.Lines(string(readme)) {
		if pasted, ok := strings.CutPrefix(line, "$ "); ok {
			for _, m := range regexp.MustCompile(`(?:^|[|;] |\()([a-z]+)`).FindAllStringSubmatch(pasted, -1) {
				used[m[1]] = true
			}
		}
	}
	for command := range packageOf {
		require.Contains(t, used, command, "the pattern finds them all")
	}
	for command := range used {
		if !slices.Contains(everywhere, command) {
			require.Contains(t, strings.Fields(installed[0]), packageOf[command], "README.md has its reader run %s", command)
		}
	}
}
