package httpapi

import (
	"context"
	"errors"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// newCountersHeader names the limits whose counters a change begins anew, as a list of strings (RFC 9651).
const newCountersHeader = "X-Pegel-New-Counters"

// planBefore is a plan as it is before a change; nil when there is none. An error ends the request: the change would wait for the
// store as long once more, and the answer would come too late.
func (a *admin) planBefore(ctx context.Context, name string) (*tenants.Plan, error) {
	plan, err := a.repository.Plan(ctx, name)
	switch {
	case errors.Is(err, tenants.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &plan, nil
}

// planLeft is the plan that a tenant leaves by a change to another; nil when it leaves none. Whether there is such a tenant is the
// change's to say.
func (a *admin) planLeft(ctx context.Context, slug string, to *string) (*tenants.Plan, error) {
	if to == nil {
		return nil, nil
	}
	old, err := a.repository.Tenant(ctx, slug)
	switch {
	case errors.Is(err, tenants.ErrNotFound), err == nil && old.Plan == *to:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return a.planBefore(ctx, old.Plan)
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
