package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// Config says where Redis is and how long to wait for it.
type Config struct {
	// URL is one of
	//   redis://[user:password@]host[:6379][/db]            one server (rediss:// for TLS)
	//   redis://[user:password@]host:port,host:port,…       a Cluster, by some of its nodes (or one, with ?cluster=true)
	//   redis+sentinel://[user:password@]host[:26379],…/master[/db][?sentinel_username=…&sentinel_password=…]
	//                                                       what Sentinel calls the master (rediss+sentinel:// for TLS)
	// Special characters in a password, commas included, are percent-encoded. It never appears in an error or a log.
	URL string
	// Timeout is the hard deadline of one call, waiting for a connection and dialling included; 0 means 50 ms. A server
	// that a connection (with TLS: three round trips) cannot be made to within it cannot be used.
	Timeout time.Duration
	// PoolSize is how many connections there are at most, per node of a Cluster; 0 means 100.
	PoolSize int
	// TLS overrides the settings of rediss:// URLs; nil means TLS 1.2 or later and the system's authorities.
	TLS *tls.Config
	// Now is a monotonic clock (time.Now), required. It never decides anything; it only bounds what a jump of the
	// server's clock can do (see guard).
	Now func() time.Time
	// Tracing makes a span of every call, without keys and arguments; nil: none.
	Tracing trace.TracerProvider
	// TestClock is for tests only: microseconds since the epoch that the script uses instead of the server's time. With it,
	// Now may be nil: then any jump is believed.
	TestClock func() int64

	lives *lives // set by New
}

// The defaults of Config.
const (
	DefaultTimeout  = 50 * time.Millisecond
	DefaultPoolSize = 100
)

// Store is a ratelimit.Store on Redis.
type Store struct {
	config Config
	target *target
	log    *slog.Logger
	script script
	raise  string // raise.lua, or its variant for tests
	guard  *guard

	client  atomic.Pointer[redis.UniversalClient]
	renewal sync.Mutex // held while the client is replaced
	renewed time.Time  // when that last happened
	closed  bool
}

var _ ratelimit.Store = (*Store)(nil)

// renewEvery bounds how often READONLY makes a store replace its connections: a server that stays read-only is left alone
// in between.
const renewEvery = time.Second

