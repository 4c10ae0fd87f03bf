package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// writeEnv makes TestTheCommandLinePage write what the commands print into the page, instead of comparing.
const writeEnv = "PEGEL_TEST_WRITE"

// server is a `pegel serve` in a process of its own, with an administrator.
type server struct {
	t             *testing.T
	admin, public string
	token         string
	database      string
	dir           string // holds the command pegel, and is where it runs
	env           []string
}

// startServer gives it, and the commands that ask it, more variables. With a certificate it speaks TLS.
func startServer(t *testing.T, env ...string) *server {
	t.Helper()
	s := &server{t: t, database: testenv.Postgres(t), dir: t.TempDir(), env: env}
	scheme, probe := "http://", []string{"healthcheck", "--ready", "--listen"}
	for _, v := range env {
		if cert, ok := strings.CutPrefix(v, "PEGEL_TLS_CERT_FILE="); ok {
			scheme, probe = "https://", []string{"healthcheck", "--ready", "--tls-cert-file", cert, "--listen"}
		}
	}
	logs := &syncBuffer{}
	cmd := exec.Command(os.Args[0], "serve", "--listen", anyAddr, "--admin-listen", anyAddr, "--drain-pause", "0s", "--log-format", "json")
	cmd.Env = append(os.Environ(), mainEnv+"=1", "PEGEL_DATABASE_URL="+s.database, "PEGEL_REDIS_URL="+testenv.Redis(t),
		"PEGEL_REDIS_TIMEOUT=5s",
		"PEGEL_TOKEN=ignored", "PEGEL_SERVER=ignored") // names of the command line do not stop a start
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = logs
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(logs.String())
		}
	})
	listens := regexp.MustCompile(`"public":"([^"]+)".*"admin":"([^"]+)"`)
	require.Eventually(t, func() bool {
		found := listens.FindStringSubmatch(logs.String())
		if found == nil {
			return false
		}
		s.public, s.admin = scheme+found[1], scheme+found[2]
		_, err := run(t, append(slices.Clone(probe), found[1])...)
		return err == nil
	}, 60*time.Second, 50*time.Millisecond, "%s", logs)

	script := fmt.Sprintf("#!/bin/sh\n%s=1 exec '%s' \"$@\"\n", mainEnv, os.Args[0])
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "pegel"), []byte(script), 0o755))
	out, err := run(t, "admin-token", "create", "--name", "ops", "--database-url", s.database)
	require.NoError(t, err)
	s.token = strings.TrimSpace(out)
	require.Eventually(t, func() bool { // accepted within a second, on a machine that has one
		_, _, status := s.pegel("mode get")
		return status == 0
	}, 60*time.Second, 50*time.Millisecond)
	return s
}

// shell runs lines in a shell that finds the command pegel, and knows this server.
func (s *server) shell(script string) (stdout, stderr string, status int) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), "sh")
	cmd.Dir, cmd.Stdin = s.dir, strings.NewReader(script)
	cmd.Env = append(os.Environ(), "PATH="+s.dir+":"+os.Getenv("PATH"), "PEGEL_SERVER="+s.admin, "PEGEL_PUBLIC_SERVER="+s.public, "PEGEL_TOKEN="+s.token)
	cmd.Env = append(cmd.Env, s.env...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil {
		var exit *exec.ExitError
		require.ErrorAs(s.t, err, &exit)
		status = exit.ExitCode()
	}
	return out.String(), errs.String(), status
}

// pegel runs one command; its arguments are quoted by the caller.
func (s *server) pegel(args string) (stdout, stderr string, status int) {
	s.t.Helper()
	return s.shell("pegel " + args + " </dev/null\n")
}

// must runs one command that has to end well.
func (s *server) must(args string) string {
	s.t.Helper()
	stdout, stderr, status := s.pegel(args)
	require.Zero(s.t, status, "pegel %s\n%s%s", args, stdout, stderr)
	return stdout
}

var console = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")

// changing is what differs from run to run: secrets, ids, moments, waits and the width of columns.
var changing = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`pg[ksa]_\w+`), "SECRET"},
	{regexp.MustCompile(`\b[0-9A-Za-z]{16}\b`), "ID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`\b(\d+m)?\d+(\.\d+)?s\b|\bin \d+ s\b`), "WAIT"},
	{regexp.MustCompile(` +`), " "},
}

func settled(text string) string {
	for _, c := range changing {
		text = c.what.ReplaceAllString(text, c.with)
	}
	return text
}

// Guarantee: docs/cli.md shows what the commands print, in the order in which it shows them, on a new installation.
func TestTheCommandLinePage(t *testing.T) {
	t.Parallel()
	const page = "../../docs/cli.md"
	raw, err := os.ReadFile(page)
	require.NoError(t, err)
	var script strings.Builder
	for _, block := range console.FindAllStringSubmatch(string(raw), -1) {
		for line := range strings.Lines(block[1]) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				script.WriteString("exec 2>&1\n" + command + "\necho '@@'\n")
			}
		}
	}
	out, _, status := startServer(t).shell(script.String())
	require.Zero(t, status)
	answers := strings.Split(out, "@@\n")
	next := 0
	printed := console.ReplaceAllStringFunc(string(raw), func(block string) string {
		var b strings.Builder
		b.WriteString("```console\n")
		for line := range strings.Lines(block) {
			if strings.HasPrefix(line, "$ ") {
				b.WriteString(line + answers[next])
				next++
			}
		}
		return b.String() + "```"
	})
	if os.Getenv(writeEnv) != "" {
		require.NoError(t, os.WriteFile(page, []byte(printed), 0o644))
	}
	require.Greater(t, next, 20)
	require.Equal(t, settled(printed), settled(string(raw)))
}
