package redisstore_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/devmode"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/ratelimit/redisstore"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// budget is the default deadline of a call; slack is what it may take beside.
const (
	budget = redisstore.DefaultTimeout
	slack  = 50 * time.Millisecond
)

// inTime repeats something until it has taken no longer than it may, and returns how often that was: on a machine that is
// busy with other tests, now and then it takes longer without a fault of its own.
func inTime(t *testing.T, most time.Duration, do func()) (tries int) {
	t.Helper()
	for tries = range 20 {
		start := time.Now()
		do()
		if time.Since(start) < most {
			return tries + 1
		}
	}
	require.Failf(t, "too slow", "longer than %s in %d tries", most, tries+1)
	return 0
}

// failsInTime makes a call, which has to fail by the deadline as an outage, for a reason that contains the given words. It
// returns how many calls it made.
func failsInTime(t *testing.T, store ratelimit.Store, charge ratelimit.Charge, reason string) (calls int) {
	t.Helper()
	return inTime(t, budget+slack, func() {
		_, err := try(t.Context(), store, charge)
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		require.ErrorContains(t, err, reason)
	})
}

// recovers waits until the store decides again.
func recovers(t *testing.T, store ratelimit.Store, charge ratelimit.Charge) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := try(t.Context(), store, charge)
		return err == nil
	}, 10*time.Second, 20*time.Millisecond)
}

