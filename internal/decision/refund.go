package decision

import (
	"context"
	"errors"
	"fmt"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// ErrNotRefunded: no store could take the refund. Units may have been given back all the same, when a store's answer was lost.
var ErrNotRefunded = errors.New("no store can take the refund")

// Refund gives the hit's cost back to every limit that a Decide of the same hit would have charged: the oldest units first,
// never below zero used. The answer is the status after it, as a hit of cost 1 would meet it. Nothing is recorded. The errors
// are ErrNotRefunded and those of Decide.
func (e *Engine) Refund(ctx context.Context, h Hit) (*Decision, error) {
	m := e.moment()
	cost := h.Cost
	h.Cost, h.Peek = 1, true
	w := newWork(h)
	w.all = true
	e.plan(w, m)
	e.settleBoth(ctx, w, func(g group) ratelimit.Charge {
		from, to := w.span(g)
		return ratelimit.Charge{Kind: ratelimit.Refund, Counters: w.counters[from:to:to], Hits: 1, Cost: cost}
	})
	return e.conclude(w, m)
}

// applyRefund makes sure that a store gave the units back: what nobody counts cannot be given back.
func (e *Engine) applyRefund(ctx context.Context, w *work, g group, out *ratelimit.Outcome) {
	switch {
	case out.Err != nil:
		e.undecided(ctx, w, g, out.Err)
	case out.Source != ratelimit.SourceNone:
		return
	}
	if w.err == nil {
		w.err = fmt.Errorf("%w: %w", ErrNotRefunded, errors.Join(ratelimit.ErrUnavailable, out.Err))
	}
}
