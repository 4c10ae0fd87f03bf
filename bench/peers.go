package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/throttled/throttled/v2"
	throttledstore "github.com/throttled/throttled/v2/store/goredisstore.v9"
	ulule "github.com/ulule/limiter/v3"
	ululestore "github.com/ulule/limiter/v3/drivers/store/redis"
)

// plainLog is the sliding log as it is usually written: forget what is over, count, add. It answers whether there was room.
const plainLog = `
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - ARGV[2] * 1000))
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1`

const windowMS = "60000"

// library is a peer that decides about one hit on one key.
type library struct {
	name   string
	decide limiter
	// notHot: it fails when many callers meet on one counter.
	notHot bool
}

// libraryPeers opens the limiters of others, all on the same Redis.
func (l *libraries) libraryPeers(ctx context.Context) ([]library, error) {
	auto, err := l.client.AutoPipeline()
	if err != nil {
		return nil, fmt.Errorf("go-redis auto-pipeline: %w", err)
	}
	sha, err := l.client.ScriptLoad(ctx, plainLog).Result()
	if err != nil {
		return nil, err
	}
	l.rueidis, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{l.world.redis.Addr()}, DisableCache: true})
	if err != nil {
		return nil, fmt.Errorf("rueidis: %w", err)
	}
	fixed, err := l.ululeFixedWindow()
	if err != nil {
		return nil, err
	}
	gcra, err := l.throttledGCRA()
	if err != nil {
		return nil, err
	}
	return []library{
		{name: "redis_rate (GCRA)", decide: l.redisRate()},
		{name: "ulule/limiter (fixed window)", decide: fixed},
		{name: "throttled (GCRA, compare and swap)", decide: gcra, notHot: true},
		{name: "read, decide, write (sorted set)", decide: l.readDecideWrite},
		{name: "plain sliding log, go-redis", decide: logOver("gr", func(ctx context.Context, key string, args ...any) (int64, error) {
			return l.client.EvalSha(ctx, sha, []string{key}, args...).Int64()
		})},
		{name: "plain sliding log, go-redis AutoPipeline", decide: logOver("ap", func(ctx context.Context, key string, args ...any) (int64, error) {
			return auto.EvalSha(ctx, sha, []string{key}, args...).Int64()
		})},
		{name: "plain sliding log, rueidis", decide: rueidisLog(l.rueidis)},
	}, nil
}

// redisRate is the best-known Go limiter on go-redis.
func (l *libraries) redisRate() limiter {
	r := redis_rate.NewLimiter(l.client)
	return func(ctx context.Context, key string, quota int64) (bool, error) {
		answer, err := r.Allow(ctx, key, redis_rate.PerMinute(int(quota)))
		return err == nil && answer.Allowed == 1, err
	}
}

func (l *libraries) ululeFixedWindow() (limiter, error) {
	store, err := ululestore.NewStore(l.client)
	if err != nil {
		return nil, fmt.Errorf("ulule/limiter: %w", err)
	}
	return func(ctx context.Context, key string, quota int64) (bool, error) {
		answer, err := store.Increment(ctx, key, 1, ulule.Rate{Period: time.Minute, Limit: quota})
		return err == nil && !answer.Reached, err
	}, nil
}

// throttledGCRA always has the wide quota: the library takes it when the limiter is made.
func (l *libraries) throttledGCRA() (limiter, error) {
	store, err := throttledstore.NewCtx(l.client, "throttled:")
	if err != nil {
		return nil, fmt.Errorf("throttled: %w", err)
	}
	r, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerMin(wide), MaxBurst: wide})
	if err != nil {
		return nil, fmt.Errorf("throttled: %w", err)
	}
	return func(ctx context.Context, key string, _ int64) (bool, error) {
		limited, _, err := r.RateLimitCtx(ctx, key, 1)
		return err == nil && !limited, err
	}, nil
}

func logOver(prefix string, run func(ctx context.Context, key string, args ...any) (int64, error)) limiter {
	return func(ctx context.Context, key string, quota int64) (bool, error) {
		allowed, err := run(ctx, prefix+key, quota, windowMS, strconv.FormatInt(unique.Add(1), 36))
		return allowed == 1, err
	}
}

// rueidisLog is the plain log over the client that pipelines by itself.
func rueidisLog(client rueidis.Client) limiter {
	script := rueidis.NewLuaScript(plainLog)
	return func(ctx context.Context, key string, quota int64) (bool, error) {
		allowed, err := script.Exec(ctx, client, []string{"ru" + key},
			[]string{strconv.FormatInt(quota, 10), windowMS, strconv.FormatInt(unique.Add(1), 36)}).AsInt64()
		return allowed == 1, err
	}
}

// readDecideWrite is what one writes first: count what is in the window, compare here, then add. Two callers may read the
// same count.
func (l *libraries) readDecideWrite(ctx context.Context, key string, quota int64) (bool, error) {
	now := time.Now().UnixMicro()
	read := l.client.Pipeline()
	read.ZRemRangeByScore(ctx, "rdw:"+key, "-inf", strconv.FormatInt(now-time.Minute.Microseconds(), 10))
	count := read.ZCard(ctx, "rdw:"+key)
	if _, err := read.Exec(ctx); err != nil {
		return false, err
	}
	if count.Val() >= quota {
		return false, nil
	}
	write := l.client.Pipeline()
	write.ZAdd(ctx, "rdw:"+key, redis.Z{Score: float64(now), Member: fmt.Sprintf("%d-%d", now, unique.Add(1))})
	write.PExpire(ctx, "rdw:"+key, time.Minute)
	_, err := write.Exec(ctx)
	return err == nil, err
}

// single makes callers that decide about one key after the other and want one and the same verdict.
func single(decide limiter, keys int, quota int64) func(context.Context, int) (func() error, func(), error) {
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprintf("bench:%d", i)
	}
	return func(ctx context.Context, n int) (func() error, func(), error) {
		i := n * 7919
		call := func() error {
			i++
			allowed, err := decide(ctx, names[i*31%keys], quota)
			if err == nil && allowed != (quota > 0) {
				err = fmt.Errorf("allowed: %t, at a quota of %d", allowed, quota)
			}
			return err
		}
		return call, func() {}, nil
	}
}