// B027: scripts that are gone are sent anew, in pipelines too, and what was sent twice is counted once.
func TestForgottenScriptsAreSentAnew(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	store, client, ctx := patient(t, server.URL()), raw(t, server.URL()), t.Context()
	limit, group := slidingLog(ratelimit.MaxQuota, time.Hour), tenant()
	var wg sync.WaitGroup
	var counted atomic.Int64
	for range 8 {
		wg.Go(func() {
			for i := range 100 {
				charges := make([]ratelimit.Charge, 1+i%2*99) // one, or a pipeline of four batches
				for j := range charges {
					charges[j] = take(group, 1, limit)
				}
				out := make([]ratelimit.Outcome, len(charges))
				if err := store.Decide(ctx, charges, out); err != nil {
					t.Error(err)
					return
				}
				counted.Add(int64(len(charges)))
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for flushed := 0; ; flushed++ {
		require.NoError(t, client.ScriptFlush(ctx).Err())
		select {
		case <-done:
			require.Greater(t, flushed, 5)
			peek := take(group, 1, limit)
			peek.Kind = ratelimit.Peek
			require.Equal(t, counted.Load(), decide(t, store, peek)[0].Counters[0].Used)
			for _, kind := range []ratelimit.Kind{ratelimit.Peek, ratelimit.Refund} {
				require.NoError(t, client.ScriptFlush(ctx).Err())
				peek.Kind = kind
				decide(t, store, peek)
			}
			return
		default:
		}
	}
}

// B027, B024: a server that restarts or hangs costs its calls their budget and no more, and is used again afterwards.
func TestRestartAndHang(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t, "--appendonly", "yes", "--appendfsync", "always")
	store := newStore(t, redisstore.Config{URL: server.URL()})
	limit, group := slidingLog(100, time.Hour), tenant()
	recovers(t, store, take(group, 1, limit))

	require.NoError(t, server.Pause())
	failed := 0
	for range 5 {
		failed += failsInTime(t, store, take(group, 1, limit), "timeout")
	}
	require.NoError(t, server.Resume())
	recovers(t, store, take(group, 1, limit))

	require.NoError(t, server.Stop())
	for range 5 {
		failed += failsInTime(t, store, take(group, 1, limit), "")
	}
	require.NoError(t, server.Start())
	recovers(t, store, take(group, 1, limit))
	out := decide(t, patient(t, server.URL()), take(group, 1, limit))
	require.GreaterOrEqual(t, out[0].Counters[0].Used, int64(4), "counters survived")
	require.LessOrEqual(t, out[0].Counters[0].Used, int64(4+failed), "what timed out may have been counted, once each")
}

// B031, B024: a start with Redis down, or with a port that accepts and never answers, is a start.
func TestStartsWithoutRedis(t *testing.T) {
	t.Parallel()
	silent := listen(t, func(net.Conn) {})
	store := newStore(t, redisstore.Config{URL: "redis://" + silent})
	limit := slidingLog(100, time.Hour)
	for range 3 {
		failsInTime(t, store, take(tenant(), 1, limit), "timeout")
	}
	require.ErrorIs(t, store.Ping(t.Context()), ratelimit.ErrUnavailable)
	_, err := store.Info(t.Context())
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)

	loading := listen(t, func(c net.Conn) { answerAll(c, "-LOADING Redis is loading the dataset in memory\r\n") })
	failsInTime(t, newStore(t, redisstore.Config{URL: "redis://" + loading}), take(tenant(), 1, limit), "still loading")

	stranger := listen(t, func(c net.Conn) { answerAll(c, "+OK\r\n") })
	failsInTime(t, newStore(t, redisstore.Config{URL: "redis://" + stranger}), take(tenant(), 1, limit), "")
}

// listen accepts connections until the end of the test.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			wg.Go(func() { serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return listener.Addr().String()
}

// answerAll gives every command the same answer.
func answerAll(c net.Conn, answer string) {
	reader := bufio.NewReader(c)
	for {
		line, err := reader.ReadString('\n')
		if err != nil {
			return
		}
		if strings.HasPrefix(line, "*") {
			if _, err := fmt.Fprint(c, answer); err != nil {
				return
			}
		}
	}
}

// A foreign value under the probe's key says nothing about Redis.
func TestPingWithAForeignProbe(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	require.NoError(t, raw(t, server.URL()).LPush(t.Context(), "pegel:{probe}:probe", "x").Err())
	require.NoError(t, patient(t, server.URL()).Ping(t.Context()))
}

// B028: a master that becomes a replica keeps its connections; they are made anew, and lead to the new master.
func TestAFormerMasterIsLeft(t *testing.T) {
	t.Parallel()
	first, second := testenv.RedisServer(t), testenv.RedisServer(t)
	target := new(atomic.Pointer[string]) // the name that is moved from one to the other
	set := func(s *devmode.Redis) { addr := s.Addr(); target.Store(&addr) }
	set(first)
	name := listen(t, func(c net.Conn) { forward(c, *target.Load()) })
	store := newStore(t, redisstore.Config{URL: "redis://" + name, PoolSize: 20})
	limit, group := slidingLog(1_000_000, time.Hour), tenant()
	var wg sync.WaitGroup
	for range 20 { // fill the pool
		wg.Go(func() { _, _ = try(t.Context(), store, take(group, 1, limit)) })
	}
	wg.Wait()
	recovers(t, store, take(group, 1, limit))

	host, port, _ := net.SplitHostPort(second.Addr())
	require.NoError(t, raw(t, first.URL()).Do(t.Context(), "REPLICAOF", host, port).Err())
	failsInTime(t, store, take(group, 1, limit), "read-only")
	set(second)
	recovers(t, store, take(group, 1, limit))
	for range 50 {
		require.Eventually(t, func() bool {
			_, err := try(t.Context(), store, take(group, 1, limit))
			return err == nil || !strings.Contains(err.Error(), "read-only")
		}, time.Second, time.Millisecond)
	}
}

// forward copies between a connection and the server it is to reach.
func forward(c net.Conn, addr string) {
	server, err := net.Dial("tcp", addr)
	if err != nil {
		_ = c.Close()
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = bufio.NewReader(server).WriteTo(c); _ = c.Close() })
	_, _ = bufio.NewReader(c).WriteTo(server)
	_ = server.Close()
	wg.Wait()
}

// A full server is an outage, not a decision: nothing is admitted past maxmemory, and refusals still come.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	store, client, ctx := patient(t, server.URL()), raw(t, server.URL()), t.Context()
	limits := append(oneOfEach(2, time.Hour), slidingLog(5000, time.Hour))
	limits[5].Name = "large"
	group := tenant()
	decide(t, store, take(group, 2, limits[:5]...), take(group, 5000, limits[5]))
	require.NoError(t, store.Ping(ctx))
	require.NoError(t, client.ConfigSet(ctx, "maxmemory", "1mb").Err())

	for _, fresh := range append(oneOfEach(2, time.Hour), slidingLog(5000, time.Hour)) {
		_, err := try(ctx, store, take(tenant(), 1, fresh))
		require.ErrorIs(t, err, ratelimit.ErrUnavailable, fresh.Algorithm)
		require.ErrorContains(t, err, "out of memory")
	}
	for _, limit := range limits {
		for _, hits := range []int64{1, 5000} {
			refund := take(group, hits, limit)
			refund.Kind = ratelimit.Refund
			_, err := try(ctx, store, refund)
			require.ErrorIs(t, err, ratelimit.ErrUnavailable, "a refund of %d, %s: it must not open the door to later writes", hits, limit.Name)
		}
		out := decide(t, store, take(group, 1, limit))
		require.Zero(t, out[0].Admitted)
		require.Equal(t, limit.Quota, out[0].Counters[0].Used, "and nothing was written")
	}
	require.ErrorIs(t, store.Ping(ctx), ratelimit.ErrUnavailable)
	info, err := store.Info(ctx)
	require.NoError(t, err)
	require.Equal(t, "noeviction", info.MaxmemoryPolicy)
	require.EqualValues(t, 1<<20, info.Maxmemory)
	require.NotEmpty(t, info.Version)

	require.NoError(t, client.ConfigSet(ctx, "maxmemory", "0").Err())
	decide(t, store, take(tenant(), 1, limits[0]))
}

