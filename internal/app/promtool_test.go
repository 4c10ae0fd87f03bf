package app_test

import (
	"bytes"
	"net/http"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// Guarantee: names, types and help texts are as Prometheus' own check wants them.
func TestMetricsPassPromtool(t *testing.T) {
	t.Parallel()
	r, _ := complete(t)
	check := exec.CommandContext(t.Context(), "promtool", "check", "metrics")
	check.Stdin = bytes.NewReader(r.call(http.MethodGet, r.admin+"/metrics", "", nil).body)
	said, err := check.CombinedOutput()
	require.NoError(t, err, "%s", said)
	require.Empty(t, string(said))
}
