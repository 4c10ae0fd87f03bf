package ratelimit

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// BreakerState is whether a store is asked at all.
type BreakerState string

// The states.
const (
	BreakerClosed   BreakerState = "closed"    // every call goes to the store
	BreakerHalfOpen BreakerState = "half_open" // one call probes it, the others fail at once
	BreakerOpen     BreakerState = "open"      // every call fails at once
)

// What opens a breaker, and how soon it looks again.
const (
	breakerConsecutive = 5                // failures in a row
	breakerSample      = 20               // calls it takes to judge by their share
	breakerWindow      = 10 * time.Second // over which the share of failures is taken: half of the sample or more opens it
	breakerBucket      = time.Second      // by which that window slides
	breakerProbeEvery  = time.Second
)

var (
	errBreakerOpen = errors.New("breaker is open")
	errSlow        = errors.New("answer was too slow")
)

// breaker counts the failures of one store and says whether to ask it. Safe for concurrent use.
type breaker struct {
	source Source
	now    func() time.Time
	log    *slog.Logger
	twin   *gobreaker.TwoStepCircuitBreaker[struct{}]

	// Transitions happen under gobreaker's lock, so they are only noted there, and logged by whoever caused them once
	// it is free: a slow log never holds decisions up.
	pending atomic.Bool
	mu      sync.Mutex
	noted   []transition
	since   time.Time // when it last closed, or last stopped being closed
	last    error     // the failure before the transition

	absences atomic.Pointer[absence]
}

// absence is what a breaker knows of the times its store was not asked.
type absence struct {
	count uint64    // how many there were, one that lasts included
	lasts bool      // the store is not asked, or only probed
	ended time.Time // the last one; zero: there was none, or it lasts
}

type transition struct {
	from, to gobreaker.State
	cause    error
	lasted   time.Duration // how long the store was not asked, when it is back
}

func newBreaker(source Source, now func() time.Time, log *slog.Logger) *breaker {
	b := &breaker{source: source, now: now, log: log, since: now()}
	b.absences.Store(&absence{})
	b.twin = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name:         string(source),
		MaxRequests:  1,
		Interval:     breakerWindow,
		BucketPeriod: breakerBucket,
		Timeout:      breakerProbeEvery,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			counted := c.TotalSuccesses + c.TotalFailures
			return c.ConsecutiveFailures >= breakerConsecutive || (counted >= breakerSample && 2*c.TotalFailures >= counted)
		},
		IsExcluded:    func(err error) bool { return errors.Is(err, ErrBusy) },
		OnStateChange: b.note,
	})
	return b
}

// allow says whether to ask the store; if so, its verdict must be reported exactly once.
func (b *breaker) allow() (report func(error), ok bool) {
	report, err := b.twin.Allow()
	b.announce()
	return report, err == nil
}

// settle reports a call's verdict: nil, ErrBusy (which does not count), or why it failed.
func (b *breaker) settle(report func(error), err error) {
	if err != nil && !errors.Is(err, ErrBusy) {
		b.mu.Lock()
		b.last = err
		b.mu.Unlock()
	}
	report(err)
	b.announce()
}

func (b *breaker) note(_ string, from, to gobreaker.State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	t := transition{from: from, to: to, cause: b.last}
	count := b.absences.Load().count
	switch {
	case to == gobreaker.StateClosed:
		t.lasted = now.Sub(b.since)
		b.absences.Store(&absence{count: count, ended: now})
	case from == gobreaker.StateClosed:
		b.absences.Store(&absence{count: count + 1, lasts: true})
	}
	if to == gobreaker.StateClosed || from == gobreaker.StateClosed {
		b.since = now
	}
	b.noted = append(b.noted, t)
	b.pending.Store(true)
}

// announce logs the transitions noted so far: one line each. Only those that change who decides are worth a warning; a
// store that stays away is probed every second.
func (b *breaker) announce() {
	if !b.pending.Load() {
		return
	}
	b.mu.Lock()
	noted := b.noted
	b.noted = nil
	b.pending.Store(false)
	b.mu.Unlock()
	for _, t := range noted {
		switch {
		case t.to == gobreaker.StateClosed:
			b.log.Info("store decides again", slog.String("store", string(b.source)), slog.Duration("after", t.lasted))
		case t.from == gobreaker.StateClosed:
			b.log.Warn("store is no longer asked", slog.String("store", string(b.source)), slog.Any("error", t.cause))
		case t.to == gobreaker.StateOpen:
			b.log.Debug("store is still away", slog.String("store", string(b.source)), slog.Any("error", t.cause))
		default:
			b.log.Debug("store is being probed", slog.String("store", string(b.source)))
		}
	}
}

// state is the breaker's state and when it last closed or stopped being closed.
func (b *breaker) state() (BreakerState, time.Time) {
	state := b.twin.State()
	b.announce()
	b.mu.Lock()
	defer b.mu.Unlock()
	return breakerState(state), b.since
}

func breakerState(s gobreaker.State) BreakerState {
	switch s {
	case gobreaker.StateClosed:
		return BreakerClosed
	case gobreaker.StateHalfOpen:
		return BreakerHalfOpen
	case gobreaker.StateOpen:
		return BreakerOpen
	}
	return BreakerState(fmt.Sprintf("unknown (%d)", s))
}
