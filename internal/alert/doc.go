// Package alert tells people: it finds what has been wrong for long enough (a tenant high at one of its limits, a store
// away, replicas that decide by different stores, a refused service token, a burst of forged tokens, a request log that
// loses rows), opens one incident for it over all replicas, and sends a mail and a webhook when it begins, now and then
// while it lasts, and when it is over. Only internal/app may start it; internal/httpapi reads incidents through Incidents.
//
//   - rule.go: when a level has been high for long enough, and low again. Pure; time is an argument.
//   - conditions.go, judge.go: what is looked at, and what follows from it. Pure as well.
//   - evaluator.go: looks every few seconds, on every replica.
//   - ledger.go: what is kept, for all replicas, behind an interface (internal/postgres).
//   - courier.go: takes messages from the ledger and sends them (mail.go, webhook.go; words.go says what they say).
//
// # Concurrency
//
// Every replica looks and judges; the ledger lets one judge at a time, and what a judgement changes (states, incidents,
// messages) is one transaction. So a tenant whose traffic is spread over many replicas is judged by all that they saw, and
// nobody has to be elected. Messages are leased before they are sent.
//
// # Failure
//
// Nothing here is on the path of a decision. With Postgres away nothing is judged and nothing sent; what was known stays,
// the time away neither counts as low nor breaks a stretch, and a condition that still holds is judged when Postgres is
// back. With the mail server or the receiver of webhooks away, messages wait in the ledger, with growing pauses, for
// GiveUpAfter; each channel has its own queue and its own goroutine. A replica that dies while it sends leaves a lease that
// ends: the message is sent once more, and never a third time while it is unknown what became of it.
package alert
