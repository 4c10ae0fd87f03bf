package httpapi

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Property: a body is refused when a key comes twice in one object, and only then: not when it comes in two objects, beside or within
// one another, and however many keys there are.
func TestDuplicateKeys(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		twice := false
		var object func(depth int) string
		object = func(depth int) string {
			seen, members := map[int]bool{}, []string{}
			for _, key := range rapid.SliceOfN(rapid.IntRange(0, 200), 0, 40).Draw(t, "keys") {
				twice = twice || seen[key]
				seen[key] = true
				value := "1"
				if depth < 3 && rapid.IntRange(0, 9).Draw(t, "nested") == 0 {
					value = "[" + object(depth+1) + "," + object(depth+1) + "]"
				}
				members = append(members, `"k`+strconv.Itoa(key)+`":`+value)
			}
			return "{" + strings.Join(members, ",") + "}"
		}
		text := object(0)
		err := checkJSON([]byte(text))
		if twice {
			require.ErrorContains(t, err, "must not come twice", text)
		} else {
			require.NoError(t, err, text)
		}
	})
}

// Guarantee: what was wrong within one element of a batch is forgotten at the next.
func TestKeysOfElementsAreApart(t *testing.T) {
	t.Parallel()
	elements, err := decodeBatch([]byte(`{"checks":[{"user":"a","tenant":{"user":1,"user":2}},{"user":"a","cost":"x"},{"user":"a","user":"b"},{"user":"a"}]}`))
	require.NoError(t, err)
	require.Len(t, elements, 4)
	require.ErrorContains(t, elements[0].err, "/tenant")
	require.ErrorContains(t, elements[1].err, "/cost")
	require.ErrorContains(t, elements[2].err, "/user: must not come twice")
	require.NoError(t, elements[3].err)
	require.Equal(t, "a", elements[3].check.user)
}
