package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"
)

// health answers the probes, on both listeners. Neither asks a store: a store that hangs must not get the process killed.
type health struct {
	surface

	view Health
}

// live is GET /healthz.
func (h *health) live(c *gin.Context) {
	h.writeRaw(c, http.StatusOK, "application/json", []byte(`{"status":"ok"}`))
}

// ready is GET /readyz.
func (h *health) ready(c *gin.Context) {
	readiness := h.view.Readiness()
	status := http.StatusOK
	if !readiness.Ready {
		status = http.StatusServiceUnavailable
	}
	h.writeJSON(c, status, readiness)
}
