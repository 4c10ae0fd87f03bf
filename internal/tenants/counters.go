package tenants

import "github.com/pegel-dev/pegel/internal/ratelimit"

// NewCounters names the limits of before that go on under the same name in after and have no counter in common with it, so that
// a change from one plan to the other forgives what was used of them.
func NewCounters(before, after *Plan) []string {
	var names []string
	for i := range after.Limits {
		limit := &after.Limits[i].Limit
		for j := range before.Limits {
			if old := &before.Limits[j].Limit; old.Name == limit.Name && !ratelimit.SameCounter(old, limit) {
				names = append(names, limit.Name)
			}
		}
	}
	return names
}
