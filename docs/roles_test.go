package docs_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/api"
)

// TestTheTableOfRolesIsTheContracts holds the table to api/openapi.yaml, which internal/httpapi's tests hold to the routes. With UPDATE_DOCS=1
// it writes the table.
func TestTheTableOfRolesIsTheContracts(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	require.NoError(t, err)
	var rows []string
	for _, path := range slices.Sorted(maps.Keys(doc.Paths.Map())) {
		operations := doc.Paths.Value(path).Operations()
		byRole := map[string][]string{}
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
			if op := operations[method]; op != nil {
				if role, ok := op.Extensions["x-pegel-role"].(string); ok {
					byRole[role] = append(byRole[role], method)
				}
			}
		}
		for _, role := range []string{"viewer", "operator", "admin"} {
			if methods := byRole[role]; len(methods) > 0 {
				rows = append(rows, fmt.Sprintf("| `%s %s` | %s |", strings.Join(methods, ", "), path, role))
			}
		}
	}
	table := strings.Join(rows, "\n")
	const page, head = "docs/administration.md", "| Route | Least role |\n| --- | --- |\n"
	before, rest, found := strings.Cut(read(t, page), head)
	require.True(t, found)
	have, after, _ := strings.Cut(rest, "\n\n")
	if os.Getenv("UPDATE_DOCS") != "" {
		require.NoError(t, os.WriteFile(filepath.Join(root, page), []byte(before+head+table+"\n\n"+after), 0o600))
		return
	}
	require.Equal(t, table, have, "UPDATE_DOCS=1 go test ./docs -run TableOfRoles writes it")
}
