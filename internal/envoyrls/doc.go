// Package envoyrls is the front door for Envoy: the gRPC service envoy.service.ratelimit.v3.RateLimitService that Envoy's
// rate-limit filter asks. It turns the descriptors of a call into hits, has the engine decide all of them in one batch, and
// turns the decisions into statuses in the order of the request. It decides nothing itself.
//
// The entries tenant, user, key, remote_address, path and method of a descriptor are the facts of one hit. Envoy knows two
// answers, OK and OVER_LIMIT, and lets a request through when the call fails and failure_mode_deny is off. So whatever another
// front door refuses for the sake of the request (a denied network, a suspended or unknown tenant, a fact that is no
// identifier, a closed limit that nobody can decide) is OVER_LIMIT here, with the problem as the body for the client, and an
// error is left for what says nothing about the request: a caller without a valid token, a deadline that has passed, a replica
// that is not loaded. What no limit can hold for (another domain, unknown entries only) is OK, counted, and logged once.
//
// It never sleeps, because Envoy waits 20 ms unless it is told otherwise: the delay of a slowed request is in the headers
// (answer.go). With the stores away it answers what the limits say about that, like every front door.
//
// A Server is safe for concurrent use. Its memory is bounded by the messages (1 MiB each) and the streams (1,000 for each
// connection) that are under way.
package envoyrls
