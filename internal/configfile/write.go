package configfile

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// header stands above every exported file.
const header = `# yaml-language-server: $schema=./pegel.schema.json
# Written by ` + "`pegel export`" + `, without any credential; ` + "`pegel apply -f FILE --dry-run`" + ` shows what it would change.
# ` + "`pegel schema > pegel.schema.json`" + ` beside it lets editors complete and check it.
`

// fieldOrder is the order in which people read the fields of an object; others follow, by name.
var fieldOrder = []string{
	"plans", "tenants", "address_policy", "networks",
	"slug", "name", "title", "limit_name", "cidr", "plan", "action", "status", "contact_email", "request_log", "alert",
	"scope", "applies_to", "algorithm", "limit", "window", "refill", "cost", "match", "slowdown", "on_store_failure", "mode",
	"reason", "expires_at", "metadata", "overrides", "limits",
	"units", "every", "at", "for", "from", "max_delay", "methods", "paths",
}

// Write turns the answer of /admin/configuration into a file. What belongs to the moment of reading stays out, so that an
// unchanged configuration gives the same file.
func Write(answer []byte) ([]byte, error) {
	document, err := tidy(answer)
	if err != nil {
		return nil, err
	}
	root := document.Content[0]
	remove(root, "version", "warnings")
	body, err := encode(document)
	if err != nil {
		return nil, err
	}
	return append([]byte(header), body...), nil
}

// YAML writes any JSON as YAML, its fields in the order people read them.
func YAML(raw []byte) ([]byte, error) {
	document, err := tidy(raw)
	if err != nil {
		return nil, err
	}
	return encode(document)
}

// tidy reads JSON, which is YAML, and takes its braces and quotes away.
func tidy(raw []byte) (*yaml.Node, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(escape(raw), &document); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if len(document.Content) != 1 {
		return nil, fmt.Errorf("read the answer: it is empty")
	}
	restyle(document.Content[0])
	return &document, nil
}

// escape writes as \u0085 what JSON may hold as it is in a text and YAML may not, or would take for the end of a line.
func escape(raw []byte) []byte {
	if bytes.IndexFunc(raw, delicate) < 0 {
		return raw
	}
	out := make([]byte, 0, len(raw)+64)
	for _, r := range string(raw) {
		if delicate(r) {
			out = fmt.Appendf(out, `\u%04x`, r)
		} else {
			out = utf8.AppendRune(out, r)
		}
	}
	return out
}

// delicate is a character that YAML only keeps when it is escaped. Those below a space JSON escapes itself.
func delicate(r rune) bool {
	return r >= 0x7f && r <= 0x9f || r == '\u2028' || r == '\u2029' || r == '\ufeff' || r == '\ufffe' || r == '\uffff'
}

func restyle(n *yaml.Node) {
	switch n.Kind {
	case yaml.MappingNode:
		n.Style = 0
		order(n)
	case yaml.SequenceNode:
		n.Style = 0
		if short(n) {
			n.Style = yaml.FlowStyle
		}
	case yaml.ScalarNode:
		switch {
		case n.Tag != "!!str" || misread(n.Value):
		case strings.ContainsFunc(n.Value, func(r rune) bool { return r < ' ' && r != '\n' || delicate(r) }):
			n.Style = yaml.DoubleQuotedStyle // where everything is escaped
		default:
			n.Style = 0 // quotes come back where they are needed
		}
	case yaml.DocumentNode, yaml.AliasNode:
	}
	for _, child := range n.Content {
		restyle(child)
	}
}

// short is a list of a few words, such as methods: it fits on its line.
func short(n *yaml.Node) bool {
	width := 0
	for _, child := range n.Content {
		if child.Kind != yaml.ScalarNode {
			return false
		}
		width += len(child.Value) + 2
	}
	return width <= 80
}

// misread is a word that is something else without its quotes: YAML 1.1's true and false, and the key that merges.
func misread(s string) bool {
	switch strings.ToLower(s) {
	case "y", "n", "yes", "no", "on", "off", "<<":
		return true
	}
	return false
}

// order sorts the members of a mapping.
func order(n *yaml.Node) {
	type member struct{ key, value *yaml.Node }
	members := make([]member, 0, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		members = append(members, member{n.Content[i], n.Content[i+1]})
	}
	rank := func(m member) int {
		if i := slices.Index(fieldOrder, m.key.Value); i >= 0 {
			return i
		}
		return len(fieldOrder)
	}
	slices.SortStableFunc(members, func(a, b member) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a.key.Value, b.key.Value)
	})
	n.Content = n.Content[:0]
	for _, m := range members {
		n.Content = append(n.Content, m.key, m.value)
	}
}

func remove(n *yaml.Node, names ...string) {
	for i := len(n.Content) - 2; i >= 0; i -= 2 {
		if slices.Contains(names, n.Content[i].Value) {
			n.Content = slices.Delete(n.Content, i, i+2)
		}
	}
}

func encode(document *yaml.Node) ([]byte, error) {
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(document); err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	if err := encoder.Close(); err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	return out.Bytes(), nil
}
