package httpapi

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/api"
	"github.com/pegel-dev/pegel/internal/problem"
)

// contract is api/openapi.yaml, ready to validate requests with.
type contract struct{ doc *openapi3.T }

func loadContract() (*contract, error) {
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	if err != nil {
		return nil, fmt.Errorf("read api/openapi.yaml: %w", err)
	}
	doc.SetStringFormatValidator("date-time", openapi3.NewCallbackValidator(func(v string) error {
		if _, err := time.Parse(time.RFC3339, v); err != nil {
			return errors.New("must be a time of RFC 3339, such as 2027-01-31T12:00:00Z")
		}
		return nil
	}))
	return &contract{doc: doc}, nil
}

// operation is one route's part of the contract.
type operation struct {
	parameters openapi3.Parameters
	body       *openapi3.RequestBody
	// maxBody is the largest body in bytes: x-pegel-max-body, else the maxBody of all others.
	maxBody int64
	options []openapi3.SchemaValidationOption
}

// operation finds a route by gin's spelling of its path.
func (t *contract) operation(method, ginPath string) (*operation, error) {
	item := t.doc.Paths.Value(specPath(ginPath))
	if item == nil || item.GetOperation(method) == nil {
		return nil, fmt.Errorf("api/openapi.yaml has no %s %s", method, ginPath)
	}
	op := item.GetOperation(method)
	o := &operation{maxBody: maxBody, options: append(t.doc.GetSchemaValidationOptions(), openapi3.MultiErrors(), openapi3.VisitAsRequest())}
	o.parameters = append(append(o.parameters, item.Parameters...), op.Parameters...)
	if most, ok := op.Extensions["x-pegel-max-body"].(float64); ok {
		o.maxBody = int64(most)
	}
	if op.RequestBody != nil {
		o.body = op.RequestBody.Value
	}
	return o, nil
}

// specPath turns "/a/:b" into "/a/{b}".
func specPath(ginPath string) string {
	segments := strings.Split(ginPath, "/")
	for i, segment := range segments {
		if name, ok := strings.CutPrefix(segment, ":"); ok {
			segments[i] = "{" + name + "}"
		}
	}
	return strings.Join(segments, "/")
}

// oneAtATime lets bodies beyond the usual bound in one by one: each costs about twenty times its size while it is read.
func (a *admin) oneAtATime(o *operation) gin.HandlerFunc {
	return func(c *gin.Context) {
		if o.maxBody <= maxBody {
			return
		}
		select {
		case a.large <- struct{}{}:
			defer func() { <-a.large }()
			c.Next()
		case <-c.Request.Context().Done():
			a.fail(c, c.Request.Context().Err())
		}
	}
}

// validate is the middleware of one admin route: parameters and body are what the contract says, or the answer is a 400 that
// names every place. The body's bytes are left for decodeBody.
func (a *admin) validate(o *operation) gin.HandlerFunc {
	return func(c *gin.Context) {
		joinLines(c.Request.Header, headerIfMatch)
		query, err := readQuery(c)
		if err != nil {
			a.fail(c, err)
			return
		}
		if fields := o.checkParameters(c, query); len(fields) > 0 {
			a.fail(c, invalidFields(fields))
			return
		}
		if o.body == nil {
			return
		}
		raw, err := readBodyWithin(c, o.maxBody)
		if err != nil {
			a.fail(c, err)
			return
		}
		if err := o.checkBody(raw); err != nil {
			a.fail(c, err)
			return
		}
		of(c).body = raw
	}
}

// checkParameters holds each parameter to its schema.
func (o *operation) checkParameters(c *gin.Context, query url.Values) []problem.FieldError {
	var fields []problem.FieldError
	for _, ref := range o.parameters {
		p := ref.Value
		pointer := "/" + p.In + "/" + p.Name
		values := parameterValues(c, p, query)
		switch len(values) {
		case 0:
			continue // only path parameters are required, and those are always there
		case 1:
		default:
			fields = append(fields, problem.FieldError{Pointer: pointer, Message: "must not come twice"})
			continue
		}
		if !utf8.ValidString(values[0]) || strings.IndexByte(values[0], 0) >= 0 {
			fields = append(fields, problem.FieldError{Pointer: pointer, Message: "must be UTF-8 without NUL"})
			continue
		}
		value, ok := typed(values[0], p.Schema.Value)
		if !ok {
			fields = append(fields, problem.FieldError{Pointer: pointer, Message: "must be " + typeWords(p.Schema.Value)})
			continue
		}
		fields = append(fields, findings(p.Schema.Value.VisitJSON(value, o.options...), pointer)...)
	}
	if c.Request.Method != http.MethodGet {
		fields = append(fields, o.unknownParameters(query)...)
	}
	return fields
}

// unknownParameters are those of a change that the contract does not have: dryrun=true must not apply what dry_run=true would only show.
// Readers may carry any, as they do through proxies and caches.
func (o *operation) unknownParameters(query url.Values) (fields []problem.FieldError) {
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if o.parameters.GetByInAndName(openapi3.ParameterInQuery, name) == nil && len(fields) < maxFindings {
			fields = append(fields, problem.FieldError{Pointer: "/query/" + pointerSegment(name), Message: "is not a known parameter"})
		}
	}
	return fields
}

