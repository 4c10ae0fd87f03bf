// Package examples shows the middleware in routers that Pegel itself does not depend on.
package examples

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"

	"github.com/pegel-dev/pegel/api/client"
)

// limited is the middleware as every router gets it.
func limited(t *testing.T, pegel string) func(http.Handler) http.Handler {
	t.Helper()
	c, err := client.New(pegel, "pgs_AAAAAAAAAAAA_example")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return client.Middleware(c, func(r *http.Request) (client.Check, bool) {
		return client.Check{Tenant: "school-17", Method: r.Method, Path: r.URL.Path}, true
	})
}

func withChi(limit func(http.Handler) http.Handler) http.Handler {
	router := chi.NewRouter()
	router.Use(limit) // as it is
	router.Get("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("served")) })
	return router
}

func withEcho(limit func(http.Handler) http.Handler) http.Handler {
	router := echo.New()
	router.Use(echo.WrapMiddleware(limit))
	router.GET("/", func(c echo.Context) error { return c.String(http.StatusOK, "served") })
	return router
}

// Both let through what Pegel allows, with its headers, and answer 429 where it refuses.
func TestRouters(t *testing.T) {
	for name, router := range map[string]func(func(http.Handler) http.Handler) http.Handler{"chi": withChi, "echo": withEcho} {
		for status, answer := range map[int]string{
			http.StatusOK:              `{"decision":"allow","allowed":true,"decision_id":"1","source":"redis","limit_name":"l","limit":10,"remaining":9,"limits":[]}`,
			http.StatusTooManyRequests: `{"decision":"deny","allowed":false,"decision_id":"1","source":"redis","limit_name":"l","limit":10,"remaining":0,"retry_after_ms":2000,"limits":[],"error":"rate_limit_exceeded"}`,
		} {
			pegel := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				_, _ = w.Write([]byte(answer))
			}))
			w := httptest.NewRecorder()
			router(limited(t, pegel.URL)).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
			pegel.Close()
			if w.Code != status || w.Header().Get("X-RateLimit-Limit") != "10" {
				t.Errorf("%s: %d %v %s", name, w.Code, w.Header(), w.Body)
			}
		}
	}
}
