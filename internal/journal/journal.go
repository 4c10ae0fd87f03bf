package journal

import (
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// ringBits sizes the ring: at 200,000 kept decisions a second it lasts for 20 ms, which is how often it is emptied.
const ringBits = 12

// Config is what a Journal needs.
type Config struct {
	Sink Sink
	// Replica is this replica's name among the others.
	Replica string
	// Now is this replica's clock.
	Now func() time.Time
	// Sample is one in how many allowed hits is kept as an example; 0: none.
	Sample int
	// Anonymous is the request_log of hits that no tenant pays for.
	Anonymous tenants.RequestLog
	// Retention is how long the request log is kept.
	Retention time.Duration
	// FlushWithin bounds the writing of what is left when Run ends; 0: 3 s.
	FlushWithin time.Duration
	Log         *slog.Logger
}

// Journal observes decisions and writes them to its sink. Run must run for anything to be written.
type Journal struct {
	cfg  Config
	ring *ring
	ids  *decision.IDSource

	// lost is what the ring had no room for since Run last looked.
	lost tally
	// dropped and written are for Stats.
	dropped, written tally
	waiting          atomic.Int64
	failing          atomic.Bool

	run runState
}

// tally counts rows of the request log and explanations.
type tally struct{ requests, decisions atomic.Int64 }

// New makes one. It takes no resources before Run.
func New(cfg Config) *Journal {
	if cfg.FlushWithin <= 0 {
		cfg.FlushWithin = flushWithin
	}
	if cfg.Anonymous == "" {
		cfg.Anonymous = tenants.LogDenied
	}
	j := &Journal{cfg: cfg, ring: newRing(ringBits), ids: decision.NewIDSource()}
	j.run = runState{writer: uuid.New(), pending: newPending()}
	return j
}

// Observe keeps a decision if it is to be kept. It allocates nothing and waits for nothing.
func (j *Journal) Observe(o decision.Observation) {
	e := entry{seen: o}
	denied := refused(&o)
	sampled := !denied && j.sample()
	if o.Decision != nil {
		e.explain = denied && !o.Hit.Unauthorized || verdictOf(o.Decision) != decision.Allow || watched(o.Decision)
		if !e.explain && sampled {
			e.explain, e.sampled = true, true
		}
	}
	e.log = o.Hit.Consumes() && logs(j.mode(o.Hit), denied, sampled)
	if !e.explain && !e.log || j.ring.push(e) {
		return
	}
	if e.log {
		j.lost.requests.Add(1)
	}
	if e.explain && !e.sampled {
		j.lost.decisions.Add(1)
	}
}

// sample draws whether an allowed hit is an example. The generator is each thread's own.
func (j *Journal) sample() bool {
	return j.cfg.Sample > 0 && rand.IntN(j.cfg.Sample) == 0 //nolint:gosec // an example is no secret
}

// mode is which calls of the hit's payer are logged.
func (j *Journal) mode(h *decision.Hit) tenants.RequestLog {
	switch {
	case h.Tenant == nil:
		return j.cfg.Anonymous
	case h.Tenant.Plan == nil: // the plan's row is broken: the default holds
		return tenants.LogDenied
	}
	return h.Tenant.Plan.RequestLog
}

func logs(mode tenants.RequestLog, refused, sampled bool) bool {
	switch mode {
	case tenants.LogOff:
		return false
	case tenants.LogAllowed:
		return !refused
	case tenants.LogSampled:
		return refused || sampled
	case tenants.LogAll:
		return true
	case tenants.LogDenied:
	}
	return refused
}

// watched reports whether a limit in shadow mode would have refused: what such a limit is there to find out.
func watched(d *decision.Decision) bool {
	for i := range d.Limits {
		if l := &d.Limits[i]; l.Refused && l.Limit.Mode == ratelimit.Shadow {
			return true
		}
	}
	return false
}

// Stats is what a journal has done since it was made.
type Stats struct {
	// Failing: the last write did not succeed.
	Failing bool
	// Waiting is how many rows and explanations wait to be written.
	Waiting int64
	// Written and dropped, in rows of the request log and in explanations.
	WrittenRequests, WrittenDecisions int64
	DroppedRequests, DroppedDecisions int64
}

// Stats reads the numbers.
func (j *Journal) Stats() Stats {
	return Stats{
		Failing: j.failing.Load(), Waiting: j.waiting.Load(),
		WrittenRequests: j.written.requests.Load(), WrittenDecisions: j.written.decisions.Load(),
		DroppedRequests: j.dropped.requests.Load() + j.lost.requests.Load(), DroppedDecisions: j.dropped.decisions.Load() + j.lost.decisions.Load(),
	}
}
