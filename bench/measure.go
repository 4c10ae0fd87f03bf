package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// peer is one thing to measure.
type peer struct {
	table, name string
	// decisions that one call makes; 0 means 1.
	decisions int
	// reference marks the peer that the others of its table are compared with.
	reference bool
	// caller makes one caller of its own; its call makes one call and reports what went wrong.
	caller func(ctx context.Context, n int) (call func() error, end func(), err error)
	// cpu has the processes that work for this peer, by column.
	cpu map[string]meter
}

func (p *peer) perCall() int { return max(1, p.decisions) }

// result is what all turns of one peer with one number of callers gave.
type result struct {
	took      []time.Duration // of every call
	rates     []float64       // decisions per second, turn by turn
	decisions int
	cpu       map[string]time.Duration
}

// turn lets the callers call for so long and adds what happened.
func (r *result) turn(ctx context.Context, p *peer, callers int, length time.Duration) error {
	calls := make([]func() error, callers)
	for i := range calls {
		call, end, err := p.caller(ctx, i)
		if err != nil {
			return err
		}
		defer end()
		calls[i] = call
		if err := call(); err != nil { // opens the connection outside the turn
			return err
		}
	}
	before := make(map[string]time.Duration, len(p.cpu))
	for column, read := range p.cpu {
		before[column] = read()
	}
	took := make([][]time.Duration, callers)
	errs := make([]error, callers)
	start := time.Now()
	end := start.Add(length)
	var all sync.WaitGroup
	for i, call := range calls {
		all.Go(func() {
			for from := time.Now(); from.Before(end); {
				if errs[i] = call(); errs[i] != nil {
					return
				}
				to := time.Now()
				took[i] = append(took[i], to.Sub(from))
				from = to
			}
		})
	}
	all.Wait()
	elapsed := time.Since(start)
	for column, read := range p.cpu {
		r.cpu[column] += read() - before[column]
	}
	n := 0
	for _, t := range took {
		n += len(t)
		r.took = append(r.took, t...)
	}
	n *= p.perCall()
	r.decisions += n
	r.rates = append(r.rates, float64(n)/elapsed.Seconds())
	return errors.Join(errs...)
}

// rate is the median of the turns' rates.
func (r *result) rate() float64 { return median(r.rates) }

// percentile is how long the q-th part of all calls took at most.
func (r *result) percentile(q float64) time.Duration {
	if len(r.took) == 0 {
		return 0
	}
	slices.Sort(r.took)
	return r.took[min(len(r.took)-1, int(q*float64(len(r.took))))]
}

// against is the median over the rounds of this peer's rate by the other's in the same round.
func (r *result) against(other *result) float64 {
	ratios := make([]float64, 0, len(r.rates))
	for i := range min(len(r.rates), len(other.rates)) {
		ratios = append(ratios, r.rates[i]/other.rates[i])
	}
	return median(ratios)
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
