package app

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	// probeEvery is how often each store is asked whether it is there.
	probeEvery = time.Second
	// probeLimit is how long it may take to answer.
	probeLimit = 500 * time.Millisecond
	// probeMisses is how many answers in a row must be missing before a store that was up counts as down: one slow answer
	// must not take a replica out of its balancer.
	probeMisses = 2
)

// probe asks a store every second whether it is there, so that readiness can tell without asking.
type probe struct {
	name string // "redis" or "postgres"
	ask  func(context.Context) error
	now  func() time.Time
	log  *slog.Logger

	misses int // in a row; only run's goroutine reads it

	up    atomic.Bool
	since atomic.Int64 // Unix µs of the last change; 0: not asked yet
}

// run asks until ctx ends; the first time at once.
func (p *probe) run(ctx context.Context) {
	for {
		limit, cancel := context.WithTimeout(ctx, probeLimit)
		err := p.ask(limit)
		cancel()
		if ctx.Err() != nil {
			return
		}
		p.note(err)
		if !sleep(ctx, probeEvery) {
			return
		}
	}
}

// note keeps the answer and logs when it is another than before.
func (p *probe) note(err error) {
	first := p.since.Load() == 0
	if err == nil {
		p.misses = 0
	} else if p.misses++; p.misses < probeMisses && !first {
		return
	}
	if p.up.Load() == (err == nil) && !first {
		return
	}
	p.up.Store(err == nil)
	p.since.Store(p.now().UnixMicro())
	switch {
	case err != nil:
		p.log.Error("store is down", slog.String("store", p.name), slog.Any("error", err))
	case !first:
		p.log.Info("store is up again", slog.String("store", p.name))
	}
}

// state is "up" or "down"; on a nil probe "unconfigured".
func (p *probe) state() string {
	switch {
	case p == nil:
		return storeUnconfigured
	case p.up.Load():
		return storeUp
	default:
		return storeDown
	}
}

// changed is when the state last changed; zero before the first answer.
func (p *probe) changed() time.Time {
	if p == nil || p.since.Load() == 0 {
		return time.Time{}
	}
	return time.UnixMicro(p.since.Load())
}
