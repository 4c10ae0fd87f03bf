package ratelimit_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

var errDown = errors.New("connection refused")

// fake is a store for error paths. Without `decide` it admits everything.
type fake struct {
	source ratelimit.Source
	calls  atomic.Int64
	mu     sync.Mutex
	decide func(ctx context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error
}

func (f *fake) Source() ratelimit.Source { return f.source }

func (f *fake) Decide(ctx context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
	f.calls.Add(1)
	f.mu.Lock()
	decide := f.decide
	f.mu.Unlock()
	if decide == nil {
		decide = admits
	}
	return decide(ctx, charges, out)
}

func (f *fake) does(decide func(context.Context, []ratelimit.Charge, []ratelimit.Outcome) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decide = decide
}

func admits(_ context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
	for i := range charges {
		out[i] = ratelimit.Outcome{Admitted: charges[i].Hits, Counters: make([]ratelimit.CounterState, len(charges[i].Counters))}
	}
	return nil
}

func fails(context.Context, []ratelimit.Charge, []ratelimit.Outcome) error { return errDown }

// hangs until the context ends, as a well-behaved client of a frozen server does.
func hangs(ctx context.Context, _ []ratelimit.Charge, _ []ratelimit.Outcome) error {
	<-ctx.Done()
	return ctx.Err()
}

// ignores hangs until released, whatever the context says, and then writes to whatever it was given.
func ignores(released <-chan struct{}) func(context.Context, []ratelimit.Charge, []ratelimit.Outcome) error {
	return func(ctx context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
		<-released
		return admits(ctx, charges, out)
	}
}

func takes(d time.Duration) func(context.Context, []ratelimit.Charge, []ratelimit.Outcome) error {
	return func(ctx context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
		time.Sleep(d)
		return admits(ctx, charges, out)
	}
}

// logs collects log lines.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// lines are the lines that contain a text.
func (l *logs) lines(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func guard(store ratelimit.Store, timeout time.Duration, change ...func(*ratelimit.GuardConfig)) *ratelimit.Guard {
	cfg := ratelimit.GuardConfig{Store: store, Timeout: timeout, Now: time.Now, Log: slog.New(slog.DiscardHandler)}
	for _, c := range change {
		c(&cfg)
	}
	return ratelimit.NewGuard(cfg)
}

// hit is one hit on a counter of each of the limits.
func hit(limits ...*ratelimit.Limit) []ratelimit.Charge {
	c := ratelimit.Charge{Kind: ratelimit.Take, Hits: 1, Cost: 1}
	for _, l := range limits {
		key := ratelimit.CounterKey(ratelimit.Subject{Group: "tenant", Scope: l.Scope}, l)
		c.Counters = append(c.Counters, ratelimit.Counter{Key: key, Limit: l, Shadow: l.Mode == ratelimit.Shadow})
	}
	return []ratelimit.Charge{c}
}

func perMinute(name string, quota int64, onFailure ratelimit.FailureMode) *ratelimit.Limit {
	return &ratelimit.Limit{
		Name: name, Scope: ratelimit.ScopeTenant, Algorithm: ratelimit.SlidingWindowLog, Quota: quota, Window: time.Minute,
		Cost: 1, OnStoreFailure: onFailure, Mode: ratelimit.Enforce,
	}
}

func decide(tb testing.TB, s ratelimit.Store, charges []ratelimit.Charge) (ratelimit.Outcome, error) {
	tb.Helper()
	out := make([]ratelimit.Outcome, len(charges))
	for i := range out { // as left over from an earlier call
		out[i] = ratelimit.Outcome{Admitted: 77, Err: errDown, Source: "old", Counters: make([]ratelimit.CounterState, 4)}
		for j := range out[i].Counters {
			out[i].Counters[j] = ratelimit.CounterState{Used: 99, RetryAfter: time.Hour, Effective: "old"}
		}
	}
	err := s.Decide(context.Background(), charges, out)
	return out[0], err
}
