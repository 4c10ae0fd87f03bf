package httpapi_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/api"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// contractCall is one operation of the contract and what it takes to call it.
type contractCall struct {
	method, path, id string // path with its {parameters}
	operation        *openapi3.Operation
	parameters       openapi3.Parameters
	schema           *openapi3.Schema // of the body; nil: none
	example          any
}

func (c *contractCall) String() string { return c.method + " " + c.path }

// contractCalls are the operations under /admin and /v1, in an order in which what is made comes before what is removed.
func contractCalls(t *testing.T) []contractCall {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	require.NoError(t, err)
	var calls []contractCall
	for path, item := range doc.Paths.Map() {
		if !strings.HasPrefix(path, "/admin/") && !strings.HasPrefix(path, "/v1/") {
			continue
		}
		for method, op := range item.Operations() {
			c := contractCall{method: method, path: path, id: op.OperationID, operation: op, parameters: append(slices.Clone(item.Parameters), op.Parameters...)}
			if op.RequestBody != nil {
				media := op.RequestBody.Value.Content.Get("application/json")
				c.schema, c.example = media.Schema.Value, media.Example
				for _, example := range media.Examples {
					if len(fmt.Sprint(example.Value.Value)) > len(fmt.Sprint(c.example)) { // the one that says most
						c.example = example.Value.Value
					}
				}
				require.NotNil(t, c.example, "%s has no example of its body", &c)
			}
			calls = append(calls, c)
		}
	}
	rank := map[string]int{http.MethodGet: 0, http.MethodPost: 1, http.MethodPut: 2, http.MethodPatch: 3, http.MethodDelete: 4}
	slices.SortFunc(calls, func(a, b contractCall) int {
		return cmp.Or(cmp.Compare(rank[a.method], rank[b.method]), -cmp.Compare(strings.Count(a.path, "/"), strings.Count(b.path, "/")), cmp.Compare(a.path, b.path))
	})
	return calls
}

// contractWorld is a world in which the examples of the contract are about something.
type contractWorld struct {
	*world

	service string
	// objects are the parameters of paths, by the segment before them.
	objects map[string]string
}

func newContractWorld(t *testing.T) *contractWorld {
	t.Helper()
	w := &contractWorld{world: newWorld(t), objects: map[string]string{"plans": "light", "tenants": "school-17", "overrides": "requests-per-minute"}}
	w.policy()
	w.tenant("school-17", "light")
	w.tenant("school-18", "light")
	w.service = w.world.service("contract", true, tenants.MayCheck, tenants.MayStatus, tenants.MayRefund, tenants.MayIdentify)
	for segment, call := range map[string][2]string{
		"keys": {"/admin/tenants/school-17/keys", `{"name":"x"}`}, "service-tokens": {"/admin/service-tokens", `{"name":"x"}`},
		"admin-tokens": {"/admin/admin-tokens", `{"name":"x","role":"viewer"}`}, "networks": {"/admin/networks", `{"cidr":"192.0.2.0/24","action":"deny"}`},
	} {
		w.objects[segment] = fmt.Sprint(w.administer(http.MethodPost, call[0], call[1]).ok(http.StatusCreated).json()["id"])
	}
	w.administer(http.MethodPut, "/admin/tenants/school-17/overrides/requests-per-minute", `{"limit":5000,"reason":"x"}`).ok(http.StatusCreated)
	return w
}

// at is the path with its parameters filled in; one of them may be replaced.
func (w *contractWorld) at(c *contractCall, parameter, value string) string {
	segments := strings.Split(c.path, "/")
	for i, s := range segments {
		if name, ok := strings.CutPrefix(s, "{"); ok {
			if segments[i] = cmp.Or(w.objects[segments[i-1]], absentID(c)); strings.TrimSuffix(name, "}") == parameter {
				segments[i] = value
			}
		}
	}
	return strings.Join(segments, "/")
}

// absentID is an id of the right form that nothing has.
func absentID(c *contractCall) string {
	for _, p := range c.parameters {
		if p.Value.In == openapi3.ParameterInPath && p.Value.Schema.Value.Type.Is(openapi3.TypeInteger) {
			return "999999999"
		}
	}
	return "00000000-0000-7000-8000-000000000000"
}

func (w *contractWorld) call(c *contractCall, path string, body any, header map[string]string) *response {
	w.t.Helper()
	q := request{method: c.method, path: path, header: map[string]string{"Authorization": "Bearer " + bootstrap}}
	server := w.admin
	if strings.HasPrefix(c.path, "/v1/") {
		server, q.header["Authorization"] = w.public, "Bearer "+w.service
	}
	if c.schema != nil {
		raw, err := json.Marshal(body)
		require.NoError(w.t, err)
		q.body = string(raw)
	}
	for _, p := range c.parameters {
		if p.Value.Name == "If-Match" {
			q.header["If-Match"] = "*"
		}
	}
	maps.Copy(q.header, header)
	r := w.do(server, q)
	require.Less(w.t, r.status, http.StatusInternalServerError, "%s: %s", c, r.body)
	return r
}

