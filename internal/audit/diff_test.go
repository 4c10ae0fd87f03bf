package audit_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/audit"
)

func TestDiffNamesTheFieldsThatChanged(t *testing.T) {
	t.Parallel()
	before := map[string]any{"name": "a", "same": 1, "gone": true, "list": []int{1, 2}, "nested": map[string]any{"x": 1, "y": map[string]any{"z": "deep"}}}
	after := map[string]any{"name": "b", "same": 1, "new": nil, "list": []int{1, 3}, "nested": map[string]any{"x": 1, "y": map[string]any{"z": "deeper"}}}
	diff, err := audit.Diff(before, after)
	require.NoError(t, err)
	raw, err := json.Marshal(diff)
	require.NoError(t, err)
	require.JSONEq(t, `[
		{"field":"gone","from":true},
		{"field":"list","from":[1,2],"to":[1,3]},
		{"field":"name","from":"a","to":"b"},
		{"field":"nested.y.z","from":"deep","to":"deeper"},
		{"field":"new","to":null}]`, string(raw))
}

func TestDiffOfCreationAndDeletion(t *testing.T) {
	t.Parallel()
	type object struct {
		Name  string         `json:"name"`
		Empty map[string]any `json:"empty"`
	}
	created, err := audit.Diff(nil, object{Name: "a", Empty: map[string]any{}})
	require.NoError(t, err)
	require.Equal(t, []audit.Change{{Field: "empty", To: json.RawMessage(`{}`)}, {Field: "name", To: json.RawMessage(`"a"`)}}, created)
	deleted, err := audit.Diff(object{Name: "a"}, nil)
	require.NoError(t, err)
	require.Equal(t, []audit.Change{{Field: "empty", From: json.RawMessage(`null`)}, {Field: "name", From: json.RawMessage(`"a"`)}}, deleted)
	same, err := audit.Diff(object{Name: "a"}, object{Name: "a"})
	require.NoError(t, err)
	require.NotNil(t, same, "stored as [] and not as null")
	require.Empty(t, same)
}

func TestDiffHoldsNoSecret(t *testing.T) {
	t.Parallel()
	diff, err := audit.Diff(nil, map[string]any{
		"name": "a", "secret": "canary", "Hash": []byte("canary"), "deep": map[string]any{"password": "canary", "token": map[string]any{"x": "canary"}},
	})
	require.NoError(t, err)
	require.Len(t, diff, 1)
	raw, err := json.Marshal(diff)
	require.NoError(t, err)
	require.NotContains(t, string(raw), "canary")
}

func TestDiffOfWhatJSONCannotHold(t *testing.T) {
	t.Parallel()
	_, err := audit.Diff(nil, map[string]any{"f": func() {}})
	require.Error(t, err)
	_, err = audit.Diff(map[string]any{"f": func() {}}, nil)
	require.Error(t, err)
}

func TestActor(t *testing.T) {
	t.Parallel()
	require.True(t, audit.Actor{Kind: "cli", Name: "root"}.Valid())
	require.False(t, audit.Actor{Kind: "cli"}.Valid())
	require.False(t, audit.Actor{Name: "root"}.Valid())
}