// New makes a Store without contacting Redis. It also sends go-redis's log, which is one per process, to log at level debug.
func New(cfg Config, log *slog.Logger) (*Store, error) {
	target, err := parseURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	if cfg.Now == nil && cfg.TestClock == nil {
		return nil, errors.New("redisstore: Config.Now is missing")
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.PoolSize <= 0 {
		cfg.PoolSize = DefaultPoolSize
	}
	text, raise := structScript+chargeScript, structScript+raiseScript
	if cfg.TestClock != nil {
		text, raise = onTestClock(text), onTestClock(raise)
	}
	cfg.lives = newLives(cfg.Now)
	s := &Store{config: cfg, target: target, log: log, script: newScript(text), raise: raise, guard: &guard{now: cfg.Now}}
	redis.SetLogger(libraryLog{log: log, secrets: target.secrets()})
	client := cfg.open(target)
	s.client.Store(&client)
	return s, nil
}

// Source is SourceRedis.
func (*Store) Source() ratelimit.Source { return ratelimit.SourceRedis }

// Close closes every connection. Calls that are under way fail.
func (s *Store) Close() error {
	s.renewal.Lock()
	defer s.renewal.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return (*s.client.Load()).Close()
}

// Decide settles the charges in order: see ratelimit.Store. Charges of different groups may go to different nodes of a
// cluster and be settled at the same time.
func (s *Store) Decide(ctx context.Context, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
	batches := s.batches(charges, out)
	if len(batches) == 0 {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	if err := s.send(call, batches, charges, out); err != nil {
		return unavailable(ctx, err)
	}
	return nil
}

// batches cuts the charges into what single EVALSHAs settle, and answers those that need none. One charge has one group;
// on a cluster a batch has one, too, and so one slot.
func (s *Store) batches(charges []ratelimit.Charge, out []ratelimit.Outcome) []*batch {
	var all []*batch
	var open map[string]*batch // of a cluster, by group
	var last *batch
	if s.target.cluster {
		open = make(map[string]*batch)
	}
	for i := range charges {
		c := &charges[i]
		out[i] = ratelimit.Outcome{Source: ratelimit.SourceRedis, Counters: out[i].Counters[:0]}
		if len(c.Counters) == 0 {
			out[i].Admitted = c.Hits
			continue
		}
		if out[i].Err = refuse(c); out[i].Err != nil {
			continue
		}
		b, group := last, ""
		if open != nil {
			group = groupOf(c.Counters[0].Key)
			b = open[group]
		}
		if b == nil || len(b.of) == batchMost || b.raises != (c.Kind == ratelimit.Raise) {
			b = &batch{raises: c.Kind == ratelimit.Raise}
			all = append(all, b)
			if last = b; open != nil {
				open[group] = b
			}
		}
		b.add(i, c)
	}
	return all
}

// send sends the batches, and those that were provably not executed once more.
func (s *Store) send(ctx context.Context, batches []*batch, charges []ratelimit.Charge, out []ratelimit.Outcome) error {
	client := *s.client.Load()
	name, which := "evalsha", s.script.sha
	for attempt := 0; ; attempt++ {
		commands := make([]command, len(batches))
		latest := s.guard.latest()
		for i, b := range batches {
			if b.raises {
				commands[i] = b.raising(ctx, s.raise, charges, latest, s.config.TestClock)
				continue
			}
			commands[i] = b.command(ctx, name, which, charges, latest, s.config.TestClock)
		}
		process(ctx, client, commands)
		again, err := s.receive(commands, batches, charges, out)
		if err == nil || len(again) == 0 || attempt == 2 || ctx.Err() != nil {
			return err
		}
		if redis.IsReadOnlyError(err) {
			if client = s.renew(client); client == nil {
				return err
			}
		} else {
			name, which = "eval", s.script.text
		}
		batches = again
	}
}

// process sends the commands in one round trip per node. Their errors are in the commands.
func process(ctx context.Context, client redis.UniversalClient, commands []command) {
	if len(commands) == 1 {
		_ = client.Process(ctx, commands[0])
		return
	}
	pipeline := client.Pipeline()
	for _, c := range commands {
		_ = pipeline.Process(ctx, c)
	}
	_, _ = pipeline.Exec(ctx)
}

// receive reads the replies. Its error is the worst one; again are the batches to send once more, which there are none of
// when any batch failed for good.
func (s *Store) receive(commands []command, batches []*batch, charges []ratelimit.Charge, out []ratelimit.Outcome) (again []*batch, failed error) {
	for i, c := range commands {
		reply, err := c.Result()
		switch {
		case err == nil:
			read := batches[i].answers
			if batches[i].raises {
				read = batches[i].raised
			}
			server, ok := read(reply, charges, out)
			if !ok {
				return nil, errReply
			}
			s.guard.observe(server)
		case noScript(err):
			again = append(again, batches[i])
			if failed == nil {
				failed = err
			}
		case redis.IsReadOnlyError(err):
			again, failed = append(again, batches[i]), err
		default:
			return nil, err
		}
	}
	return again, failed
}

// renew replaces the client whose connections lead to a server that has become a replica: the name may lead elsewhere now.
// It returns the client to try instead, nil when there is none.
func (s *Store) renew(stale redis.UniversalClient) redis.UniversalClient {
	s.renewal.Lock()
	defer s.renewal.Unlock()
	current := *s.client.Load()
	if current != stale {
		return current
	}
	now := s.config.Now()
	if s.closed || s.target.cluster || (!s.renewed.IsZero() && now.Sub(s.renewed) < renewEvery) {
		return nil
	}
	s.renewed = now
	client := s.config.open(s.target)
	s.client.Store(&client)
	// The breaker says once that Redis is away; this comes every second for as long as it stays read-only.
	s.log.Debug("Redis is read-only; connecting anew")
	if err := stale.Close(); err != nil {
		s.log.Debug("close Redis connections", slog.Any("error", err))
	}
	return client
}
