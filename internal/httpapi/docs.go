package httpapi

import (
	"embed"
	"log/slog"
	"net/http"
	"path"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/api"
	"github.com/pegel-dev/pegel/internal/problem"
)

// swagger holds the documentation page: swagger-ui as published, and our index, style and start script.
//
//go:embed swagger
var swagger embed.FS

// docsPolicy lets the page load its own files, talk to its own host and nothing else. Inline scripts and styles are not allowed;
// swagger-ui's few drawings come as data URLs.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// docs serves the contract and its page.
type docs struct{ surface }

// document is GET /openapi.yaml.
func (d *docs) document(c *gin.Context) {
	d.writeRaw(c, http.StatusOK, "application/yaml", api.OpenAPI)
}

// page is GET /docs.
func (d *docs) page(c *gin.Context) { d.send(c, "index.html", "text/html; charset=utf-8") }

// file is GET /docs/{file}.
func (d *docs) file(c *gin.Context) {
	types := map[string]string{
		"swagger-ui-bundle.js":             "text/javascript; charset=utf-8",
		"swagger-ui-bundle.js.LICENSE.txt": "text/plain; charset=utf-8",
		"swagger-ui.css":                   "text/css; charset=utf-8",
		"pegel.css":                        "text/css; charset=utf-8",
		"init.js":                          "text/javascript; charset=utf-8",
		"favicon-32x32.png":                "image/png",
		"LICENSE":                          "text/plain; charset=utf-8",
		"NOTICE":                           "text/plain; charset=utf-8",
	}
	name := c.Param("file")
	contentType, ok := types[name]
	if !ok {
		d.fail(c, refuse(problem.NotFound, "there is nothing at this path"))
		return
	}
	d.send(c, name, contentType)
}

func (d *docs) send(c *gin.Context, name, contentType string) {
	raw, err := swagger.ReadFile(path.Join("swagger", name))
	if err != nil {
		d.log.LogAttrs(c.Request.Context(), slog.LevelError, "embedded file is missing", slog.String("file", name))
		d.fail(c, err)
		return
	}
	c.Header("Content-Security-Policy", docsPolicy)
	c.Header("Cache-Control", "no-cache")
	d.writeRaw(c, http.StatusOK, contentType, raw)
}
