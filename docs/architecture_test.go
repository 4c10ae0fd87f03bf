package docs_test

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// The traced requests name files and functions that are there: whoever renames one is sent to the page.
func TestTracesNameRealFunctions(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile("`(internal/[\\w/]+\\.go)`\\s`(\\w+)`").FindAllStringSubmatch(read(t, "docs/architecture.md"), -1)
	require.Greater(t, len(named), 15)
	for _, match := range named {
		file, function := match[1], match[2]
		declared := regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + function + `[\[(]`).MatchString(read(t, file))
		require.True(t, declared, "docs/architecture.md names %s in %s", function, file)
	}
}