// TestEveryInvalidFieldAndParameterIsNamed is generated from the contract: every field of every body and every parameter, wrong in every way that
// its schema knows, is a 400 that says where; nothing is ever a fault of the service's. The answers are held to the contract by world.do.
func TestEveryInvalidFieldAndParameterIsNamed(t *testing.T) {
	t.Parallel()
	w := newContractWorld(t)
	tried := 0
	for _, c := range contractCalls(t) {
		for _, p := range c.parameters {
			for _, text := range wrongTexts(p.Value) {
				tried++
				path, header := w.at(&c, "", ""), map[string]string{}
				switch p.Value.In {
				case openapi3.ParameterInPath:
					path = w.at(&c, p.Value.Name, url.PathEscape(text))
				case openapi3.ParameterInHeader:
					header[p.Value.Name] = text
				case openapi3.ParameterInQuery:
					path += "?" + p.Value.Name + "=" + url.QueryEscape(text)
				}
				found := w.call(&c, path, c.example, header).problem(problem.Validation)
				require.Equal(t, "/"+p.Value.In+"/"+p.Value.Name, found.Errors[0].Pointer, "%s with %s=%q", &c, p.Value.Name, text)
			}
		}
		if c.schema == nil {
			continue
		}
		for _, m := range mutations(t, c.schema, c.example, "") {
			tried++
			r := w.call(&c, w.at(&c, "", ""), m.body, nil)
			if c.id == "checkBatch" && strings.Count(m.pointer, "/") > 1 { // an invalid element is a problem in its place
				require.Equal(t, http.StatusOK, r.status, "%s %s: %s", &c, m, r.body)
				require.Contains(t, string(r.body), `"error":"validation"`, "%s %s", &c, m)
				continue
			}
			require.Equal(t, http.StatusBadRequest, r.status, "%s %s: %s", &c, m, r.body)
			found := r.problem(problem.Validation)
			require.True(t, slices.ContainsFunc(found.Errors, func(e problem.FieldError) bool {
				return strings.HasPrefix(e.Pointer, m.pointer) || strings.HasPrefix(m.pointer, e.Pointer)
			}), "%s %s is answered with %v", &c, m, found.Errors)
		}
	}
	require.Greater(t, tried, 500)
}

// TestEveryValidCallIsAnsweredByTheContract calls every operation with the contract's own example.
func TestEveryValidCallIsAnsweredByTheContract(t *testing.T) {
	t.Parallel()
	w := newContractWorld(t)
	for _, c := range contractCalls(t) {
		path := w.at(&c, "", "")
		if c.id == "status" { // a service token says whose
			path += "?tenant=school-17"
		}
		r := w.call(&c, path, exampleFor(&c), nil)
		// A plan in use cannot be deleted, and what a random id names is not there.
		require.Contains(t, []int{http.StatusOK, http.StatusCreated, http.StatusNoContent, http.StatusConflict, http.StatusNotFound}, r.status, "%s: %s", &c, r.body)
		if c.method != http.MethodDelete && !strings.HasSuffix(c.path, "/{id}") && !strings.Contains(c.path, "{id}/") {
			require.Less(t, r.status, 300, "%s: %s", &c, r.body)
		}
	}
}

// exampleFor makes the few examples that would be in each other's way name something of their own.
func exampleFor(c *contractCall) any {
	example, ok := c.example.(map[string]any)
	if !ok {
		return c.example
	}
	example = maps.Clone(example)
	switch c.id {
	case "createPlan":
		example["name"] = "of-the-example"
	case "createTenant":
		example["slug"] = "of-the-example"
	case "createNetwork": // not the one that the examples of decisions are in
		example["cidr"] = "198.51.100.0/24"
	}
	return example
}

// mutation is a body with one thing wrong.
type mutation struct {
	pointer, what string
	body          any
}

func (m mutation) String() string { return "with " + m.pointer + " " + m.what }

