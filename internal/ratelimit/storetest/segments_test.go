package storetest

import (
	"context"
	"sync"
	"testing"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// oneAtATime lets the model of one goroutine take the concurrency tests.
type oneAtATime struct {
	mu    sync.Mutex
	model *segments
}

func (o *oneAtATime) Source() ratelimit.Source { return o.model.Source() }

func (o *oneAtATime) Decide(ctx context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.model.Decide(ctx, charges, out)
}

// The model that Segmented stores are compared with passes the rest of the suite, the oracle above all.
func TestTheModelOfSegmentsKeepsTheContract(t *testing.T) {
	Run(t, Factory{
		New:        func(_ testing.TB, clock *Clock) ratelimit.Store { return &oneAtATime{model: newSegments(clock.Now)} },
		Strictness: Segmented,
		Checks:     300,
	})
}
