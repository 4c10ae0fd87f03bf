package tenants

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Through any history of changes a layered map holds what a plain one does, and earlier generations never change.
func TestLayeredIsAMap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var current layered[int, int]
		want := map[int]int{}
		type generation struct {
			l    layered[int, int]
			want map[int]int
		}
		var past []generation
		for range rapid.IntRange(1, 8).Draw(t, "generations") {
			e := current.edit()
			if rapid.IntRange(0, 5).Draw(t, "fresh") == 0 {
				e, want = fresh[int, int](0), map[int]int{}
			}
			// Often more than a layer holds, so that merging is met.
			for range rapid.SampledFrom([]int{0, 1, 10, 400}).Draw(t, "changes") {
				k := rapid.IntRange(0, 600).Draw(t, "key")
				if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
					e.remove(k)
					delete(want, k)
				} else {
					v := rapid.Int().Draw(t, "value")
					e.set(k, &v)
					want[k] = v
				}
			}
			current = e.done()
			past = append(past, generation{current, maps.Clone(want)})
		}
		for _, g := range past {
			got := map[int]int{}
			g.l.all(func(k int, v *int) bool {
				_, twice := got[k]
				require.False(t, twice)
				got[k] = *v
				return true
			})
			require.Equal(t, g.want, got)
			require.Equal(t, len(g.want), g.l.len())
			for k := range 601 {
				v, ok := g.l.get(k)
				w, has := g.want[k]
				require.Equal(t, has, ok)
				if has {
					require.Equal(t, w, *v)
				}
			}
			require.LessOrEqual(t, len(g.l.changed), maxLayer)
		}
	})
}

func TestLayeredStopsWhenAsked(t *testing.T) {
	t.Parallel()
	e := fresh[int, int](0)
	for i := range 1000 {
		e.set(i, &i)
	}
	l := e.done()
	e = l.edit()
	e.set(5000, new(int))
	l = e.done()
	for limit := range 3 {
		seen := 0
		l.all(func(int, *int) bool { seen++; return seen <= limit })
		require.Equal(t, limit+1, seen)
	}
}
