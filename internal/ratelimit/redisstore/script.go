package redisstore

import (
	"context"
	"crypto/sha1" // #nosec G505 -- Redis names scripts by it
	_ "embed"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

//go:embed struct.lua
var structScript string

//go:embed charge.lua
var chargeScript string

// script is charge.lua, or its variant for tests.
type script struct{ text, sha string }

func newScript(text string) script {
	sum := sha1.Sum([]byte(text)) // #nosec G401 -- not for security
	return script{text: text, sha: hex.EncodeToString(sum[:])}
}

// onTestClock is the script with its time taken from a last argument, and with expiries (which Redis compares with its
// own clock) put off by ten minutes.
func onTestClock(text string) string {
	return strings.NewReplacer(
		"local clock = call('TIME')\n", "",
		"local now = clock[1] * 1000000 + clock[2]\n", "local now = tonumber(table.remove(ARGV))\n",
		"call('PEXPIRE', key, ", "call('PEXPIRE', key, 600000 + ",
		"'PX', ", "'PX', 600000 + ",
	).Replace(text)
}

const (
	// batchMost is how many charges one EVALSHA settles: more would make other clients wait, and save nothing.
	batchMost = 32
	// countersMost and hitsMost are what the script's head of a charge has room for. hitsMost is above every quota, so
	// that it does not limit what is admitted.
	countersMost = 1<<10 - 1
	hitsMost     = int64(1)<<40 - 1
	// perCounter is how many integers answer one counter, perLeaky how many a leaky bucket.
	perCounter, perLeaky = 4, 6
)

// batch is the charges that one EVALSHA settles, by their index, and how many counters those have.
type batch struct {
	of     []int
	keys   int
	raises bool // for raise.lua, which takes no other charges
}

// add takes in a charge that `refuse` has nothing against.
func (b *batch) add(i int, c *ratelimit.Charge) {
	b.of = append(b.of, i)
	b.keys += len(c.Counters)
}

// kindOf is what the script calls 0 take, 1 peek, 2 refund.
func kindOf(c *ratelimit.Charge) ratelimit.Kind {
	if (c.Kind == ratelimit.Take && c.Cost <= 0) || c.Kind == ratelimit.Account {
		return ratelimit.Peek
	}
	return c.Kind
}

// codeOf is the script's number of an algorithm, 0 for one that Redis does not count by.
func codeOf(a ratelimit.Algorithm) int64 {
	switch a {
	case ratelimit.TokenBucket:
		return 1
	case ratelimit.LeakyBucket:
		return 2
	case ratelimit.FixedWindow:
		return 3
	case ratelimit.SlidingWindowCounter:
		return 4
	case ratelimit.SlidingWindowLog:
		return 5
	case ratelimit.SlidingWindowSegments:
	}
	return 0
}

// refuse is why a charge cannot be sent, nil when it can.
func refuse(c *ratelimit.Charge) error {
	if len(c.Counters) > countersMost {
		return fmt.Errorf("%w: a charge has at most %d counters", ratelimit.ErrCounter, countersMost)
	}
	for i := range c.Counters {
		if codeOf(c.Counters[i].Limit.Algorithm) == 0 {
			return fmt.Errorf("%w: Redis does not count by %q", ratelimit.ErrCounter, c.Counters[i].Limit.Algorithm)
		}
		if i > 0 && groupOf(c.Counters[i].Key) != groupOf(c.Counters[0].Key) {
			return fmt.Errorf("%w: counters of one charge belong to different groups", ratelimit.ErrCounter)
		}
	}
	return nil
}

// groupOf is what a key's cluster slot depends on: everything up to its first '}'.
func groupOf(k ratelimit.Key) string {
	return string(k)[:strings.IndexByte(string(k), '}')+1]
}

// command is one EVALSHA or EVAL. Nothing in go-redis may send it a second time on its own: its NoRetry says so to the
// cluster client, which would otherwise do that after a timeout.
type command struct{ *redis.IntSliceCmd }

// NoRetry keeps what may have been executed from being executed again.
func (command) NoRetry() bool { return true }

// ruled is a limit as the script knows it: with its mode, and for one cost.
type ruled struct {
	limit  *ratelimit.Limit
	cost   int64
	shadow bool
}

// command encodes the batch, as the head of charge.lua says. Name and which are EVALSHA and a digest, or EVAL and a script.
func (b *batch) command(ctx context.Context, name, which string, charges []ratelimit.Charge, latest int64, clock func() int64) command {
	limits := make([]ruled, 0, 8) // few: a plan's, of several plans at times
	plan := make([]byte, 0, 8*len(b.of)+2*b.keys)
	args := make([]any, 0, 16+b.keys)
	args = append(args, name, which, b.keys)
	for _, i := range b.of {
		c := &charges[i]
		head := min(max(0, c.Hits), hitsMost)
		plan = append(plan, byte(kindOf(c)), byte(len(c.Counters)>>8), byte(len(c.Counters)), //nolint:gosec // the lower bytes are meant
			byte(head>>32), byte(head>>24), byte(head>>16), byte(head>>8), byte(head)) //nolint:gosec // the lower bytes are meant
		for j := range c.Counters {
			counter := &c.Counters[j]
			args = append(args, string(counter.Key))
			rule := ruled{counter.Limit, c.Cost, counter.Shadow}
			at := slices.Index(limits, rule)
			if at < 0 {
				at, limits = len(limits), append(limits, rule)
			}
			plan = append(plan, byte(at>>8), byte(at)) //nolint:gosec // below batchMost x countersMost, which is below 2^15
		}
	}
	args = append(args, latest, plan)
	for _, l := range limits {
		args = l.appendTo(args)
	}
	if clock != nil {
		args = append(args, clock())
	}
	return command{redis.NewIntSliceCmd(ctx, args...)}
}

func (r ruled) appendTo(args []any) []any {
	code := codeOf(r.limit.Algorithm)
	if r.shadow {
		code += 8
	}
	span, refill := max(1, r.limit.Window.Microseconds()), int64(0)
	if r.limit.Algorithm.Bucket() {
		span, refill = max(1, r.limit.Refill.Every.Microseconds()), max(1, r.limit.Refill.Units)
	}
	return append(args, code, r.limit.Quota, r.limit.UnitsPerHit(r.cost), span, refill)
}

// Why the script could not settle a charge.
const (
	statusWrongType = 1 + iota
	statusDamaged
	statusHalfWritten
)

// answers puts a batch's reply into out, and returns the server's time in us; false when it is not a reply of the script.
func (b *batch) answers(reply []int64, charges []ratelimit.Charge, out []ratelimit.Outcome) (int64, bool) {
	if len(reply) == 0 {
		return 0, false
	}
	server, reply := reply[0], reply[1:]
	for _, i := range b.of {
		if len(reply) == 0 {
			return 0, false
		}
		admitted := reply[0]
		reply = reply[1:]
		c, o := &charges[i], &out[i]
		if admitted < 0 {
			o.Err = statusError(-admitted)
			continue
		}
		o.Admitted = min(admitted, c.Hits)
		if admitted == hitsMost || c.Kind == ratelimit.Refund {
			o.Admitted = c.Hits
		}
		o.Counters = slices.Grow(o.Counters, len(c.Counters))[:len(c.Counters)]
		for j := range c.Counters {
			limit, n := c.Counters[j].Limit, perCounter
			if limit.Algorithm == ratelimit.LeakyBucket {
				n = perLeaky
			}
			if len(reply) < n {
				return 0, false
			}
			answer(reply[:n], limit, &o.Counters[j])
			reply = reply[n:]
		}
		if c.Kind == ratelimit.Account {
			account(o)
		}
	}
	return server, len(reply) == 0
}

func answer(reply []int64, limit *ratelimit.Limit, s *ratelimit.CounterState) {
	quota := max(0, limit.Quota)
	used := min(max(0, reply[0]), quota)
	*s = ratelimit.CounterState{
		Used:       used,
		Remaining:  quota - used,
		RetryAfter: wait(reply[1]),
		ResetAfter: wait(reply[2]),
		Charged:    reply[3],
		Effective:  limit.Algorithm,
	}
	if len(reply) == perLeaky {
		s.Delay, s.DelayStep = wait(reply[4]), wait(reply[5])
	}
	if reply[1] < 0 {
		s.RetryAfter = ratelimit.Never
	}
}

// wait turns the script's microseconds into a Duration of 0…MaxSpan.
func wait(us int64) time.Duration {
	return time.Duration(min(max(0, us), ratelimit.MaxSpan.Microseconds())) * time.Microsecond
}
