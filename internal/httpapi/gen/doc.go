// Package gen is generated from api/openapi.yaml: run `make generate` after changing it.
package gen

//go:generate oapi-codegen -config models.cfg.yaml ../../../api/openapi.yaml
//go:generate oapi-codegen -config admin.cfg.yaml ../../../api/openapi.yaml
