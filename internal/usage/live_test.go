package usage_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/usage"
)

// hung is a store that hangs: asking it takes as long as it may.
type hung struct {
	usage.Exchange

	asked atomic.Int64
	pass  func(time.Duration)
	begun chan struct{} // closed when the first is under way
	goOn  chan struct{}
}

func (h *hung) Name() string { return "redis" }

func (h *hung) Reports(context.Context) (map[string][]byte, error) {
	if h.asked.Add(1) == 1 {
		close(h.begun)
	}
	<-h.goOn
	h.pass(500 * time.Millisecond)
	return nil, context.DeadlineExceeded
}

// Guarantee: however many look while a store hangs, they wait for one reading and not for one each, one after the other.
func TestManyWhoLookShareOneReading(t *testing.T) {
	t.Parallel()
	var clock atomic.Int64
	now := func() time.Time { return time.Unix(1_800_000_000, clock.Load()) }
	store := &hung{pass: func(d time.Duration) { clock.Add(int64(d)) }, begun: make(chan struct{}), goOn: make(chan struct{})}
	r := usage.NewReporter(usage.ReporterConfig{
		Aggregator: usage.NewAggregator(0), Exchanges: []usage.Exchange{store}, Now: now, Log: slog.New(slog.DiscardHandler),
		Replica: func() usage.Replica { return usage.Replica{Name: "pegel-0", Instance: "0"} },
	})
	var all sync.WaitGroup
	all.Go(func() { r.Overview(t.Context(), 10) })
	<-store.begun
	for range 50 {
		all.Go(func() { r.Levels(t.Context()) })
	}
	close(store.goOn)
	all.Wait()
	require.EqualValues(t, 1, store.asked.Load())
}
