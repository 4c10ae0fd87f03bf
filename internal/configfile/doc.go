// Package configfile is the file of `pegel export` and `pegel apply`: YAML for people on one side, the JSON of
// /admin/configuration on the other. The server alone says what is valid; this package finds the line it means.
//
// It knows only the contract (package api), and touches neither files nor the network.
package configfile
