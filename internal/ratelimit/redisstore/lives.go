package redisstore

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// lives notices that counters may be gone: a server answers that is not the one from before (each connection asks, before it
// is used, for the id that a server takes at its start), or the counter that Ping charges has fallen back within its window.
//
// What it cannot notice: a server that may not be asked (INFO denied), and on a cluster a flush of a node that Ping does not
// ask.
type lives struct {
	now func() time.Time // monotonic

	mu      sync.Mutex
	servers map[string]string // the id of the server at each address; "" is where the store's one name leads
	pings   int64             // what the probe counter showed last
	until   time.Time         // how long it cannot fall
	state   atomic.Pointer[life]
}

type life struct {
	count uint64
	since time.Time
}

func newLives(now func() time.Time) *lives {
	l := &lives{now: now, servers: make(map[string]string)}
	l.state.Store(&life{})
	return l
}

// Lives says how often another server, or an empty one, has been met, and since when the present counters can have been
// there: since the server's start at first. The zero time: nothing is known.
func (s *Store) Lives() (count uint64, since time.Time) {
	l := s.config.lives.state.Load()
	return l.count, l.since
}

// met notes what a server says of itself. One at an address not known before may have all its counters, as old as itself;
// another one at a known address may have none.
func (l *lives) met(addr, id string, uptime time.Duration) {
	if id == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before, known := l.servers[addr]
	l.servers[addr] = id
	switch {
	case !known:
		l.begin(l.now().Add(-uptime))
	case before != id:
		l.begin(l.now())
	}
}

// pinged notes what the probe counter shows, which rises with every ping of any replica until its window ends.
func (l *lives) pinged(used int64, whole time.Duration) {
	if l.now == nil {
		return
	}
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if used <= l.pings && now.Before(l.until) {
		l.begin(now)
	}
	l.pings, l.until = used, now.Add(whole-pingSlack)
}

// pingSlack is how far the server's clock may step forward between two pings without looking like a loss.
const pingSlack = 2 * time.Second

// begin starts another life, which has no earlier counters than from then.
func (l *lives) begin(since time.Time) {
	was := l.state.Load()
	if since.Before(was.since) {
		since = was.since
	}
	l.state.Store(&life{count: was.count + 1, since: since})
}

// ask is what every new connection to an address does first.
func (l *lives) ask(addr string) func(context.Context, *redis.Conn) error {
	if l == nil || l.now == nil {
		return nil
	}
	return func(ctx context.Context, conn *redis.Conn) error {
		text, err := conn.Info(ctx, "server").Result()
		if err != nil {
			if isReply(err) {
				return nil // it may not be asked, or has no such section
			}
			return err
		}
		var id string
		var uptime time.Duration
		for line := range strings.Lines(text) {
			switch name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name {
			case "run_id":
				id = value
			case "uptime_in_seconds":
				seconds, _ := strconv.ParseInt(value, 10, 32)
				uptime = time.Duration(seconds) * time.Second
			}
		}
		l.met(addr, id, uptime)
		return nil
	}
}

// probed reads the answer to a ping.
func (l *lives) probed(out *ratelimit.Outcome) {
	if len(out.Counters) == 1 {
		l.pinged(out.Counters[0].Used, out.Counters[0].ResetAfter)
	}
}
