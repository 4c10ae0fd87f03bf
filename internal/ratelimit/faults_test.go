package ratelimit_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// liar stands between a store and Redis, and answers in its place when it is told to.
type liar struct {
	net.Listener
	redis   string
	answer  atomic.Pointer[string] // to every command; nil: Redis's own
	delay   atomic.Int64           // of every answer, ns; negative: there is none
	serving sync.WaitGroup
	ended   chan struct{}
}

func newLiar(t *testing.T, redis string) *liar {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := &liar{Listener: listener, redis: redis, ended: make(chan struct{})}
	l.serving.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			l.serving.Go(func() { l.serve(client) })
		}
	})
	t.Cleanup(func() {
		close(l.ended)
		_ = l.Close()
		l.serving.Wait()
	})
	return l
}

// serve passes one command after the other on, with its answer: the store sends one at a time on each connection, or
// a pipeline whose answers come in order.
func (l *liar) serve(client net.Conn) {
	server, err := net.Dial("tcp", l.redis)
	if err != nil {
		_ = client.Close()
		return
	}
	done := make(chan struct{})
	l.serving.Go(func() {
		select {
		case <-l.ended:
		case <-done:
		}
		_ = client.Close()
		_ = server.Close()
	})
	defer close(done)
	in, back := bufio.NewReader(client), bufio.NewReader(server)
	for {
		command, err := value(in)
		if err != nil {
			return
		}
		if delay := time.Duration(l.delay.Load()); delay != 0 {
			if delay < 0 {
				delay = time.Hour
			}
			select {
			case <-time.After(delay):
			case <-l.ended:
				return
			}
		}
		answer := l.answer.Load()
		if answer == nil {
			if _, err := server.Write(command); err != nil {
				return
			}
			own, err := value(back)
			if err != nil {
				return
			}
			text := string(own)
			answer = &text
		}
		if _, err := io.WriteString(client, *answer); err != nil {
			return
		}
	}
}

// value reads one value of Redis's protocol (version 2).
func value(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(line[1:])))
	switch line[0] {
	case '$':
		if n >= 0 {
			rest := make([]byte, n+2)
			if _, err := io.ReadFull(r, rest); err != nil {
				return nil, err
			}
			line = append(line, rest...)
		}
	case '*':
		for range n {
			element, err := value(r)
			if err != nil {
				return nil, err
			}
			line = append(line, element...)
		}
	}
	return line, nil
}

// Guarantee: whatever Redis answers, or does not, under load: no error to any caller, Postgres decides, and Redis does again
// within 10 s of being well, without a restart.
func TestEveryWayRedisFails(t *testing.T) {
	server := testenv.RedisServer(t)
	l := newLiar(t, server.Addr())
	f := onServers(t, "redis://"+l.Addr().String(), testenv.Postgres(t), redisBudget, patientBudget)
	settles(t, f, ratelimit.SourceRedis)

	says := func(text string) func() { return func() { text := "-" + text + "\r\n"; l.answer.Store(&text) } }
	for _, fault := range []struct {
		name string
		on   func()
	}{
		{"OOM", says("OOM command not allowed when used memory > 'maxmemory'.")},
		{"READONLY", says("READONLY You can't write against a read only replica.")},
		{"LOADING", says("LOADING Redis is loading the dataset in memory")},
		{"NOSCRIPT for ever", says("NOSCRIPT No matching script.")},
		{"MOVED", says("MOVED 1234 127.0.0.1:1")},
		{"ASK", says("ASK 1234 127.0.0.1:1")},
		{"CROSSSLOT", says("CROSSSLOT Keys in request don't hash to the same slot")},
		{"CLUSTERDOWN", says("CLUSTERDOWN The cluster is down")},
		{"MISCONF", says("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.")},
		{"NOAUTH", says("NOAUTH Authentication required.")},
		{"BUSY", says("BUSY Redis is busy running a script.")},
		{"not Redis", func() { text := "+HTTP/1.1 400 Bad Request\r\n"; l.answer.Store(&text) }},
		{"slow", func() { l.delay.Store(int64(200 * time.Millisecond)) }},
		{"hung", func() { l.delay.Store(-1) }},
	} {
		t.Run(fault.name, func(t *testing.T) {
			if fault.name == "hung" && testing.Short() {
				t.Skip("TestServersThatHang hangs a real one")
			}
			limit := perMinute(fault.name, 1_000_000, ratelimit.FailOpen)
			fault.on()
			all := barrage(t, f, 400, limit)
			require.Zero(t, sources(all)[ratelimit.SourceRedis])
			t.Logf("p99 %s, %v", all[len(all)*99/100].took, sources(all))
			require.Less(t, all[len(all)*99/100].took, 2*time.Second, "the budget, and what a busy machine adds")
			require.NotEqual(t, ratelimit.BreakerClosed, f.Health().Stores[0].Breaker)

			l.answer.Store(nil)
			l.delay.Store(0)
			begun := time.Now()
			settles(t, f, ratelimit.SourceRedis)
			require.Less(t, time.Since(begun), 10*time.Second)
		})
	}
}

// Guarantee: SCRIPT FLUSH under load is invisible, and nothing is counted twice.
func TestScriptFlushUnderLoad(t *testing.T) {
	server := testenv.RedisServer(t)
	f := onServers(t, server.URL(), testenv.Postgres(t), patientBudget, patientBudget)
	settles(t, f, ratelimit.SourceRedis)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { require.NoError(t, client.Close()) }()
	limit := perMinute("flushed", 1_000_000, ratelimit.FailClosed)
	limit.Window = time.Hour
	admitted := 0
	for range 5 {
		require.NoError(t, client.ScriptFlush(context.Background()).Err())
		for _, d := range barrage(t, f, 200, limit) {
			if d.outcome.Source == ratelimit.SourceRedis {
				admitted++
			}
		}
	}
	out, err := decide(t, f, []ratelimit.Charge{{Kind: ratelimit.Peek, Counters: hit(limit)[0].Counters, Hits: 1}})
	require.NoError(t, err)
	require.Equal(t, 1000, admitted, "Redis decides them all")
	require.EqualValues(t, 1000, out.Counters[0].Used)
}

// Guarantee: one key that holds something else harms its own subject only: Postgres counts that one, and the breaker stays closed.
func TestOneBadKeyOpensNothing(t *testing.T) {
	server := testenv.RedisServer(t)
	f := onServers(t, server.URL(), testenv.Postgres(t), patientBudget, patientBudget)
	settles(t, f, ratelimit.SourceRedis)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { require.NoError(t, client.Close()) }()
	bad, good := perMinute("bad", 20, ratelimit.FailClosed), perMinute("good", 1_000_000, ratelimit.FailClosed)
	require.NoError(t, client.LPush(context.Background(), string(hit(bad)[0].Counters[0].Key), "x").Err())

	admitted := int64(0)
	for _, d := range barrage(t, f, 100, bad) {
		require.Equal(t, ratelimit.SourcePostgres, d.outcome.Source)
		admitted += d.outcome.Admitted
	}
	require.EqualValues(t, 20, admitted, "exactly")
	require.True(t, slices.ContainsFunc(barrage(t, f, 20, good), func(d timed) bool { return d.outcome.Source == ratelimit.SourceRedis }))
	require.Equal(t, ratelimit.BreakerClosed, f.Health().Stores[0].Breaker)
}
