package redisstore_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/redisstore"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// B015: microseconds and units have all their digits in what is stored and in what is answered.
func TestNumbersKeepTheirDigits(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	now := int64(1_790_000_000_123_457)
	store := newStore(t, redisstore.Config{URL: url, Timeout: 10 * time.Second, TestClock: func() int64 { return now }})
	limit := slidingLog(1000, time.Minute)
	group := tenant()
	key := string(countersOf(group, limit)[0].Key)

	decide(t, store, take(group, 1, limit))
	now++
	decide(t, store, take(group, 1, limit))
	entries, err := raw(t, url).ZRangeWithScores(t.Context(), key, 0, -1).Result()
	require.NoError(t, err)
	require.Len(t, entries, 2)
	require.Equal(t, int64(1_790_000_000_123_457), int64(entries[0].Score))
	require.Equal(t, int64(1_790_000_000_123_458), int64(entries[1].Score))

	for _, large := range oneOfEach(ratelimit.MaxQuota, ratelimit.MaxWindow) {
		charge := take(group, ratelimit.MaxQuota-1, large)
		out := decide(t, store, charge)
		require.Equal(t, ratelimit.MaxQuota-1, out[0].Admitted, large.Algorithm)
		require.Equal(t, ratelimit.MaxQuota-1, out[0].Counters[0].Used, large.Algorithm)
		require.Equal(t, int64(1), out[0].Counters[0].Remaining, large.Algorithm)
	}
}

// B032, B056: what the scripts touch is what they declare; nothing ever lists keys.
func TestTouchesOnlyTheKeysItDeclares(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	store := patient(t, server.URL())
	limits := append(oneOfEach(3, time.Minute), slidingLog(5000, time.Second))
	limits[5].Name = "large"
	group := tenant()
	lines := monitor(t, server.Addr(), func() {
		require.NoError(t, store.Ping(t.Context()))
		for range 5 {
			decide(t, store, take(group, 1, limits...), take(group, 2, limits[5]))
		}
		refund := take(group, 1, limits...)
		refund.Kind = ratelimit.Refund
		decide(t, store, refund)
		refund.Hits = 1000
		decide(t, store, refund)
	})
	declared := map[string]bool{"pegel:{probe}:probe": true}
	for _, c := range countersOf(group, limits...) {
		declared[string(c.Key)] = true
	}
	word := regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)
	touched := 0
	for _, line := range lines {
		if !strings.Contains(line, " lua] ") {
			continue
		}
		words := word.FindAllStringSubmatch(line, -1)
		require.NotContains(t, []string{"KEYS", "SCAN"}, strings.ToUpper(words[0][1]))
		if strings.EqualFold(words[0][1], "TIME") {
			continue
		}
		require.True(t, declared[words[1][1]], line)
		touched++
	}
	require.Greater(t, touched, 40)
	keys, err := raw(t, server.URL()).Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	for _, key := range keys {
		require.Regexp(t, `^pegel:[!-~]+$`, key)
		require.True(t, declared[key], key)
	}
}

// monitor returns what a server is told while f runs.
func monitor(t *testing.T, addr string, f func()) []string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	reader := bufio.NewReader(conn)
	_, err = fmt.Fprint(conn, "MONITOR\r\n")
	require.NoError(t, err)
	_, err = reader.ReadString('\n')
	require.NoError(t, err)
	f()
	const last = "monitored-enough"
	require.NoError(t, raw(t, "redis://"+addr).Echo(t.Context(), last).Err())
	var lines []string
	for {
		line, err := reader.ReadString('\n')
		require.NoError(t, err)
		if strings.Contains(line, last) {
			return lines
		}
		lines = append(lines, line)
	}
}

// B032: one charge is one slot, whatever the names, and tenants are spread over all of them.
func TestKeysOfAChargeShareASlot(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t, "--cluster-enabled", "yes")
	client := raw(t, server.URL())
	parts := []string{"", "{", "}", "{}", "a:b", "\x00", "é", "*", " ", "\n", "x{y}z"}
	slots := map[int64]bool{}
	for i := range 1000 {
		subject := ratelimit.Subject{Group: parts[rand.IntN(len(parts))] + fmt.Sprint(i), Scope: ratelimit.ScopeUser}
		want := int64(-1)
		for _, l := range oneOfEach(10, time.Minute) {
			subject.ID = parts[rand.IntN(len(parts))]
			slot, err := client.ClusterKeySlot(t.Context(), string(ratelimit.CounterKey(subject, l))).Result()
			require.NoError(t, err)
			if want < 0 {
				want = slot
			}
			require.Equal(t, want, slot)
		}
		slots[want] = true
	}
	require.Greater(t, len(slots), 900)
}

