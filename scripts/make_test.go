package scripts_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Guarantee: `make help` names every target a contributor needs, with a line that says what it does.
func TestMakeHelpNamesEveryTarget(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "make", "help")
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for target := range strings.FieldsSeq("build run test test-short soak lint generate generate-check bench migrate-new fmt tidy-check") {
		require.Regexp(t, `(?m)^  `+target+` +\S.{10,}$`, string(out))
	}
}

// Guarantee: what has to pass before a change lands is the lint and the test command of the README.
func TestContinuousIntegrationRunsTheREADMEsTests(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	require.Regexp(t, `(?m)^make test +#`, string(readme))
	ci, err := os.ReadFile("../.ci/run")
	require.NoError(t, err)
	for target := range strings.FieldsSeq("lint generate-check tidy-check test") {
		require.Regexp(t, `(?m)^make `+target+`$`, string(ci))
	}
	info, err := os.Stat("../.ci/run")
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&0o100, "it can be run")
}

// Guarantee: without a C compiler, which the race detector needs, `make test` says so before it builds anything.
func TestMakeNamesTheMissingCompiler(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "make", "-o", "setup", "c-compiler")
	cmd.Dir, cmd.Env = "..", append(os.Environ(), "CC=no-such-compiler")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "make test: no C compiler, which the race detector needs (Debian: gcc libc6-dev)")

	cmd = exec.CommandContext(t.Context(), "make", "-n", "-o", "setup", "test")
	cmd.Dir = ".."
	out, err = cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	compiler, _, _ := strings.Cut(string(out), "gotestsum")
	require.Contains(t, compiler, "no C compiler", "before anything is built")
}
