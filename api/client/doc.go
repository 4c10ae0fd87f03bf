// Package client asks a Pegel service for rate-limit decisions: one at a time, in batches, or around an http.Handler. It
// needs nothing but the standard library.
//
//	pegel, err := client.New("http://pegel:8080", os.Getenv("PEGEL_TOKEN"))
//	…
//	decision, err := pegel.Check(ctx, client.Check{Tenant: "school-17"})
//	switch {
//	case client.IsRateLimited(err):
//		// refused: client.RetryAfter(err) says how long to wait
//	case err != nil:
//		// Pegel did not answer, or refuses to decide: see Error
//	default:
//		time.Sleep(decision.Delay) // 0 unless the tenant is slowed
//	}
//
// # Credentials
//
// With a service token ("pgs_…") a program decides for the tenants it names; with an API key ("pgk_…") for the key's own
// tenant only. Nothing in this package logs either.
//
// # When Pegel is away
//
// A Client tells: every call returns an error that is neither a *RateLimitError nor an *Error. Middleware opens: requests
// pass, OnError is told, and after a few failures in a row it stops asking for a second at a time, so that a Pegel that hangs
// costs no more than a few slow requests.
//
// # Connections
//
// A Client keeps its connections and is safe for concurrent use. Make one and share it. WithBatching merges checks that are
// made at the same time into few requests.
package client