// A key of another type, or one that holds something else, harms the charge that needs it and no other.
func TestABadKeyHarmsItsOwnChargeOnly(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	store, client, ctx := patient(t, url), raw(t, url), t.Context()
	plant := map[string]func(key string){
		"another type": func(key string) { require.NoError(t, client.HSet(ctx, key, "f", "v").Err()) },
		"a list":       func(key string) { require.NoError(t, client.RPush(ctx, key, "v").Err()) },
		"garbage":      func(key string) { require.NoError(t, client.Set(ctx, key, "garbage", 0).Err()) },
		"empty":        func(key string) { require.NoError(t, client.Set(ctx, key, "", 0).Err()) },
		"a set of garbage": func(key string) {
			require.NoError(t, client.ZAdd(ctx, key, redis.Z{Score: 9e15, Member: "x"}, redis.Z{Score: 1.7e15, Member: "-1:z"}).Err())
		},
	}
	for name, plant := range plant {
		for _, bad := range oneOfEach(10, time.Minute) {
			good, group := slidingLog(10, time.Hour), tenant()
			key := string(countersOf(group, bad)[0].Key)
			plant(key)
			// The bad counter comes last: the good one of the same charge must not have been written by then.
			charges := []ratelimit.Charge{take(group, 1, good), take(group, 1, good, bad), take(group, 1, good)}
			out := make([]ratelimit.Outcome, 3)
			require.NoError(t, store.Decide(ctx, charges, out), "%s, %s", name, bad.Algorithm)
			require.NoError(t, out[0].Err)
			require.ErrorIs(t, out[1].Err, ratelimit.ErrCounter, "%s, %s", name, bad.Algorithm)
			require.NotErrorIs(t, out[1].Err, ratelimit.ErrUnavailable)
			require.NoError(t, out[2].Err)
			require.EqualValues(t, 2, out[2].Counters[0].Used, "the bad charge took nothing")
			require.NoError(t, client.Del(ctx, key).Err())
		}
	}
}

// Damage in the middle of a log is met only when something has to be searched there: by a refund, which then fails alone.
func TestADamagedLogHarmsItsOwnChargeOnly(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	store, client := patient(t, url), raw(t, url)
	damaged, group := slidingLog(10, time.Hour), tenant()
	key := string(countersOf(group, damaged)[0].Key)
	var entries []redis.Z
	for i := range 10 {
		entries = append(entries, redis.Z{Score: float64(time.Now().UnixMicro() + int64(i)), Member: fmt.Sprintf("x%d", i)})
	}
	for _, i := range []int{0, 9} {
		entries[i].Member = entry(entries[i].Score, float64(i+1), 1)
	}
	require.NoError(t, client.ZAdd(t.Context(), key, entries...).Err())
	others := oneOfEach(10, time.Hour)[1:]
	refund := take(group, 5, append([]*ratelimit.Limit{damaged}, others...)...)
	refund.Kind = ratelimit.Refund
	charges, out := []ratelimit.Charge{take(group, 1, others...), refund, take(group, 1, others...)}, make([]ratelimit.Outcome, 3)
	require.NoError(t, store.Decide(t.Context(), charges, out))
	require.NoError(t, out[0].Err)
	require.ErrorIs(t, out[1].Err, ratelimit.ErrCounter)
	require.NoError(t, out[2].Err)

	// A refusal still comes, with a wait that is long enough.
	denied := decide(t, store, take(group, 1, damaged))[0]
	require.Zero(t, denied.Admitted)
	require.Positive(t, denied.Counters[0].RetryAfter)
	require.LessOrEqual(t, denied.Counters[0].RetryAfter, denied.Counters[0].ResetAfter)
}

// B002: a key that lost its expiry by hand has one again after the next hit that is admitted.
func TestALostExpiryHeals(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	store, client, ctx := patient(t, url), raw(t, url), t.Context()
	for _, limit := range append(oneOfEach(1000, time.Second), slidingLog(5000, time.Second)) {
		group := tenant()
		key := string(countersOf(group, limit)[0].Key)
		decide(t, store, take(group, 1, limit))
		require.NoError(t, client.Persist(ctx, key).Err())
		require.Eventually(t, func() bool {
			_, failed := try(ctx, store, take(group, 1, limit))
			ttl, err := client.PTTL(ctx, key).Result()
			return failed == nil && err == nil && ttl > 0
		}, 2*time.Second, 5*time.Millisecond, limit.Name)
	}
}

