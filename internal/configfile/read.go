package configfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// MaxSize is the largest file, in bytes: what the server takes.
const MaxSize = 8 << 20

// File is a configuration file as it was read.
type File struct {
	// JSON is the body for /admin/configuration.
	JSON json.RawMessage
	root *yaml.Node
}

// Parse reads YAML, and so JSON too. An error names the line where it can.
func Parse(raw []byte) (*File, error) {
	if len(raw) > MaxSize {
		return nil, fmt.Errorf("has more than %d MiB: apply it in parts, without --prune", MaxSize>>20)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(raw))
	var document yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, errors.New("is empty")
	case err != nil:
		return nil, readable(err)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("holds more than one document (a line ---): apply them one by one")
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: must be a mapping with the keys plans, tenants, networks, address_policy or mode", root.Line)
	}
	var value any
	if err := root.Decode(&value); err != nil { // follows aliases, within yaml's bounds, and finds keys that come twice
		return nil, readable(err)
	}
	if err := plainWords(root); err != nil {
		return nil, err
	}
	body, err := json.Marshal(plain(value))
	if err != nil {
		return nil, fmt.Errorf("holds a value that JSON cannot: %w", err)
	}
	if !json.Valid(body) { // json.Marshal goes deeper than anything reads
		return nil, errors.New("is nested too deeply")
	}
	if len(body) > MaxSize {
		return nil, fmt.Errorf("has more than %d MiB once its aliases are written out", MaxSize>>20)
	}
	return &File{JSON: body, root: root}, nil
}

// readable takes the library's name off its errors; they name the line.
func readable(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	return errors.New(strings.Replace(text, "unmarshal errors:\n  ", "", 1))
}

// plainWords refuses keys such as 1 or true, which no object of the contract has, and numbers that YAML reads otherwise than people do:
// 0100 is 64.
func plainWords(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode && n.Style == 0 && n.ShortTag() == "!!int" {
		digits := strings.TrimLeft(n.Value, "+-")
		if len(digits) > 1 && digits[0] == '0' && (digits[1] == '_' || '0' <= digits[1] && digits[1] <= '9') {
			return fmt.Errorf("line %d: a number must not begin with 0: YAML takes it for an octal one", n.Line)
		}
	}
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			if child.Kind != yaml.ScalarNode || child.Tag != "!!str" && child.Tag != "!!merge" {
				return fmt.Errorf("line %d: a key must be text; quote it", child.Line)
			}
			continue
		}
		if err := plainWords(child); err != nil {
			return err
		}
	}
	return nil
}

// plain makes of YAML's values what JSON has: a moment without quotes is a moment all the same.
func plain(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, member := range v {
			v[key] = plain(member)
		}
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	}
	return value
}

// Line is where the file says what a JSON pointer names: the key, or what should hold it. 0: the pointer leads nowhere.
func (f *File) Line(pointer string) int {
	node, line := f.root, f.root.Line
	for segment := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		if node.Kind == yaml.AliasNode {
			node = node.Alias
		}
		key, value := child(node, strings.NewReplacer("~1", "/", "~0", "~").Replace(segment))
		if value == nil {
			return line
		}
		node, line = value, key.Line
	}
	return line
}

// child is a member of a mapping with its key, or an element of a sequence.
func child(n *yaml.Node, segment string) (key, value *yaml.Node) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == segment {
				return n.Content[i], n.Content[i+1]
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(segment); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i], n.Content[i]
		}
	case yaml.DocumentNode, yaml.ScalarNode, yaml.AliasNode:
	}
	return nil, nil
}
