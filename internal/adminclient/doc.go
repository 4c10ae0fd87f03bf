// Package adminclient calls a running Pegel over HTTP: the administration, and the few public routes that the command line
// offers. Its types are generated from api/openapi.yaml: run `make generate` after changing that.
//
// It knows nobody in this repository. A Client is safe for concurrent use. It retries nothing: whoever asked is there to
// decide. When the server is away every call ends with an *UnreachableError, and a refusal is a *RefusedError.
package adminclient

//go:generate oapi-codegen -config models.cfg.yaml ../../api/openapi.yaml
