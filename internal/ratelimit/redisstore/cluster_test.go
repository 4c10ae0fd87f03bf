package redisstore_test

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/redisstore"
	"github.com/pegel-dev/pegel/internal/ratelimit/storetest"
	"github.com/pegel-dev/pegel/internal/testenv"
)

const slotCount = 16384

// node is a master of a cluster.
type node struct {
	*redis.Client
	id, host, port string
}

// startCluster makes a cluster of three masters with a third of the slots each.
func startCluster(t *testing.T) []node {
	t.Helper()
	ctx := t.Context()
	nodes := make([]node, 3)
	for i := range nodes {
		bus, err := net.Listen("tcp", "127.0.0.1:0") // a port of its own for the bus: 10000 above may be none
		require.NoError(t, err)
		_, busPort, _ := net.SplitHostPort(bus.Addr().String())
		require.NoError(t, bus.Close())
		server := testenv.RedisServer(t, "--cluster-enabled", "yes", "--cluster-port", busPort)
		n := node{Client: raw(t, server.URL())}
		n.host, n.port, _ = net.SplitHostPort(server.Addr())
		require.NoError(t, n.ClusterAddSlotsRange(ctx, i*slotCount/3, (i+1)*slotCount/3-1).Err())
		n.id, err = n.Do(ctx, "CLUSTER", "MYID").Text()
		require.NoError(t, err)
		nodes[i] = n
		if i > 0 {
			require.NoError(t, nodes[0].Do(ctx, "CLUSTER", "MEET", n.host, n.port, busPort).Err())
		}
	}
	if last := 3 * (slotCount / 3); last < slotCount {
		_ = nodes[2].ClusterAddSlotsRange(ctx, last, slotCount-1).Err()
	}
	require.Eventually(t, func() bool {
		for _, n := range nodes {
			if info := n.ClusterInfo(ctx).Val(); !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_known_nodes:3") {
				return false
			}
		}
		return true
	}, 30*time.Second, 50*time.Millisecond)
	return nodes
}

// B032: tenants are spread over a cluster, batches of many of them are settled, forgotten scripts are sent anew, and a slot
// that moves under load costs nobody an error.
func TestCluster(t *testing.T) {
	t.Parallel()
	nodes, ctx := startCluster(t), t.Context()
	store := newStore(t, redisstore.Config{
		URL: fmt.Sprintf("redis://%s:%s,%s:%s", nodes[0].host, nodes[0].port, nodes[1].host, nodes[1].port), Timeout: 10 * time.Second,
	})
	require.NoError(t, store.Ping(ctx))
	limits := oneOfEach(10, time.Hour)
	var charges []ratelimit.Charge
	for range 100 {
		group := tenant()
		for range 3 {
			charges = append(charges, take(group, 4, limits...))
		}
	}
	for i, out := range decide(t, store, charges...) {
		require.Equal(t, []int64{4, 4, 2}[i%3], out.Admitted, "charges of one group act in order")
	}
	for _, n := range nodes {
		require.Positive(t, n.DBSize(ctx).Val())
		require.NoError(t, n.ScriptFlush(ctx).Err())
	}
	for _, out := range decide(t, store, charges...) {
		require.Zero(t, out.Admitted)
	}

	limit, group := slidingLog(ratelimit.MaxQuota, time.Hour), tenant()
	var stop atomic.Bool
	var counted atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !stop.Load() {
				charges := []ratelimit.Charge{take(group, 1, limit), take(tenant(), 1, limit)}
				out := make([]ratelimit.Outcome, 2)
				if err := store.Decide(ctx, charges, out); err != nil {
					t.Error(err)
					return
				}
				counted.Add(1)
			}
		})
	}
	key := string(countersOf(group, limit)[0].Key)
	for range 4 {
		moveSlot(t, nodes, key)
	}
	stop.Store(true)
	wg.Wait()
	peek := take(group, 1, limit)
	peek.Kind = ratelimit.Peek
	require.Equal(t, counted.Load(), decide(t, store, peek)[0].Counters[0].Used, "and nothing was counted twice")
}

// moveSlot moves a key's slot to the next master, with what is in it.
func moveSlot(t *testing.T, nodes []node, key string) {
	t.Helper()
	ctx := t.Context()
	slot, err := nodes[0].ClusterKeySlot(ctx, key).Result()
	require.NoError(t, err)
	from := -1
	for i, n := range nodes {
		if _, err := n.Exists(ctx, key).Result(); err == nil {
			from = i
		}
	}
	require.GreaterOrEqual(t, from, 0)
	source, target := nodes[from], nodes[(from+1)%len(nodes)]
	number := strconv.FormatInt(slot, 10)
	require.NoError(t, target.Do(ctx, "CLUSTER", "SETSLOT", number, "IMPORTING", source.id).Err())
	require.NoError(t, source.Do(ctx, "CLUSTER", "SETSLOT", number, "MIGRATING", target.id).Err())
	require.Eventually(t, func() bool {
		keys := source.ClusterGetKeysInSlot(ctx, int(slot), 100).Val()
		for _, key := range keys {
			require.NoError(t, source.Migrate(ctx, target.host, target.port, key, 0, 5*time.Second).Err())
		}
		return len(keys) == 0
	}, 10*time.Second, time.Millisecond)
	for _, n := range []node{target, source} {
		require.NoError(t, n.Do(ctx, "CLUSTER", "SETSLOT", number, "NODE", target.id).Err())
	}
}

// TestConformsOnCluster runs the suite on three masters: raises, refunds and resets find the node of a counter as charges do.
func TestConformsOnCluster(t *testing.T) {
	nodes := startCluster(t)
	storetest.Run(t, storetest.Factory{Checks: 30, New: onTestClock(func(testing.TB) string {
		return fmt.Sprintf("redis://%s:%s?cluster=true", nodes[0].host, nodes[0].port)
	})})
}
