package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// refund is POST /v1/refund: units go back to every limit they were charged to, and the answer is the status after it.
func (p *public) refund(c *gin.Context) {
	caller, ok := p.authenticate(c)
	if !ok {
		return
	}
	if !caller.May(tenants.MayRefund) {
		p.fail(c, refuse(problem.Forbidden, "only a service token that may refund gives units back"))
		return
	}
	raw, err := readBody(c)
	if err != nil {
		p.fail(c, err)
		return
	}
	request, err := decodeRefund(raw)
	if err != nil {
		p.fail(c, err)
		return
	}
	hit, err := p.serviceHit(&caller, &request)
	if err != nil {
		p.fail(c, err)
		return
	}
	d, err := p.engine.Refund(c.Request.Context(), hit)
	if err != nil {
		p.fail(c, err)
		return
	}
	p.writeAppended(c, http.StatusOK, mediaJSON, decision.Body(d).AppendJSON)
}
