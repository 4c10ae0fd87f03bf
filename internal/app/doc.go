// Package app puts a replica together and runs it: the settings, the stores, the configuration, the front doors, the drain.
// It is the only composition root; cmd/pegel is its only caller besides tests.
//
// config.go, settings.go, parse.go and load.go are the settings: one table, checked before anything starts. app.go builds a
// replica (New) and runs it (Run), start.go is what it does before and while it serves, stores.go the chain that counters go
// through, listeners.go the HTTP servers and their drain, health.go what /readyz says. admin.go and examples.go serve the
// commands.
//
// # Concurrency
//
// New starts no goroutine that asks a store, besides the pools' own. Run owns every goroutine of a replica and returns when
// all of them have ended.
//
// # When a store is away
//
// A start never needs Redis. It waits for Postgres, alive and not ready, and answers 503 until the configuration is loaded.
// Afterwards Redis, then Postgres, then each limit's on_store_failure decide; the loaded configuration serves on.
package app
