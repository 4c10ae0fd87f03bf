package docs_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/app"
)

// notSettings are the names of the environment that something else than `pegel serve` reads.
var notSettings = map[string]string{
	"PEGEL_DEV_PG_BIN":        "pegel dev and tests: where Postgres' programs are",
	"PEGEL_TEST_DATABASE_URL": "tests: a Postgres to use",
	"PEGEL_TEST_REDIS_URL":    "tests: a Redis to use",
	"PEGEL_SOAK":              "make soak: how long",
	"PEGEL_BENCH_ROWS":        "a benchmark: how large a request log",
	"PEGEL_SERVER":            "the command line: URL of the admin listener",
	"PEGEL_PUBLIC_SERVER":     "the command line: URL of the public listener",
	"PEGEL_TOKEN":             "the command line: an admin token; examples: a service token",
	"PEGEL_TOKEN_FILE":        "the command line: a file with it",
	"PEGEL_KEY":               "the command line: an API key or a service token; examples: a tenant's API key",
	"PEGEL_ADMIN":             "examples: an admin token",
}

// The table of settings in operations.md is the program's own, in its order and with its defaults.
func TestSettingsTable(t *testing.T) {
	t.Parallel()
	var want []string
	for _, s := range app.Settings() {
		def := "none"
		if s.Default != "" {
			def = "`" + s.Default + "`"
		}
		want = append(want, "| `"+s.Env+"` | "+def+" | "+s.Kind+" | "+s.Help+" |")
	}
	var shown []string
	for line := range strings.Lines(read(t, "docs/operations.md")) {
		if strings.HasPrefix(line, "| `PEGEL_") {
			shown = append(shown, strings.TrimSpace(line))
		}
	}
	require.Equal(t, want, shown)
}

// A reader never meets the name of a setting that is not there.
func TestNamedSettingsExist(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, s := range app.Settings() {
		known[s.Env] = true
		if s.Secret {
			known[s.Env+"_FILE"] = true
		}
	}
	name := regexp.MustCompile(`PEGEL_[A-Z0-9_]+[A-Z0-9]`)
	for _, page := range pages(t) {
		for _, found := range name.FindAllString(read(t, page), -1) {
			require.True(t, known[found] || notSettings[found] != "", "%s names %s, which is no setting", page, found)
		}
	}
}
