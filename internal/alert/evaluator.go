package alert

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/usage"
)

const (
	// tidyEvery is how often a replica looks for messages and incidents that are too old.
	tidyEvery = time.Minute
	// slowestLook is what a look may add at most to the pause before the next; ReplicaTTL is longer than both.
	slowestLook = 10 * time.Second
	// complainEvery is how often the log says again that nothing can be judged.
	complainEvery = time.Minute
)

// Watched is what alerts need of usage.Live.
type Watched interface {
	Overview(ctx context.Context, top int) usage.Overview
	Levels(ctx context.Context) []usage.TenantUsage
}

// Config is what a Service needs.
type Config struct {
	Ledger    Ledger
	Directory *tenants.Directory
	Usage     Watched
	// Self says how this replica sees its stores.
	Self func() Replica
	// Lost is how many rows of the request log this replica has lost since it started; nil: there is no such log.
	Lost func() int64
	// Outlets are the ways out.
	Outlets *Outlets
	Policy  Policy
	// Now is this replica's clock. What is kept is dated by the ledger's.
	Now func() time.Time
	Log *slog.Logger
	// Counted is told of every message that was sent, will be retried or was given up; nil: nobody is.
	Counted func(channel Channel, result string)
	// Pause waits and reports whether ctx is still good; nil: by timer. For tests.
	Pause func(ctx context.Context, d time.Duration) bool
}

// Stats are a service's numbers, for metrics.
type Stats struct {
	// Open incidents and Waiting messages, over all replicas, as they were last counted.
	Open, Waiting int64
	// Refused is how many subjects could not be followed because there are MaxStates already.
	Refused int64
	// JudgedAt is when this replica last judged, by its own clock; zero: never.
	JudgedAt time.Time
}

// Service looks, judges and sends, as one of several replicas.
type Service struct {
	cfg      Config
	couriers []*courier

	// What one look leaves for the next; only the looking goroutine uses it.
	lost         int64
	postgresDown time.Time
	complainedAt time.Time
	tidiedAt     time.Time

	open, waiting, refused, judgedAt atomic.Int64
}

// New prepares a service. It starts nothing.
func New(cfg Config) *Service {
	if cfg.Pause == nil {
		cfg.Pause = pause
	}
	if cfg.Counted == nil {
		cfg.Counted = func(Channel, string) {}
	}
	cfg.Policy.Mail = cfg.Outlets.Mailer != nil
	cfg.Policy.Hook = cfg.Outlets.Poster != nil
	s := &Service{cfg: cfg}
	add := func(channel Channel, send func(context.Context, []Message) Fate) {
		s.couriers = append(s.couriers, &courier{
			channel: channel, worker: cfg.Self().Instance + "/" + string(channel), ledger: cfg.Ledger, send: send,
			now: cfg.Now, log: cfg.Log, count: cfg.Counted, pause: cfg.Pause,
		})
	}
	if cfg.Outlets.Mailer != nil {
		add(Mail, cfg.Outlets.sendMail)
		add(Contact, cfg.Outlets.sendMail) // a queue of its own: tenants' mailboxes must not keep the operators waiting
	}
	if cfg.Outlets.Poster != nil {
		add(Hook, func(ctx context.Context, messages []Message) Fate {
			return cfg.Outlets.Poster.Send(ctx, &messages[0], cfg.Now())
		})
	}
	return s
}

// Run looks and sends until ctx ends. A mail on its way is cut then, and sent by whoever lives.
func (s *Service) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, c := range s.couriers {
		all.Go(func() { c.run(ctx) })
	}
	// The stores are probed when the process starts: before the first answer they would look as if they were away.
	s.cfg.Pause(ctx, LookEvery)
	for ctx.Err() == nil {
		began := s.cfg.Now()
		s.Look(ctx)
		// A little out of step with the other replicas, and less often while there is so much to judge that they wait for each
		// other.
		took := max(0, s.cfg.Now().Sub(began))
		jitter := rand.N(LookEvery / 5) //nolint:gosec // jitter is no secret
		next := LookEvery*9/10 + jitter + min(10*took, slowestLook)
		s.cfg.Pause(ctx, next)
	}
	all.Wait()
}

// Look sees how things stand and judges, once.
func (s *Service) Look(ctx context.Context) {
	sight := Sight{Now: s.cfg.Now(), Levels: s.cfg.Usage.Levels(ctx), Usage: s.cfg.Usage.Overview(ctx, maxNamed)}
	lost := s.lost
	if s.cfg.Lost != nil {
		lost = s.cfg.Lost()
		sight.Lost = lost - s.lost
	}
	if !s.postgresDown.IsZero() {
		sight.PostgresFrom, sight.PostgresTo = s.postgresDown, sight.Now
	}
	var ruled Ruling
	refused := 0
	err := s.cfg.Ledger.Judge(ctx, s.cfg.Self(), func(book Book) Ruling {
		ruled, refused = judge(s.cfg.Policy, s.cfg.Directory.Snapshot(), &sight, &book)
		return ruled
	})
	if err != nil {
		s.missed(ctx, &sight, err)
		return
	}
	s.lost, s.postgresDown = lost, time.Time{}
	s.refused.Add(int64(refused))
	s.judgedAt.Store(sight.Now.UnixMicro())
	s.announce(ctx, &ruled)
	s.tidy(ctx, sight.Now)
}

// missed remembers that Postgres was away, for the look that finds it again.
func (s *Service) missed(ctx context.Context, sight *Sight, err error) {
	if ctx.Err() != nil {
		return
	}
	if s.postgresDown.IsZero() && s.cfg.Self().Postgres == storeDown {
		s.postgresDown = sight.Now
	}
	if sight.Now.Sub(s.complainedAt) >= complainEvery {
		s.complainedAt = sight.Now
		s.cfg.Log.WarnContext(ctx, "alerts cannot be judged now", slog.Any("error", err))
	}
}

// announce says in the log what everybody else is told by mail.
func (s *Service) announce(ctx context.Context, ruled *Ruling) {
	say := func(level slog.Level, text string, changes []Change) {
		for i := range changes {
			in := &changes[i].Incident
			s.cfg.Log.LogAttrs(ctx, level, text, slog.String("kind", string(in.Kind)), slog.String("tenant", in.Tenant), slog.String("limit", in.Limit),
				slog.String("name", in.Name), slog.Float64("peak", in.Peak), slog.Time("since", in.Since))
		}
	}
	say(slog.LevelWarn, "incident opened", ruled.Open)
	say(slog.LevelInfo, "incident resolved", ruled.Resolve)
}

// tidy does now and then what need not be done often.
func (s *Service) tidy(ctx context.Context, now time.Time) {
	if waiting, open, err := s.cfg.Ledger.Queue(ctx); err == nil {
		s.waiting.Store(waiting)
		s.open.Store(open)
	}
	if now.Sub(s.tidiedAt) < tidyEvery {
		return
	}
	s.tidiedAt = now
	if err := s.cfg.Ledger.Tidy(ctx); err != nil && ctx.Err() == nil {
		s.cfg.Log.DebugContext(ctx, "old messages and incidents stay for now", slog.Any("error", err))
	}
}

// Stats are the numbers as they were last seen. It asks nobody.
func (s *Service) Stats() Stats {
	st := Stats{Open: s.open.Load(), Waiting: s.waiting.Load(), Refused: s.refused.Load()}
	if at := s.judgedAt.Load(); at != 0 {
		st.JudgedAt = time.UnixMicro(at)
	}
	return st
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
