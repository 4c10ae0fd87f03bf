// Package redisstore is a ratelimit.Store on Redis: one Lua script, charge.lua, settles several charges in one round trip,
// on the server's own clock. It is tested on Redis 7.0; the server needs maxmemory-policy noeviction, because an evicted
// counter is a forgotten one.
//
// Internal/app makes a Store, everybody else sees a ratelimit.Store. It is safe for concurrent use.
//
// Sending. EVALSHA with up to 32 charges; more of them go in one pipeline. On a cluster the charges of one group (one hash
// tag) go together. A call is sent again only after a reply that proves that nothing was executed: NOSCRIPT (with the
// script's text), READONLY (once, over new connections), and on a cluster MOVED and ASK. Nothing is sent twice after a
// timeout or a broken connection, so nothing is ever counted twice.
//
// Handing over. Raises go by a script of their own, raise.lua, always as a text; Lives says when counters may have been lost.
//
// Failing. Every call ends by its deadline (Config.Timeout, or the caller's when that is sooner), waiting for a connection
// and making one included. An error wraps ratelimit.ErrUnavailable, unless the caller cancelled. The store neither retries
// nor fails over nor opens a breaker; that is for the decorators in ratelimit. Making a Store contacts nobody, so a start
// never waits for Redis.
//
// Cost. A hit on a log is four calls in the script: TIME, ZRANGE, ZADD, and PEXPIRE or (when the hit joins the last one's
// slot) ZREM, because the last member alone says what is used; two more when something has expired. A refusal is two or
// three calls, a bucket or window GET and SET. BenchmarkDecide measures it.
package redisstore
