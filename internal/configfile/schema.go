package configfile

import (
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pegel-dev/pegel/api"
)

// notInFiles are fields that an answer of the API has, and that are accepted and ignored: no editor should offer them.
var notInFiles = map[string][]string{
	"Configuration":      {"version", "warnings"},
	"PlanInput":          {"id", "version", "created_at", "updated_at"},
	"AddressPolicyInput": {"version", "updated_at"},
}

// Schema is the JSON Schema (draft 2020-12) of the file, made from the contract that the server validates with.
func Schema() ([]byte, error) {
	var contract struct {
		Components struct {
			Schemas map[string]map[string]any `yaml:"schemas"`
		} `yaml:"components"`
	}
	if err := yaml.Unmarshal(api.OpenAPI, &contract); err != nil {
		return nil, fmt.Errorf("read api/openapi.yaml: %w", err)
	}
	schemas := contract.Components.Schemas
	for name, fields := range notInFiles {
		properties, ok := schemas[name]["properties"].(map[string]any)
		if !ok {
			return nil, fmt.Errorf("api/openapi.yaml has no schema %s with properties", name)
		}
		for _, field := range fields {
			delete(properties, field)
		}
		delete(schemas[name], "description") // it speaks of those fields
	}
	definitions := map[string]any{}
	collect(schemas, "Configuration", definitions)
	root, ok := definitions["Configuration"].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("api/openapi.yaml has no schema Configuration")
	}
	delete(definitions, "Configuration")
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "Pegel configuration"
	root["description"] = "What pegel apply reads and pegel export writes."
	root["$defs"] = definitions
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the schema: %w", err)
	}
	return append(text, '\n'), nil
}

// collect takes a schema and all that it refers to.
func collect(schemas map[string]map[string]any, name string, into map[string]any) {
	if _, done := into[name]; done || schemas[name] == nil {
		return
	}
	into[name] = nil // on its way: schemas may refer to each other
	into[name] = translate(schemas, schemas[name], into)
}

// translate turns OpenAPI 3.0's dialect into JSON Schema's.
func translate(schemas map[string]map[string]any, value any, into map[string]any) any {
	switch v := value.(type) {
	case []any:
		for i := range v {
			v[i] = translate(schemas, v[i], into)
		}
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok {
			name := strings.TrimPrefix(ref, "#/components/schemas/")
			collect(schemas, name, into)
			return map[string]any{"$ref": "#/$defs/" + name}
		}
		for key, member := range v {
			v[key] = translate(schemas, member, into)
		}
		if v["nullable"] == true {
			v["type"] = []any{v["type"], "null"}
		}
		if example, ok := v["example"]; ok && v["type"] != nil {
			v["examples"] = []any{example}
			delete(v, "example")
		}
		delete(v, "nullable")
	}
	return value
}