// mutations are a value's wrong neighbours by its schema, one wrong thing each.
func mutations(t *testing.T, schema *openapi3.Schema, value any, at string) []mutation {
	t.Helper()
	var out []mutation
	for what, wrong := range wrongValues(schema, value) {
		out = append(out, mutation{pointer: at, what: what, body: wrong})
	}
	switch {
	case schema.Type.Is(openapi3.TypeObject):
		object, ok := value.(map[string]any)
		if !ok && at != "" {
			break // the example has none to make wrong
		}
		for name, property := range schema.Properties {
			for _, m := range mutations(t, property.Value, object[name], at+"/"+name) {
				out = append(out, mutation{pointer: m.pointer, what: m.what, body: withMember(object, name, m.body)})
			}
		}
		for _, name := range schema.Required {
			without := maps.Clone(object)
			delete(without, name)
			out = append(out, mutation{pointer: at + "/" + name, what: "missing", body: without})
		}
		if schema.AdditionalProperties.Has != nil && !*schema.AdditionalProperties.Has {
			out = append(out, mutation{pointer: at + "/no_such_field", what: "unknown", body: withMember(object, "no_such_field", 1)})
		}
	case schema.Type.Is(openapi3.TypeArray):
		elements, _ := value.([]any)
		if len(elements) == 0 {
			break
		}
		for _, m := range mutations(t, schema.Items.Value, elements[0], at+"/0") {
			out = append(out, mutation{pointer: m.pointer, what: m.what, body: append([]any{m.body}, elements[1:]...)})
		}
	}
	return out
}

func withMember(object map[string]any, name string, value any) map[string]any {
	with := maps.Clone(object)
	if with == nil {
		with = map[string]any{}
	}
	with[name] = value
	return with
}

// wrongValues are what a schema itself rules out.
func wrongValues(s *openapi3.Schema, value any) map[string]any {
	if s.Type == nil || len(s.OneOf)+len(s.AnyOf)+len(s.AllOf) > 0 {
		return nil
	}
	wrong := map[string]any{"of another type": map[string]any{"x": 1}}
	if !s.Nullable {
		wrong["null"] = nil
	}
	switch {
	case s.Type.Is(openapi3.TypeInteger):
		wrong["a string"], wrong["a fraction"], wrong["with an exponent"] = "1", json.RawMessage("1.5"), json.RawMessage("1e2")
		if s.Min != nil {
			wrong["too small"] = *s.Min - 1
		}
		if s.Max != nil {
			wrong["too large"] = *s.Max + 1
		}
	case s.Type.Is(openapi3.TypeNumber):
		wrong["a string"] = "0.5"
	case s.Type.Is(openapi3.TypeString):
		wrong["a number"] = 5
		for i, text := range wrongStrings(s) {
			wrong["wrong text "+strconv.Itoa(i)] = text
		}
	case s.Type.Is(openapi3.TypeObject):
		wrong["of another type"] = 5
	case s.Type.Is(openapi3.TypeArray):
		elements, _ := value.([]any)
		if s.MaxItems != nil && *s.MaxItems <= 1000 && len(elements) > 0 {
			wrong["too long"] = slices.Repeat(elements[:1], int(*s.MaxItems)+1)
		}
	}
	return wrong
}

// wrongStrings are texts that a schema of strings rules out.
func wrongStrings(s *openapi3.Schema) []string {
	var wrong []string
	if len(s.Enum) > 0 {
		wrong = append(wrong, "no such value")
	}
	if s.Pattern != "" || s.Format == "date-time" {
		wrong = append(wrong, "\u00e9 ")
	}
	if s.MinLength > 0 {
		wrong = append(wrong, "")
	}
	if s.MaxLength != nil {
		wrong = append(wrong, strings.Repeat("a", int(*s.MaxLength)+1))
	}
	return wrong
}

// wrongTexts are what a parameter's schema rules out, as it would be written.
func wrongTexts(p *openapi3.Parameter) []string {
	s := p.Schema.Value
	var wrong []string
	switch {
	case s.Type.Is(openapi3.TypeInteger):
		wrong = []string{"x", "1.5", "1e2", "99999999999999999999", ""}
		if s.Min != nil {
			wrong = append(wrong, strconv.FormatFloat(*s.Min-1, 'f', -1, 64))
		}
		if s.Max != nil {
			wrong = append(wrong, strconv.FormatFloat(*s.Max+1, 'f', -1, 64))
		}
	case s.Type.Is(openapi3.TypeString):
		wrong = wrongStrings(s)
		if p.In == openapi3.ParameterInHeader { // net/http trims and refuses some
			wrong = slices.DeleteFunc(wrong, func(text string) bool { return text == "" || strings.HasSuffix(text, " ") })
		}
		if p.In == openapi3.ParameterInQuery {
			wrong = append(wrong, "a\x00b")
		}
	}
	if p.In == openapi3.ParameterInPath { // an empty segment is another path
		wrong = slices.DeleteFunc(wrong, func(text string) bool { return text == "" })
	}
	return wrong
}
