package redisstore

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// probe is the counter that Ping charges, which is also how a loss of counters is noticed (lives).
const (
	probe       = ratelimit.Key("pegel:{probe}:probe")
	probeWindow = time.Minute
)

// Ping reports whether Redis takes charges: it makes one through the real script. (A server that is full, read-only or
// loading still answers PING.) On a cluster it asks one node.
func (s *Store) Ping(ctx context.Context) error {
	limit := &ratelimit.Limit{
		Name: "probe", Scope: ratelimit.ScopeTenant, Algorithm: ratelimit.FixedWindow,
		Quota: ratelimit.MaxQuota, Window: probeWindow, Cost: 1,
	}
	charges := []ratelimit.Charge{{Counters: []ratelimit.Counter{{Key: probe, Limit: limit}}, Hits: 1, Cost: 1}}
	out := make([]ratelimit.Outcome, 1)
	if err := s.Decide(ctx, charges, out); err != nil {
		return err
	}
	if out[0].Err == nil { // else somebody put a foreign value under the probe's key: Redis takes charges all the same
		s.config.lives.probed(&out[0])
	}
	return nil
}

// Info is what a server says of itself. What it does not say is empty.
type Info struct {
	Version string
	// MaxmemoryPolicy has to be "noeviction", or counters are forgotten when memory is short.
	MaxmemoryPolicy string
	// Maxmemory is in bytes; 0: no limit.
	Maxmemory int64
	// AppendOnly is whether counters survive a restart.
	AppendOnly bool
}

// Info asks a server (on a cluster: any) about itself, within the Store's Timeout.
func (s *Store) Info(ctx context.Context) (Info, error) {
	call, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	text, err := (*s.client.Load()).Info(call).Result()
	if err != nil {
		return Info{}, unavailable(ctx, err)
	}
	var info Info
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "redis_version":
			info.Version = value
		case "maxmemory_policy":
			info.MaxmemoryPolicy = value
		case "maxmemory":
			info.Maxmemory, _ = strconv.ParseInt(value, 10, 64)
		case "aof_enabled":
			info.AppendOnly = value == "1"
		}
	}
	return info, nil
}