// B034: many callers on few connections wait no longer than their budget, and all is well once Redis is.
func TestPoolStarvation(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	store := newStore(t, redisstore.Config{URL: server.URL(), PoolSize: 5})
	limit, group := slidingLog(1_000_000, time.Hour), tenant()
	recovers(t, store, take(group, 1, limit))
	require.NoError(t, server.Pause())
	inTime(t, budget+2*slack, func() {
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() {
				if _, err := try(t.Context(), store, take(group, 1, limit)); err == nil {
					t.Error("a paused server decided")
				}
			})
		}
		wg.Wait()
	})
	require.NoError(t, server.Resume())
	recovers(t, store, take(group, 1, limit))
}

// B034: connections complete however short the deadlines of those who ask for them are.
func TestConnectionsCompleteUnderShortDeadlines(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	store := newStore(t, redisstore.Config{URL: server.URL(), Timeout: time.Second})
	limit, group := slidingLog(1_000_000, time.Hour), tenant()
	deadline := time.Now().Add(10 * time.Second)
	for {
		require.True(t, time.Now().Before(deadline), "no call of 1 ms ever found a connection")
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := try(ctx, store, take(group, 1, limit))
		cancel()
		if err == nil {
			return
		}
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	}
}

// A caller that leaves is no failure of the store, and no reply is ever given to another call.
func TestCallersThatLeave(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	store := newStore(t, redisstore.Config{URL: url, Timeout: 5 * time.Second, PoolSize: 4})
	var wg sync.WaitGroup
	for i := range 500 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			if i%2 == 0 {
				cancel()
			}
			defer cancel()
			limit, group := slidingLog(int64(i+1), time.Hour), tenant()
			out, err := try(ctx, store, take(group, int64(i+5), limit))
			switch {
			case err == nil && (out.Admitted != int64(i+1) || out.Counters[0].Used != int64(i+1)):
				t.Errorf("call %d got somebody else's answer: %+v", i, out)
			case err != nil && (i%2 == 1 || !isCancellation(err)):
				t.Errorf("call %d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

// What was executed but not answered in time is counted once, never again by the client.
func TestNothingIsSentTwice(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	var hold atomic.Bool
	name := listen(t, func(c net.Conn) { forwardHolding(c, server.Addr(), &hold) })
	store := newStore(t, redisstore.Config{URL: "redis://" + name})
	limit, group := slidingLog(1000, time.Hour), tenant()
	recovers(t, store, take(group, 1, limit))
	peek := take(group, 1, limit)
	peek.Kind = ratelimit.Peek
	before := decide(t, patient(t, server.URL()), peek)[0].Counters[0].Used
	const calls = 5
	for range calls {
		hold.Store(false)
		recovers(t, store, peek) // over a good connection: what fails is the reply, not the dialling
		hold.Store(true)
		_, err := try(t.Context(), store, take(group, 1, limit))
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		require.ErrorContains(t, err, "timeout")
	}
	require.Equal(t, before+calls, decide(t, patient(t, server.URL()), peek)[0].Counters[0].Used)
}

// forwardHolding is forward, but answers do not come back while hold is set.
func forwardHolding(c net.Conn, addr string, hold *atomic.Bool) {
	server, err := net.Dial("tcp", addr)
	if err != nil {
		_ = c.Close()
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer func() { _ = c.Close() }()
		buffer := make([]byte, 4096)
		for {
			n, err := server.Read(buffer)
			if err != nil {
				return
			}
			if hold.Load() {
				continue
			}
			if _, err := c.Write(buffer[:n]); err != nil {
				return
			}
		}
	})
	_, _ = bufio.NewReader(c).WriteTo(server)
	_ = server.Close()
	wg.Wait()
}
