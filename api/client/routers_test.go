package client_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/api/client"
)

// Guarantee: the gin adapter of the example serves what is allowed and stops what is refused.
func TestGin(t *testing.T) {
	t.Parallel()
	s := shared(t)
	s.tenant("school-17", perMinute(1))
	engine := gin.New()
	engine.Use(forGin(client.Middleware(s.client(), func(*http.Request) (client.Check, bool) {
		return client.Check{Tenant: "school-17"}, true
	}, client.WithAskTimeout(10*time.Second))))
	served := 0
	engine.GET("/", func(c *gin.Context) {
		served++
		c.String(http.StatusOK, "served")
	})
	for _, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		w := httptest.NewRecorder()
		engine.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		require.Equal(t, want, w.Code, "%s", w.Body)
		require.Equal(t, "1", w.Header().Get("X-RateLimit-Limit"))
	}
	require.Equal(t, 1, served)
}

// Guarantee: so do chi and echo, which are a module of their own (examples) and never reach Pegel's. What they need is looked up
// in a copy of its go.mod, so that a newer version somewhere in Pegel's does not stop the test.
func TestOtherRouters(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum"} {
		raw, err := os.ReadFile(filepath.Join("examples", name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), raw, 0o600))
	}
	run := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-mod=mod", "-modfile="+filepath.Join(dir, "go.mod"), ".")
	run.Dir = "examples"
	out, err := run.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