// B002: whatever happens to connections, every key expires, a little after its window.
func TestEveryKeyExpires(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	store := newStore(t, redisstore.Config{URL: server.URL(), Timeout: time.Second, PoolSize: 8})
	client, ctx := raw(t, server.URL()), t.Context()
	limits := append(oneOfEach(50, time.Minute), slidingLog(5000, time.Minute))
	limits[5].Name = "large"
	groups := []string{tenant(), tenant(), tenant(), tenant()}

	failed, done := 0, make(chan struct{})
	go func() {
		defer close(done)
		for range 40 {
			client.ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes")
			time.Sleep(2 * time.Millisecond)
		}
	}()
	for i := range 2500 {
		charge := take(groups[rand.IntN(len(groups))], rand.Int64N(3)+1, limits[rand.IntN(len(limits))], limits[5])
		if charge.Counters[0].Key == charge.Counters[1].Key {
			charge.Counters = charge.Counters[:1]
		}
		if i%10 == 0 {
			charge.Kind = ratelimit.Refund
		}
		if _, err := try(ctx, store, charge); err != nil {
			require.ErrorIs(t, err, ratelimit.ErrUnavailable)
			failed++
		}
	}
	<-done
	require.Positive(t, failed, "connections were killed")
	keys, err := client.Keys(ctx, "*").Result()
	require.NoError(t, err)
	require.NotEmpty(t, keys)
	for _, key := range keys {
		ttl, err := client.PTTL(ctx, key).Result()
		require.NoError(t, err)
		require.Positive(t, ttl, key)
		require.LessOrEqual(t, ttl, 3*time.Minute+5*time.Second, key)
	}
}

// B035, B068: a log's memory does not grow with its quota, nor with the cost of its hits.
func TestMemoryOfALogIsBounded(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	now := int64(1_790_000_000_000_000)
	store := newStore(t, redisstore.Config{URL: url, Timeout: 10 * time.Second, TestClock: func() int64 { return now }})
	client, ctx := raw(t, url), t.Context()
	for _, quota := range []int64{1024, 20_000, 1_000_000} {
		limit, group := slidingLog(quota, time.Minute), tenant()
		key := string(countersOf(group, limit)[0].Key)
		steps := min(quota, 10_000)
		for range steps / 100 {
			charges := make([]ratelimit.Charge, 100)
			for i := range charges {
				charges[i] = take(group, quota/steps, limit)
			}
			now += time.Minute.Microseconds() / (steps / 100)
			decide(t, store, charges...)
		}
		// And once more, spread evenly, so that every slot has its entry.
		for range 2000 {
			now += 30_000
			decide(t, store, take(group, 1, limit))
		}
		bytes, err := client.MemoryUsage(ctx, key, 0).Result()
		require.NoError(t, err)
		entries, err := client.ZCard(ctx, key).Result()
		require.NoError(t, err)
		t.Logf("quota %d: %d entries, %d bytes", quota, entries, bytes)
		require.LessOrEqual(t, bytes, int64(144<<10))
		require.LessOrEqual(t, entries, int64(1025))
	}
}

// B004: what comes in one tick stays apart, for small quotas one entry each.
func TestHitsOfOneTickAreApart(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	frozen := redisstore.Config{URL: url, Timeout: 10 * time.Second, TestClock: func() int64 { return 1_790_000_000_000_000 }}
	stores := []ratelimit.Store{newStore(t, frozen), newStore(t, frozen)}
	limit, group := slidingLog(5, time.Minute), tenant()
	var admitted int64
	for i := range 10 {
		admitted += decide(t, stores[i%2], take(group, 1, limit))[0].Admitted
	}
	require.EqualValues(t, 5, admitted)
	n, err := raw(t, url).ZCard(t.Context(), string(countersOf(group, limit)[0].Key)).Result()
	require.NoError(t, err)
	require.EqualValues(t, 5, n)
}

// A hit that joins the only live entry, while many units before it have expired, replaces that entry and nothing else goes.
func TestTrimmingSparesTheMergedEntry(t *testing.T) {
	t.Parallel()
	const window = int64(3_600_000_000) // its slots are 4 s
	start := 1_790_000_000_000_000 / window * window
	var now int64
	store := newStore(t, redisstore.Config{URL: testenv.Redis(t), Timeout: 10 * time.Second, TestClock: func() int64 { return now }})
	limit, group := slidingLog(20_000, time.Hour), tenant()
	for _, step := range []struct{ at, hits, admitted, used int64 }{
		{start + 1_000_000, 10_000, 10_000, 10_000},
		{start + window + 500_000, 5_000, 5_000, 15_000},
		{start + window + 2_000_000, 5_000, 5_000, 10_000}, // the first entry is gone, the second one's slot goes on
		{start + window + 2_000_000, 20_000, 10_000, 20_000},
	} {
		now = step.at
		out := decide(t, store, take(group, step.hits, limit))[0]
		require.Equal(t, step.admitted, out.Admitted)
		require.Equal(t, step.used, out.Counters[0].Used)
	}
}