func parameterValues(c *gin.Context, p *openapi3.Parameter, query url.Values) []string {
	switch p.In {
	case openapi3.ParameterInQuery:
		return query[p.Name]
	case openapi3.ParameterInHeader:
		return c.Request.Header[http.CanonicalHeaderKey(p.Name)]
	}
	return []string{c.Param(p.Name)}
}

// typed is a parameter's text as its schema's type.
func typed(text string, schema *openapi3.Schema) (any, bool) {
	switch {
	case schema.Type.Is(openapi3.TypeBoolean):
		return text == "true", text == "true" || text == "false"
	case !schema.Type.Is(openapi3.TypeInteger):
		return text, true
	}
	bits := 32
	if schema.Format == "int64" {
		bits = 64
	}
	v, err := strconv.ParseInt(text, 10, bits)
	return float64(v), err == nil && strconv.FormatInt(v, 10) == text
}

// checkBody holds a body to the scanner's rules and to its schema.
func (o *operation) checkBody(raw []byte) error {
	if len(raw) == 0 {
		if o.body.Required {
			return invalid("", "a JSON body is required")
		}
		return nil
	}
	if err := checkJSON(raw); err != nil {
		return err
	}
	value, err := parseJSON(raw)
	if err != nil {
		return invalid("", "holds a number that cannot be read")
	}
	schema := o.body.Content.Get("application/json").Schema.Value
	if fields := findings(schema.VisitJSON(value, o.options...), ""); len(fields) > 0 {
		return invalidFields(fields)
	}
	return nil
}

// maxFindings bounds how many places a problem names.
const maxFindings = 20

// findings turns kin-openapi's errors into pointers and our own words: its reasons may quote what was submitted.
func findings(err error, prefix string) []problem.FieldError {
	var many openapi3.MultiError
	var one *openapi3.SchemaError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &many):
		var fields []problem.FieldError
		for _, e := range many {
			fields = append(fields, findings(e, prefix)...)
			if len(fields) >= maxFindings {
				return fields[:maxFindings]
			}
		}
		return fields
	case errors.As(err, &one):
		pointer := prefix
		for _, segment := range one.JSONPointer() {
			pointer += "/" + pointerSegment(segment)
		}
		if one.SchemaField == "properties" {
			pointer += "/" + unknownName(one.Reason)
		}
		return []problem.FieldError{{Pointer: pointer, Message: words(one)}}
	}
	return []problem.FieldError{{Pointer: prefix, Message: "is not valid"}}
}

// unknownName is the name in `property "x" is unsupported`.
func unknownName(reason string) string {
	quoted := strings.TrimSuffix(strings.TrimPrefix(reason, "property "), " is unsupported")
	name, err := strconv.Unquote(quoted)
	if err != nil {
		return "…"
	}
	return pointerSegment(name)
}

// words says what a schema asks for.
func words(e *openapi3.SchemaError) string {
	s := e.Schema
	switch e.SchemaField {
	case "properties":
		return msgUnknown
	case "required":
		return "is required"
	case "nullable":
		return "must not be null"
	case "type":
		return "must be " + typeWords(s)
	case "enum":
		return "must be one of " + enumWords(s)
	case "pattern":
		if example, ok := s.Example.(string); ok {
			return "must match " + s.Pattern + ", such as " + example
		}
		return "must match " + s.Pattern
	case "minLength", "maxLength":
		return "must be " + span(float64(s.MinLength), bound(s.MaxLength)) + " characters"
	case "minItems", "maxItems":
		return "must have " + span(float64(s.MinItems), bound(s.MaxItems)) + " elements"
	case "minProperties", "maxProperties":
		return "must have " + span(float64(s.MinProps), bound(s.MaxProps)) + " fields"
	case "uniqueItems":
		return "must not hold an element twice"
	case "minimum", "maximum":
		return "must be " + span(deref(s.Min), s.Max)
	case "format":
		if s.Type.Is(openapi3.TypeInteger) {
			return "must be a whole number of at most 64 bits"
		}
		return "must be a time of RFC 3339, such as 2027-01-31T12:00:00Z"
	}
	return "is not valid"
}

func typeWords(s *openapi3.Schema) string {
	switch {
	case s.Type.Is(openapi3.TypeInteger):
		return "an integer"
	case s.Type.Is(openapi3.TypeObject):
		return "an object"
	case s.Type.Is(openapi3.TypeArray):
		return "an array"
	case s.Type.Is(openapi3.TypeNumber):
		return "a number"
	case s.Type.Is(openapi3.TypeBoolean):
		return "true or false"
	}
	return "a string"
}

func enumWords(s *openapi3.Schema) string {
	words := make([]string, 0, len(s.Enum))
	for _, v := range s.Enum {
		words = append(words, fmt.Sprint(v))
	}
	return strings.Join(words, ", ")
}

func bound(v *uint64) *float64 {
	if v == nil {
		return nil
	}
	f := float64(*v)
	return &f
}

func deref(v *float64) float64 {
	if v == nil {
		return 0
	}
	return *v
}

// span writes a range in plain digits.
func span(lo float64, hi *float64) string {
	low := strconv.FormatFloat(lo, 'f', -1, 64)
	if hi == nil {
		return "at least " + low
	}
	return low + " to " + strconv.FormatFloat(*hi, 'f', -1, 64)
}
