// Package proxy is the reverse proxy front door: every request is decided by the engine, held for its delay, and forwarded
// to one upstream, or refused before its body is read. It decides nothing itself.
//
// What the upstream sees: the path that limits were matched on, in its own spelling (forward.go); no credential of ours and
// no X-Pegel header; forwarding headers that this proxy wrote. What the client sees: the upstream's answer with the headers
// of the decision. Where the upstream sends rate-limit headers of its own, ours take their place; they pass only when no
// limit of ours applies.
//
// Guard wraps the listener: a request whose framing could be read in two ways is refused before it is one.
//
// When the upstream is away the answer is a problem with status 502, or 504 when it was too slow, under the slug internal
// and with the request's id. When the client leaves while it is held, its slot is free at once and the upstream is never
// called. A Proxy is safe for concurrent use.
package proxy
