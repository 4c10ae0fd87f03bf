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
		"local clock = redis.pcall('TIME')\n", "",
		"local now = clock[1] * 1000000 + clock[2]\n", "local now = tonumber(table.remove(ARGV))\n",
		"redis.pcall('PEXPIRE', key, ", "redis.pcall('PEXPIRE', key, 600000 + ",
		"'PX', ", "'PX', 600000 + ",
	).Replace(text)
}

const (
	// batchMost is how many charges one EVALSHA settles: more would make other clients wait, and save nothing.
	batchMost = 32
	// countersMost and hitsMost are what the script's head of a charge has room for. hitsMost is above every quota, so
	// that it does not limit what is admitted.
	countersMost = 1<<10 - 1
	hitsMost     = int64(1) << 40
	// perCounter is how many integers answer one counter.
	perCounter = 6
)

// batch is the charges that one EVALSHA settles, by their index, and how many arguments and keys those have.
type batch struct {
	of     []int
	args   int
	keys   int
	raises bool // for raise.lua, which takes no other charges
}

// argsMost is how many arguments a counter has at most.
const argsMost = 5

// add takes in a charge that `refuse` has nothing against.
func (b *batch) add(i int, c *ratelimit.Charge) {
	b.of = append(b.of, i)
	b.args += 1 + argsMost*len(c.Counters)
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

// command encodes the batch, as the head of charge.lua says. Name and which are EVALSHA and a digest, or EVAL and a script.
func (b *batch) command(ctx context.Context, name, which string, charges []ratelimit.Charge, latest int64, clock func() int64) command {
	args := make([]any, 0, 5+b.keys+b.args)
	args = append(args, name, which, b.keys)
	for _, i := range b.of {
		for j := range charges[i].Counters {
			args = append(args, string(charges[i].Counters[j].Key))
		}
	}
	args = append(args, latest)
	for _, i := range b.of {
		args = appendCharge(args, &charges[i])
	}
	if clock != nil {
		args = append(args, clock())
	}
	return command{redis.NewIntSliceCmd(ctx, args...)}
}

func appendCharge(args []any, c *ratelimit.Charge) []any {
	args = append(args, int64(kindOf(c))+4*int64(len(c.Counters))+4096*min(c.Hits, hitsMost))
	for j := range c.Counters {
		counter := &c.Counters[j]
		limit := counter.Limit
		code := codeOf(limit.Algorithm)
		if counter.Shadow {
			code += 8
		}
		args = append(args, code, limit.Quota, limit.UnitsPerHit(c.Cost))
		if limit.Algorithm.Bucket() {
			args = append(args, max(1, limit.Refill.Every.Microseconds()), max(1, limit.Refill.Units))
		} else {
			args = append(args, max(1, limit.Window.Microseconds()))
		}
	}
	return args
}

// What the script says of a charge that it could not settle.
const (
	statusSettled = iota
	statusWrongType
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
		if len(reply) < 2 {
			return 0, false
		}
		status, admitted := reply[0], reply[1]
		reply = reply[2:]
		c, o := &charges[i], &out[i]
		if status != statusSettled {
			o.Err = statusError(status)
			continue
		}
		if len(reply) < perCounter*len(c.Counters) {
			return 0, false
		}
		o.Admitted = min(max(0, admitted), c.Hits)
		if admitted == hitsMost || c.Kind == ratelimit.Refund {
			o.Admitted = c.Hits
		}
		o.Counters = slices.Grow(o.Counters, len(c.Counters))[:len(c.Counters)]
		for j := range c.Counters {
			answer(reply[:perCounter], c.Counters[j].Limit, &o.Counters[j])
			reply = reply[perCounter:]
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
		Delay:      wait(reply[4]),
		DelayStep:  wait(reply[5]),
		Effective:  limit.Algorithm,
	}
	if reply[1] < 0 {
		s.RetryAfter = ratelimit.Never
	}
}

// wait turns the script's microseconds into a Duration of 0…MaxSpan.
func wait(us int64) time.Duration {
	return time.Duration(min(max(0, us), ratelimit.MaxSpan.Microseconds())) * time.Microsecond
}
