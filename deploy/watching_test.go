package deploy_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// promtool is Prometheus' own judge of rules. Missing, it fails the tests where CI is set.
func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("promtool"); err != nil {
		require.Empty(t, os.Getenv("CI"), "promtool is missing: scripts/setup installs it (Debian: prometheus)")
		t.Skip("promtool is missing: scripts/setup installs it (Debian: prometheus)")
	}
	cmd := exec.CommandContext(t.Context(), "promtool", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// documentedMetrics are the names in docs/metrics.md, which a test of internal/app holds to what is exported.
func documentedMetrics(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs/metrics.md"))
	require.NoError(t, err)
	names := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(pegel_[a-z_]+)` \\| ([a-z]+) \\|").FindAllStringSubmatch(string(text), -1) {
		names[row[1]] = true
		if row[2] == "histogram" {
			names[row[1]+"_bucket"], names[row[1]+"_sum"], names[row[1]+"_count"] = true, true, true
		}
	}
	require.NotEmpty(t, names)
	return names
}

// requireKnown fails for a metric that is not exported.
func requireKnown(t *testing.T, known map[string]bool, expr string) {
	t.Helper()
	found := regexp.MustCompile(`pegel_[a-z_]+`).FindAllString(expr, -1)
	require.NotEmpty(t, found, expr)
	for _, name := range found {
		require.True(t, known[name], "%s in %s is not exported", name, expr)
	}
}

// Guarantee: the rules are valid, name only what is exported, and each fires in the failure it is about and not when all is well.
func TestPrometheusRules(t *testing.T) {
	t.Parallel()
	known := documentedMetrics(t)
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	raw, err := os.ReadFile("prometheus/pegel.rules.yml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(raw, &rules))
	tests, err := os.ReadFile("prometheus/pegel.rules.test.yml")
	require.NoError(t, err)
	for _, rule := range rules.Groups[0].Rules {
		requireKnown(t, known, rule.Expr)
		require.Contains(t, string(tests), `alertname="`+rule.Alert+`",alertstate="firing"`, "the rule has no test")
	}
	promtool(t, "prometheus", "check", "rules", "pegel.rules.yml")
	promtool(t, "prometheus", "test", "rules", "pegel.rules.test.yml")
}

// Guarantee: every query of the dashboard is valid and names only what is exported; every panel is for the chosen replicas.
func TestGrafanaDashboard(t *testing.T) {
	t.Parallel()
	known := documentedMetrics(t)
	var dashboard struct {
		Title  string
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	raw, err := os.ReadFile("grafana/pegel.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &dashboard))
	require.NotEmpty(t, dashboard.Panels)
	type record struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var records []record
	for _, panel := range dashboard.Panels {
		require.NotEmpty(t, panel.Targets, panel.Title)
		for _, target := range panel.Targets {
			requireKnown(t, known, target.Expr)
			require.Contains(t, target.Expr, `instance=~"$instance"`, panel.Title)
			records = append(records, record{Record: "panel", Expr: strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*").Replace(target.Expr)})
		}
	}
	// promtool reads queries as part of rules only.
	asRules, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "panels", "rules": distinct(records)}}})
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "panels.yml"), asRules, 0o600))
	promtool(t, dir, "check", "rules", "panels.yml")
}

func distinct[T comparable](list []T) (out []T) {
	seen := map[T]bool{}
	for _, v := range list {
		if !seen[v] {
			seen[v] = true
			out = append(out, v)
		}
	}
	return out
}
