// Package migrations embeds the schema, one numbered step per file pair: NNNNNN_name.up.sql and NNNNNN_name.down.sql.
//
// Rules of a step: it runs in one transaction together with the mark that it ran (internal/postgres), so it holds no BEGIN,
// COMMIT or CREATE INDEX CONCURRENTLY; it never changes a released step; and the previous release keeps working on the new
// schema (add first, remove one release later), because replicas are updated one after another and an old one may restart.
package migrations

import "embed"

// FS holds the steps at its root.
//
//go:embed *.sql
var FS embed.FS
