// Package docs_test keeps the documentation true where a machine can: links lead somewhere, JSON parses, shown code is the
// code that is tested, settings exist.
package docs_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = ".."

// pages are all Markdown files of the repository, relative to its root.
func pages(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "internal/*/*.md", "bench/*.md", "deploy/*/*.md"} {
		matches, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, match := range matches {
			name, err := filepath.Rel(root, match)
			require.NoError(t, err)
			found = append(found, name)
		}
	}
	require.Contains(t, found, "docs/for-clients.md")
	return found
}

func read(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, name))
	require.NoError(t, err)
	return string(raw)
}

var (
	fence   = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)"`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	// anchorDrop is what GitHub removes from a heading to make its anchor.
	anchorDrop = regexp.MustCompile(`[^\p{L}\p{N}\-_ ]`)
)

func anchors(text string) []string {
	var found []string
	for _, match := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		anchor := anchorDrop.ReplaceAllString(strings.ToLower(match[1]), "")
		found = append(found, strings.ReplaceAll(anchor, " ", "-"))
	}
	return found
}

func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		text := read(t, page)
		for _, match := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			target := match[1] + match[2]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file, anchor, _ := strings.Cut(target, "#")
			name := page
			if file != "" {
				name = filepath.Join(filepath.Dir(page), file)
				_, err := os.Stat(filepath.Join(root, name))
				require.NoError(t, err, "%s links to %s", page, target)
			}
			if anchor != "" && strings.HasSuffix(name, ".md") {
				require.Contains(t, anchors(read(t, name)), anchor, "%s links to %s", page, target)
			}
		}
	}
}

func TestJSONParses(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		for _, match := range fence.FindAllStringSubmatch(read(t, page), -1) {
			if match[1] == "json" {
				require.True(t, json.Valid([]byte(match[2])), "%s shows JSON that does not parse:\n%s", page, match[2])
			}
		}
	}
}

// The code that clients are told to copy is code that is tested.
func TestShownCodeIsTheTestedCode(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/for-clients.md")
	shown := 0
	for _, match := range fence.FindAllStringSubmatch(page, -1) {
		if file := map[string]string{"go": "backoff.go", "js": "backoff.mjs"}[match[1]]; file != "" {
			require.Contains(t, read(t, "docs/examples/backoff/"+file), match[2], "docs/for-clients.md and %s differ", file)
			shown++
		}
	}
	require.Equal(t, 2, shown)
}

// n8n refuses a workflow whose connections name a node that is not there, and ours is only useful with a way back.
func TestN8nWorkflow(t *testing.T) {
	t.Parallel()
	type end struct {
		Node  string `json:"node"`
		Type  string `json:"type"`
		Index int    `json:"index"`
	}
	var workflow struct {
		Name  string `json:"name"`
		Nodes []struct {
			ID          string         `json:"id"`
			Name        string         `json:"name"`
			Type        string         `json:"type"`
			TypeVersion float64        `json:"typeVersion"`
			Position    [2]int         `json:"position"`
			Parameters  map[string]any `json:"parameters"`
		} `json:"nodes"`
		Connections map[string]struct {
			Main [][]end `json:"main"`
		} `json:"connections"`
		Settings map[string]any `json:"settings"`
	}
	require.NoError(t, json.Unmarshal([]byte(read(t, "docs/examples/n8n-retry-after.json")), &workflow))
	require.NotEmpty(t, workflow.Name)

	types := map[string]string{}
	var ids []string
	for _, node := range workflow.Nodes {
		types[node.Name] = node.Type
		ids = append(ids, node.ID)
		require.NotZero(t, node.TypeVersion, "%s", node.Name)
		require.NotNil(t, node.Parameters, "%s", node.Name)
	}
	slices.Sort(ids)
	require.Len(t, slices.Compact(ids), len(workflow.Nodes), "ids are unique")

	next := map[string][]string{}
	for from, outputs := range workflow.Connections {
		require.Contains(t, types, from)
		for _, output := range outputs.Main {
			for _, to := range output {
				require.Contains(t, types, to.Node)
				next[types[from]] = append(next[types[from]], types[to.Node])
			}
		}
	}
	require.Contains(t, next["n8n-nodes-base.if"], "n8n-nodes-base.wait")
	require.Contains(t, next["n8n-nodes-base.wait"], "n8n-nodes-base.httpRequest", "after the wait the call is made again")
	require.Contains(t, read(t, "docs/examples/n8n-retry-after.json"), "retry-after")
	require.NotRegexp(t, `pgk_[0-9a-zA-Z]{20,}`, read(t, "docs/examples/n8n-retry-after.json"), "no real key")
}
