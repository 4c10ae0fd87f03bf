package client_test

import (
	"log"
	"net/http"
	"os"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/api/client"
)

// gin has its own form of middleware; forGin fits any func(http.Handler) http.Handler into it. (echo has echo.WrapMiddleware for
// that, and chi takes the middleware as it is.)
func ExampleMiddleware_gin() {
	pegel, err := client.New("http://pegel:8080", os.Getenv("PEGEL_TOKEN"))
	if err != nil {
		log.Fatal(err)
	}
	engine := gin.New()
	engine.Use(forGin(client.Middleware(pegel, func(r *http.Request) (client.Check, bool) {
		return client.Check{Tenant: "school-17", Method: r.Method, Path: r.URL.Path}, true
	})))
	log.Fatal(engine.Run(":3000"))
}

func forGin(limit func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		passed := false
		limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			passed, c.Request = true, r
			c.Next()
		})).ServeHTTP(c.Writer, c.Request)
		if !passed {
			c.Abort()
		}
	}
}
