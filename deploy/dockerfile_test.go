package deploy_test

import (
	"debug/elf"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
	"github.com/stretchr/testify/require"
)

// instructions are the Dockerfile's, comments dropped and continuation lines joined, one slice per stage.
func instructions(t *testing.T) [][]string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	require.NoError(t, err)
	text := regexp.MustCompile(`(?m)^\s*#.*\n`).ReplaceAllString(string(raw), "")
	text = regexp.MustCompile(`\\\n\s*`).ReplaceAllString(text, "")
	var stages [][]string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "FROM ") {
			stages = append(stages, nil)
		}
		if line != "" {
			stages[len(stages)-1] = append(stages[len(stages)-1], line)
		}
	}
	return stages
}

func TestImageIsSmallAndUnprivileged(t *testing.T) {
	t.Parallel()
	stages := instructions(t)
	final := stages[len(stages)-1]
	require.Regexp(t, `^FROM (scratch|gcr\.io/distroless/static\S*)$`, final[0])
	text := strings.Join(final, "\n")
	require.Regexp(t, `(?m)^USER [1-9]\d*:[1-9]\d*$`, text, "a number, so that runAsNonRoot can be checked")
	require.Regexp(t, `(?m)^ENTRYPOINT \["/usr/local/bin/pegel"\]$`, text)
	require.Regexp(t, `(?m)^HEALTHCHECK .*CMD \["/usr/local/bin/pegel", "healthcheck"\]$`, text, "exec form: there is no shell")
	require.Regexp(t, `(?m)^ENV PEGEL_LISTEN=:8080$`, text)
	require.NotContains(t, text, "PEGEL_ADMIN_LISTEN", "the admin listener stays on loopback unless asked for")
	require.NotRegexp(t, `(?m)^RUN `, text, "there is no shell")
	require.NotRegexp(t, `(?i)(password|token|secret)\s*=`, text)
}

// The Dockerfile's own build command, run on what .dockerignore lets through, gives a static binary with the version
// built in.
func TestImageBuildCommand(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds the whole program")
	}
	buildContext := t.TempDir()
	copyBuildContext(t, buildContext)

	command := regexp.MustCompile(`CGO_ENABLED=0 .*`).FindString(strings.Join(instructions(t)[0], "\n"))
	require.Contains(t, command, "-o /out/pegel")
	binary := filepath.Join(t.TempDir(), "pegel")
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", strings.ReplaceAll(command, "/out/pegel", binary))
	cmd.Dir = buildContext
	cmd.Env = append(os.Environ(), "TARGETOS=linux", "TARGETARCH="+hostArch(t), "VERSION=v1.2.3-test", "GOFLAGS=-mod=readonly", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)

	file, err := elf.Open(binary)
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	for _, program := range file.Progs {
		require.NotEqual(t, elf.PT_INTERP, program.Type, "the binary asks for a dynamic linker, which the image lacks")
	}

	out, err = exec.CommandContext(t.Context(), binary, "version").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "v1.2.3-test")
}

func hostArch(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOARCH").Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// copyBuildContext copies what Docker would send to the builder.
func copyBuildContext(t *testing.T, to string) {
	t.Helper()
	ignore, err := os.Open(filepath.Join(root, ".dockerignore"))
	require.NoError(t, err)
	patterns, err := ignorefile.ReadAll(ignore)
	require.NoError(t, err)
	require.NoError(t, ignore.Close())
	matcher, err := patternmatcher.New(patterns)
	require.NoError(t, err)

	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if top := strings.SplitN(name, string(filepath.Separator), 2)[0]; strings.HasPrefix(top, ".") && name != "." {
				return filepath.SkipDir // .git, .dev, .bin: large, and never let through (checked below)
			}
			return nil
		}
		ignored, err := matcher.MatchesOrParentMatches(name)
		if err != nil || ignored || !entry.Type().IsRegular() {
			return err
		}
		return copyFile(path, filepath.Join(to, name))
	}))
	for _, secret := range []string{".git/config", ".dev/keys.json", "secrets/admin_token", "pegel.env", ".env"} {
		ignored, err := matcher.MatchesOrParentMatches(secret)
		require.NoError(t, err)
		require.True(t, ignored, "%s would reach the builder", secret)
	}
}

func copyFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}
