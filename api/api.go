// Package api is the contract of Pegel's HTTP interfaces: openapi.yaml, embedded so that the service serves and validates
// the very document that clients read.
package api

import _ "embed"

// OpenAPI is openapi.yaml. It must not be changed.
//
//go:embed openapi.yaml
var OpenAPI []byte
