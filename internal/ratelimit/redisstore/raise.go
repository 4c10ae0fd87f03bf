package redisstore

import (
	"context"
	_ "embed"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

//go:embed raise.lua
var raiseScript string

// raising encodes a batch of raises, as the head of raise.lua says.
func (b *batch) raising(ctx context.Context, text string, charges []ratelimit.Charge, latest int64, clock func() int64) command {
	args := append(make([]any, 0, 5+7*b.keys+len(b.of)), "eval", text, b.keys)
	for _, i := range b.of {
		for j := range charges[i].Counters {
			args = append(args, string(charges[i].Counters[j].Key))
		}
	}
	args = append(args, latest)
	for _, i := range b.of {
		c := &charges[i]
		args = append(args, len(c.Counters))
		for j := range c.Counters {
			limit := c.Counters[j].Limit
			span, refill := max(1, limit.Window.Microseconds()), int64(0)
			if limit.Algorithm.Bucket() {
				span, refill = max(1, limit.Refill.Every.Microseconds()), max(1, limit.Refill.Units)
			}
			args = append(args, codeOf(limit.Algorithm), limit.Quota, span, refill, portionsOf(c.KnownOf(j)))
		}
	}
	if clock != nil {
		args = append(args, clock())
	}
	return command{redis.NewIntSliceCmd(ctx, args...)}
}

func portionsOf(known []ratelimit.Portion) string {
	var b []byte
	for _, p := range known {
		b = strconv.AppendInt(b, max(0, p.Age.Microseconds()), 10)
		b = append(b, ':')
		b = strconv.AppendInt(b, max(0, p.Units), 10)
		b = append(b, ',')
	}
	return string(b)
}

// raised puts a reply of raise.lua into out, and returns the server's time in us; false when it is not one.
func (b *batch) raised(reply []int64, charges []ratelimit.Charge, out []ratelimit.Outcome) (int64, bool) {
	if len(reply) != 1+len(b.of) {
		return 0, false
	}
	for n, i := range b.of {
		if status := reply[1+n]; status != 0 {
			out[i].Err = statusError(status)
			continue
		}
		out[i].Admitted = charges[i].Hits
		out[i].Counters = make([]ratelimit.CounterState, len(charges[i].Counters))
	}
	return reply[0], true
}

// account says of the units used that they may all be from now.
func account(o *ratelimit.Outcome) {
	o.Portions = make([][]ratelimit.Portion, len(o.Counters))
	for j := range o.Counters {
		if used := o.Counters[j].Used; used > 0 {
			o.Portions[j] = []ratelimit.Portion{{Units: used}}
		}
	}
}
