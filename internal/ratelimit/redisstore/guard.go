package redisstore

import (
	"sync"
	"time"
)

const (
	// guardSlack is how far the server's time may be ahead of what the last reply and the time since predict.
	guardSlack = int64(time.Minute / time.Microsecond)
	// guardStep is how often a clock that jumped is followed by another guardSlack.
	guardStep = time.Minute
)

// guard keeps a forward jump of the server's clock from refilling every bucket: it tells the script the latest time to
// believe, which is the last reply's time plus what has passed here since plus one minute. After a jump of an hour a bucket
// is credited one minute at once and then about one more per minute, until the hour has been caught up with.
//
// What it cannot do: keep a key from expiring (Redis compares expiries with the jumped clock; buckets have a margin of two
// minutes), help a process that first saw the server after the jump, or help while no replica asks at all.
type guard struct {
	now func() time.Time // monotonic; nil believes any time

	mu     sync.Mutex
	seen   int64     // us: the server's time at `at`; 0 before the first reply
	at     time.Time // when it was that
	jumped time.Time // when a clock that had jumped was last followed; zero: it is plausible
}

// latest is the latest believable time of the server in us, 0 when nothing is known about it.
func (g *guard) latest() int64 {
	if g.now == nil {
		return 0
	}
	now := g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.seen == 0 {
		return 0
	}
	return g.expected(now) + guardSlack
}

// observe learns from a reply.
func (g *guard) observe(server int64) {
	if g.now == nil {
		return
	}
	now := g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.seen == 0 || server <= g.expected(now)+guardSlack:
		g.seen, g.at, g.jumped = server, now, time.Time{}
	case g.jumped.IsZero():
		g.jumped = now
	case now.Sub(g.jumped) >= guardStep:
		g.seen, g.at, g.jumped = g.expected(now)+guardSlack, now, now
	}
}

// expected is the server's time if nobody sets its clock.
func (g *guard) expected(now time.Time) int64 { return g.seen + now.Sub(g.at).Microseconds() }
