package configfile_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pegel-dev/pegel/internal/configfile"
)

const example = `# a comment
plans:
  - &light
    name: light
    request_log: off
    limits:
      - name: requests-per-minute
        limit: 2_000
        window: 1m
  - <<: *light
    name: lighter
tenants:
- {slug: school-17, name: "School 17", plan: light}
- slug: school-18
  name: School 18
  plan: light
  overrides:
    - limit_name: a/b
      limit: 5000
      reason: "exams: round 2"
      expires_at: 2027-01-31
`

// Guarantee: YAML means what people take it to mean: anchors, dates without quotes, "off", grouped digits.
func TestParse(t *testing.T) {
	t.Parallel()
	f, err := configfile.Parse([]byte(example))
	require.NoError(t, err)
	require.JSONEq(t, `{
		"plans":[
			{"name":"light","request_log":"off","limits":[{"name":"requests-per-minute","limit":2000,"window":"1m"}]},
			{"name":"lighter","request_log":"off","limits":[{"name":"requests-per-minute","limit":2000,"window":"1m"}]}],
		"tenants":[
			{"slug":"school-17","name":"School 17","plan":"light"},
			{"slug":"school-18","name":"School 18","plan":"light",
			 "overrides":[{"limit_name":"a/b","limit":5000,"reason":"exams: round 2","expires_at":"2027-01-31T00:00:00Z"}]}]}`, string(f.JSON))
}

// Guarantee: a place that the server names is a line of the file.
func TestLine(t *testing.T) {
	t.Parallel()
	f, err := configfile.Parse([]byte(example))
	require.NoError(t, err)
	for pointer, line := range map[string]int{
		"": 2, "/plans": 2, "/plans/0/limits/0/limit": 8, "/plans/0/limits/0/missing": 7, "/plans/1/name": 11, "/tenants/0/plan": 13,
		"/tenants/1/overrides/0/expires_at": 21, "/tenants/9": 12, "/nothing": 2,
	} {
		require.Equal(t, line, f.Line(pointer), pointer)
	}
}

func TestParseRefusals(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                        "is empty",
		"# nothing":               "is empty",
		"- a":                     "line 1: must be a mapping",
		"plans: []\nplans: []":    `line 2: mapping key "plans" already defined at line 1`,
		"plans: [":                "line 1: did not find expected node content",
		"plans:\n  - {1: 2}":      "line 2: a key must be text",
		"plans: []\n---\nx: 1\n":  "more than one document",
		"mode: .nan":              "holds a value that JSON cannot",
		"plans:\n  - limit: 0100": "line 2: a number must not begin with 0",
		"plans: " + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000): "nested too deep",
		"plans: " + strings.Repeat("x", configfile.MaxSize):                   "has more than 8 MiB",
	} {
		_, err := configfile.Parse([]byte(text))
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "\n")
	}
	var bomb strings.Builder
	bomb.WriteString("a: &a [x,x,x,x,x,x,x,x,x]\n")
	for c := 'b'; c < 'j'; c++ {
		before := string(c - 1)
		bomb.WriteString(string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+before+",", 9) + "*" + before + "]\n")
	}
	_, err := configfile.Parse([]byte(bomb.String()))
	require.ErrorContains(t, err, "document contains excessive aliasing")
}

// Guarantee: a file that is written is read back as the same body, in an order for people, whatever the texts hold.
func TestWriteAndReadBack(t *testing.T) {
	t.Parallel()
	body := `{"version":7,"warnings":["x"],"tenants":[{"metadata":{"note":"off","n":"12","at":"2027-01-31","multi":"a\nb","empty":"","colon":"a: b # c"},"name":"Ünï \"x\"","plan":"light","slug":"school-17"}],
		"plans":[{"limits":[{"limit":2000,"match":{"paths":["/a/*"],"methods":["GET","POST"]},"name":"yes","window":"1m"}],"request_log":"off","name":"light"}],"networks":[]}`
	file, err := configfile.Write([]byte(body))
	require.NoError(t, err)
	f, err := configfile.Parse(file)
	require.NoError(t, err)
	var want map[string]any
	require.NoError(t, json.Unmarshal([]byte(body), &want))
	delete(want, "version")
	delete(want, "warnings")
	expected, err := json.Marshal(want)
	require.NoError(t, err)
	require.JSONEq(t, string(expected), string(f.JSON))
	text := string(file)
	require.True(t, strings.HasPrefix(text, "# yaml-language-server: $schema=./pegel.schema.json\n"))
	require.Contains(t, text, "plans:\n  - name: light\n    request_log: \"off\"\n    limits:\n      - name: \"yes\"\n        limit: 2000\n        window: 1m\n        match:\n          methods: [GET, POST]\n")
	require.Contains(t, text, "networks: []\n")
	require.NotContains(t, text, "version")
	require.Less(t, strings.Index(text, "plans:"), strings.Index(text, "tenants:"))
}

// Guarantee: no text that the API stores keeps a file from being written, or is another one when it is read back.
func TestEveryTextSurvives(t *testing.T) {
	t.Parallel()
	holds := func(t require.TestingT, text string) {
		body, err := json.Marshal(map[string]any{"tenants": []any{map[string]any{"slug": "a", "name": text, "metadata": map[string]any{text: text, "list": []any{text}}}}})
		require.NoError(t, err)
		file, err := configfile.Write(body)
		require.NoError(t, err, "%q", text)
		f, err := configfile.Parse(file)
		require.NoError(t, err, "%q in %s", text, file)
		require.JSONEq(t, string(body), string(f.JSON), "%q in %s", text, file)
	}
	for _, text := range []string{
		"a\u0085b", "\u2028", "a\u2029", "\ufeffx", "\x7f", "\u009b31m", "\ufffe", "\uffff", "\ta\t", "a\r\nb", "\x1b[31m", "a\n", "\n a\n\n", "\r", "0123", "~", "", " ",
		"2027-01-31", "<<", "!!binary aGk=", "&a *b", "- x", " x", "x ", "a: b", "a #b", `a\b"'`, "\U0001fffe", "\U0010ffff", "?", "=", "1_000", "0x1f", ".inf", "1e3", "12:30:00", "---", "...", "@a", "%a", "`a", "|", ">", "[", "}", ",",
	} {
		holds(t, text)
	}
	rapid.Check(t, func(rt *rapid.T) { holds(rt, rapid.String().Draw(rt, "text")) })
}

// Guarantee: the schema for editors is closed, whole and offers nothing that belongs to answers.
func TestSchema(t *testing.T) {
	t.Parallel()
	raw, err := configfile.Schema()
	require.NoError(t, err)
	var schema map[string]any
	require.NoError(t, json.Unmarshal(raw, &schema))
	require.Equal(t, false, schema["additionalProperties"])
	properties, ok := schema["properties"].(map[string]any)
	require.True(t, ok)
	require.Len(t, properties, 5)
	definitions, ok := schema["$defs"].(map[string]any)
	require.True(t, ok)
	for _, part := range strings.Split(string(raw), `"$ref": "#/$defs/`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		require.Contains(t, definitions, name)
	}
	require.NotContains(t, string(raw), "nullable")
	require.NotContains(t, string(raw), "created_at")
	require.NotContains(t, string(raw), "accepted and ignored")
	require.NotContains(t, string(raw), "#/components")
}
