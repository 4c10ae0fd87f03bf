package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
)

// batcher merges checks that are made at the same time. At most one request is under way; whoever comes meanwhile queues. What
// queues is bounded by the goroutines that wait for it.
type batcher struct {
	client *Client
	// life ends requests when the Client is closed for good; a request carries many callers' checks, so none of theirs does.
	life   context.Context //nolint:containedctx // see above
	cancel context.CancelFunc

	mu     sync.Mutex
	queue  []*pending
	flying bool
	closed bool
	work   sync.WaitGroup
}

// pending is a check that waits for its answer.
type pending struct {
	check json.RawMessage
	done  chan Result // of capacity 1: a caller that has left is not waited for
	left  bool        // its caller has gone; under batcher.mu
}

// errClosed: the Client was closed.
var errClosed = errors.New("pegel: the client is closed")

func (b *batcher) init(c *Client) {
	b.client = c
	b.life, b.cancel = context.WithCancel(context.Background())
}

// check queues one check and waits for its answer, or until ctx ends. A check that was sent is charged all the same.
func (b *batcher) check(ctx context.Context, c Check) (*Decision, error) {
	if err := ctx.Err(); err != nil {
		return nil, err //nolint:wrapcheck // the caller's own
	}
	raw, err := c.encode()
	if err != nil {
		return nil, err
	}
	p := &pending{check: raw, done: make(chan Result, 1)}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, errClosed
	}
	b.queue = append(b.queue, p)
	if !b.flying {
		b.flying = true
		b.work.Go(b.fly)
	}
	b.mu.Unlock()
	select {
	case r := <-p.done:
		return r.Decision, r.Err
	case <-ctx.Done():
		b.mu.Lock()
		p.left = true
		b.mu.Unlock()
		return nil, ctx.Err() //nolint:wrapcheck // the caller's own
	}
}

// fly sends requests until nobody waits.
func (b *batcher) fly() {
	for {
		batch := b.next()
		if len(batch) == 0 {
			return
		}
		if len(batch) == 1 {
			d, err := b.client.decide(b.life, b.client.timeout, http.MethodPost, "/v1/check", batch[0].check)
			batch[0].done <- Result{d, err}
			continue
		}
		checks := make([]json.RawMessage, len(batch))
		for i, p := range batch {
			checks[i] = p.check
		}
		results, err := b.client.batch(b.life, checks)
		for i, p := range batch {
			if err != nil {
				p.done <- Result{Err: err}
			} else {
				p.done <- results[i]
			}
		}
	}
}

// next takes as many checks off the queue, whose callers still wait, as one request may carry. None left: the flight is over.
func (b *batcher) next() []*pending {
	b.mu.Lock()
	defer b.mu.Unlock()
	var batch []*pending
	taken, size := 0, 0
	for taken < len(b.queue) {
		p := b.queue[taken]
		if !p.left {
			if !fits(len(batch), size, p.check) {
				break
			}
			batch = append(batch, p)
			size += len(p.check) + 1
		}
		taken++
	}
	b.queue = append(b.queue[:0:0], b.queue[taken:]...)
	b.flying = len(batch) > 0
	return batch
}

// close refuses new checks and waits for those that are queued.
func (b *batcher) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.work.Wait()
	b.cancel()
}
