package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/devmode"
	"github.com/pegel-dev/pegel/internal/testenv"
)

const (
	// A fault every 30 s, a third of which it lasts; in a soak too short for all of them once, they follow faster.
	faultEvery = 30 * time.Second
	// silentMost is how long no decision at all may come. With both stores hung it is 50 + 150 ms; the rest is what this
	// machine, which also runs the load and both servers, may add.
	silentMost = 5 * time.Second
	// recoveryMost is how long after a fault the first store may take to decide again.
	recoveryMost = 10 * time.Second
)

// trouble is a fault and its cure.
type trouble struct {
	name     string
	on, cure func() error
}

// troubles is everything that happens to stores, one after the other.
func troubles(client *redis.Client, server *devmode.Redis, pg *devmode.Postgres) []trouble {
	ctx := context.Background()
	both := func(a, b func() error) func() error {
		return func() error {
			if err := a(); err != nil {
				return err
			}
			return b()
		}
	}
	none := func() error { return nil }
	order := func(args ...any) func() error { return func() error { return client.Do(ctx, args...).Err() } }
	return []trouble{
		{"Redis killed", server.Kill, server.Start},
		{"Redis hung", server.Pause, server.Resume},
		{"Redis stopped", server.Stop, server.Start},
		{"scripts flushed", order("SCRIPT", "FLUSH"), none},
		{"Redis out of memory", order("CONFIG", "SET", "maxmemory", "1mb"), order("CONFIG", "SET", "maxmemory", "0")},
		{"Redis read-only", order("REPLICAOF", "127.0.0.1", "1"), order("REPLICAOF", "NO", "ONE")},
		{"Redis emptied", order("FLUSHALL"), none},
		{"Postgres hung", pg.Pause, pg.Resume},
		{"Postgres stopped", pg.Stop, pg.Start},
		{"both hung", both(server.Pause, pg.Pause), both(pg.Resume, server.Resume)},
		{"both killed", both(server.Kill, pg.Kill), both(pg.Start, server.Start)},
	}
}

// Guarantee: whatever happens to the stores under full load, no caller sees an error, decisions keep coming, the first store
// decides again within 10 s of being well, and nothing is left behind.
func TestSoakFaults(t *testing.T) {
	lasts := testenv.Soak(t)
	server, pg := testenv.RedisServer(t), testenv.PostgresServer(t)
	// Redis gets so long that this machine's load is not a fault of its own.
	p := startProcess(t, "PEGEL_DATABASE_URL="+pg.URL(), "PEGEL_REDIS_URL="+server.URL(), "PEGEL_REDIS_TIMEOUT=100ms")
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: 5})
	t.Cleanup(func() { _ = client.Close() })
	l := newLoad(t, p)
	all := troubles(client, server, pg)
	every := min(faultEvery, max(lasts/time.Duration(len(all)), 6*time.Second))

	l.start()
	l.rest(every / 3)
	l.stop()
	l.report("warm, without a fault")
	before := settled(p)
	t.Logf("before: %s", before)

	l.start()
	end := time.Now().Add(lasts)
	for i := 0; time.Now().Before(end) || i < len(all); i++ {
		trouble := all[i%len(all)]
		require.NoError(t, trouble.on(), trouble.name)
		l.rest(every / 3)
		require.NoError(t, trouble.cure(), trouble.name)
		begun := time.Now()
		p.becomes(2*recoveryMost, http.StatusOK, map[string]any{"status": "ok", "source": "redis"})
		took := time.Since(begun)
		require.LessOrEqual(t, took, recoveryMost, trouble.name)
		l.rest(every - every/3 - min(took, every/2))
		l.report(fmt.Sprintf("%s, well again after %s", trouble.name, took.Round(10*time.Millisecond)))
		require.False(t, t.Failed())
	}
	l.stop()
	after := settled(p)
	t.Logf("after: %s", after)
	require.LessOrEqual(t, after.goroutines, before.goroutines+20)
	require.LessOrEqual(t, after.memory, before.memory+memoryLeft)
}

// settled is the footprint when the idle connections of the load have gone.
func settled(p *process) footprint {
	p.t.Helper()
	p.client.CloseIdleConnections()
	now := p.footprint()
	for range 40 {
		time.Sleep(250 * time.Millisecond)
		before := now
		if now = p.footprint(); now.goroutines >= before.goroutines && now.memory >= before.memory {
			break
		}
	}
	return now
}

// load is callers who never pause: single checks and batches, on tenants that stay within their budget and on one that does not.
type load struct {
	*process
	*testing.T
	checks [][]byte
	batch  []byte

	ends chan struct{} // nil while there is no load
	all  sync.WaitGroup
	last atomic.Int64 // when a decision last came, ns since the epoch

	mu       sync.Mutex
	took     []time.Duration
	statuses map[int]int
	silence  time.Duration
}

func newLoad(t *testing.T, p *process) *load {
	t.Helper()
	l := &load{process: p, T: t, statuses: map[int]int{}}
	var elements []map[string]any
	for i := range 21 {
		quota := 1_000_000_000
		if i == 0 {
			quota = 100
		}
		slug, _ := p.tenant(perMinute(quota))
		check := map[string]any{"tenant": slug, "user": "u1"}
		body, err := json.Marshal(check)
		require.NoError(t, err)
		l.checks = append(l.checks, body)
		elements = append(elements, check)
	}
	var err error
	l.batch, err = json.Marshal(map[string]any{"checks": elements})
	require.NoError(t, err)
	t.Cleanup(l.stop)
	return l
}

func (l *load) start() {
	ends := make(chan struct{})
	l.ends = ends
	l.last.Store(time.Now().UnixNano())
	for caller := range 16 {
		l.all.Go(func() {
			for i := caller; ; i++ {
				select {
				case <-ends:
					return
				default:
				}
				if i%20 == 0 {
					l.ask("/v1/check/batch", l.batch)
				} else {
					l.ask("/v1/check", l.checks[i%len(l.checks)])
				}
			}
		})
	}
}

func (l *load) stop() {
	if l.ends != nil {
		close(l.ends)
		l.ends = nil
	}
	l.all.Wait()
}

// ask makes one call. Any answer but a verdict is a failure.
func (l *load) ask(path string, body []byte) {
	begun := time.Now()
	status, answer, err := l.post(path, body)
	now := time.Now()
	if err != nil || (status != http.StatusOK && status != http.StatusTooManyRequests) {
		l.Errorf("%s: %d %v %.300s", path, status, err, answer)
	}
	silence := time.Duration(now.UnixNano() - l.last.Swap(now.UnixNano()))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took = append(l.took, now.Sub(begun))
	l.statuses[status]++
	l.silence = max(l.silence, silence)
}

// rest lets the load go on for a while.
func (l *load) rest(d time.Duration) { time.Sleep(max(0, d)) }

// report says what came since the last report.
func (l *load) report(what string) {
	l.Helper()
	l.mu.Lock()
	took, statuses, silence := l.took, l.statuses, l.silence
	l.took, l.statuses, l.silence = nil, map[int]int{}, 0
	l.mu.Unlock()
	require.NotEmpty(l, took)
	slices.Sort(took)
	l.Logf("%s: %d answers %v, p50 %s, p99 %s, longest %s, longest silence %s; %s", what, len(took), statuses, short(took[len(took)/2]),
		short(took[len(took)*99/100]), short(took[len(took)-1]), short(silence), l.footprint())
	require.Less(l, silence, silentMost)
}

func short(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
