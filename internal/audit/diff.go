package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// secretFields never enter a diff, whatever object they are in. Callers leave secrets out; this is the fence behind them.
var secretFields = map[string]bool{"secret": true, "hash": true, "password": true, "token": true}

// Diff lists the fields that differ between two objects in their JSON form, sorted by name. Fields of nested objects are
// named by their path, joined with dots; arrays are compared as a whole. nil stands for an object that is not there:
// creation and deletion list every field. It fails only for values that JSON cannot hold.
func Diff(before, after any) ([]Change, error) {
	from, err := fields(before)
	if err != nil {
		return nil, fmt.Errorf("audit: the object before the change: %w", err)
	}
	to, err := fields(after)
	if err != nil {
		return nil, fmt.Errorf("audit: the object after the change: %w", err)
	}
	names := maps.Clone(from)
	maps.Copy(names, to)
	changes := []Change{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !bytes.Equal(from[name], to[name]) {
			changes = append(changes, Change{Field: name, From: from[name], To: to[name]})
		}
	}
	return changes, nil
}

// fields flattens an object's JSON form into its leaves.
func fields(object any) (map[string]json.RawMessage, error) {
	leaves := make(map[string]json.RawMessage)
	if object == nil {
		return leaves, nil
	}
	raw, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	return leaves, flatten(leaves, "", raw)
}

func flatten(leaves map[string]json.RawMessage, path string, raw json.RawMessage) error {
	if len(raw) == 0 || raw[0] != '{' || string(raw) == "{}" {
		if path != "" || string(raw) != "{}" {
			leaves[path] = raw
		}
		return nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(raw, &object); err != nil {
		return err
	}
	for name, value := range object {
		if secretFields[strings.ToLower(name)] {
			continue
		}
		if path != "" {
			name = path + "." + name
		}
		if err := flatten(leaves, name, value); err != nil {
			return err
		}
	}
	return nil
}
