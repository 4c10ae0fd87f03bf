// Package journal remembers what was decided: explanations, which tell why one decision fell as it did, for 24 hours; and the
// request log, which says what became of calls, for as long as its retention. It is a decision.Observer; what it gathers goes to a
// Sink in batches and is read back through a Reader, both of which internal/postgres implements.
//
// # What is kept
//
// Every decision to slow down or refuse is explained, and a sample of those that let through. The request log keeps what the plan's
// request_log says; hits that no tenant pays for have a setting of their own. Hits that only look are not calls and are
// not logged. Refusals that a deny cache repeats share the decision's explanation, which counts them; calls in one batch that
// do not differ share a row of the request log, which counts them too, so that refused traffic stays cheap.
//
// # Concurrency and bounds
//
// Observe is safe for concurrent use, waits for nothing and allocates nothing: a hit that is to be kept goes into a ring of fixed
// size. One goroutine (Run) empties the ring, merges, and hands batches to the sink, one at a time. Everything is bounded: the ring,
// what waits for the sink, how many sampled allows are explained in a second, and how many rows in a second strangers can cause. What
// does not fit is dropped, the newest first, counted, and written down as a gap as soon as the sink takes anything.
//
// # Failure
//
// While the sink is away or hangs, decisions go on unaffected; what waits is bounded and then dropped; writing resumes by
// itself. A batch of unknown outcome is sent again under its number, which the sink writes once. A process that is killed loses what
// it had not written: in health at most about half a second.
package journal
