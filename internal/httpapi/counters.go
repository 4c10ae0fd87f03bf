package httpapi

import (
	"context"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// newCountersHeader names the limits whose counters a change begins anew, as a list of strings (RFC 9651).
const newCountersHeader = "X-Pegel-New-Counters"

// planBefore is a plan as it is before a change; nil when there is none, or when it cannot be read, which the change itself will say.
func (a *admin) planBefore(ctx context.Context, name string) *tenants.Plan {
	plan, err := a.repository.Plan(ctx, name)
	if err != nil {
		return nil
	}
	return &plan
}

// tellNewCounters says which limits of equal name have no counter in common, so that what was used of them is forgiven. Limit names
// are fit for a quoted string.
func tellNewCounters(c *gin.Context, before, after *tenants.Plan) {
	if before == nil || after == nil {
		return
	}
	if names := tenants.NewCounters(before, after); len(names) > 0 {
		c.Header(newCountersHeader, `"`+strings.Join(names, `", "`)+`"`)
	}
}
