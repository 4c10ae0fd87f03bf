// Package devmode starts private Postgres and Redis servers as child processes, for `pegel dev` and for tests. It knows
// nobody and speaks to the servers only as far as it must to see that they answer.
//
// Each server lives in a directory of its own: data, Unix socket, log and pid file. A child runs in its own process
// group, so a Ctrl-C on the terminal reaches only the parent, and on Linux dies with the parent even when the parent is
// killed. Should one survive all the same (it was paused, or this is not Linux), Lock and NewRunDir find it by its pid
// file and end it before the directory is used again.
//
// The servers listen on loopback and trust every local user: they are for development and tests, never for production.
//
// A Postgres or Redis may be used from several goroutines. Each running child is waited for by one goroutine,
// (*child).run, which ends with it.
package devmode
