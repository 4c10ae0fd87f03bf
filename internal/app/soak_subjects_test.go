package app_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

const (
	// Of a soak of ten minutes a million subjects come in the first half.
	subjectsMost = 1_000_000
	fillMost     = 5 * time.Minute
	// silenceMost is how long silence may take to give everything back: windows of a minute, a minute of grace, the next
	// prune, and Go's collector, which looks every two minutes.
	silenceMost = 8 * time.Minute
	// memoryLeft is what may stay resident above what it was before: Go keeps some of what it had.
	memoryLeft = 64 * mebi
)

// Guarantee: memory follows those who ask now, not those who ever did. A million users and addresses come and go, and the
// service's memory, Redis's keys and Postgres's rows are what they were before.
func TestSoakSubjectsComeAndGo(t *testing.T) {
	fill := min(testenv.Soak(t)/2, fillMost)
	subjects := int64(float64(subjectsMost) * fill.Seconds() / fillMost.Seconds())
	t.Run("on Redis", func(t *testing.T) {
		redis := testenv.RedisServer(t)
		comeAndGo(t, fill, subjects, redis.Addr())
	})
	t.Run("on Postgres alone", func(t *testing.T) { comeAndGo(t, fill, subjects, "") })
}

func comeAndGo(t *testing.T, fill time.Duration, subjects int64, redisAddr string) {
	t.Helper()
	database := testenv.Postgres(t)
	env := []string{"PEGEL_DATABASE_URL=" + database, "PEGEL_DATABASE_DECISION_TIMEOUT=5s", "PEGEL_REDIS_TIMEOUT=5s"}
	if redisAddr != "" {
		env = append(env, "PEGEL_REDIS_URL=redis://"+redisAddr)
	}
	c := &crowd{process: startProcess(t, env...), T: t, redisAddr: redisAddr}
	var err error
	c.pool, err = pgxpool.New(t.Context(), database)
	require.NoError(t, err)
	t.Cleanup(c.pool.Close)
	c.administer(http.StatusCreated, http.MethodPost, "/admin/plans", map[string]any{"name": "crowd", "limits": []map[string]any{
		perMinute(2, map[string]any{"name": "user", "scope": "user"}),
	}})
	for range 50 {
		slug, _ := c.tenantOn("crowd")
		c.tenants = append(c.tenants, slug)
	}
	c.come(10_000, time.Second) // code, connections and pools are warm
	before, keys := c.footprint(), c.keys()
	t.Logf("before: %s, %d keys in Redis", before, keys)

	begun := time.Now()
	c.come(subjects, fill)
	full := c.footprint()
	t.Logf("%d subjects in %s: %s, %d keys in Redis, %d rows in Postgres", subjects, time.Since(begun).Round(time.Second), full, c.keys(), c.rows())

	begun = time.Now()
	told := begun
	for {
		now, keys, rows := c.footprint(), c.keys(), c.rows()
		if time.Since(told) > 30*time.Second {
			told = time.Now()
			t.Logf("%s of silence: %s, %d keys in Redis, %d rows in Postgres", time.Since(begun).Round(time.Second), now, keys, rows)
		}
		if keys <= 5 && rows == 0 && now.memory <= before.memory+memoryLeft {
			t.Logf("all is back after %s of silence: %s", time.Since(begun).Round(time.Second), now)
			return
		}
		require.Less(t, time.Since(begun), silenceMost, "%s, %d keys, %d rows: not what it was", now, keys, rows)
		time.Sleep(2 * time.Second)
	}
}

// crowd is subjects that nobody has seen before, each asking once.
type crowd struct {
	*process
	*testing.T
	tenants   []string
	redisAddr string
	pool      *pgxpool.Pool
	seen      atomic.Uint64
}

// come has n new subjects ask, spread over that time, or longer when this machine is too slow.
func (c *crowd) come(n int64, over time.Duration) {
	c.Helper()
	const callers, perCall = 4, 100
	calls := make(chan struct{}, callers)
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range calls {
				c.ask(perCall)
			}
		})
	}
	begun, told := time.Now(), time.Now()
	for i := range n / perCall {
		if ahead := time.Duration(float64(over)*float64(i*perCall)/float64(n)) - time.Since(begun); ahead > 0 {
			time.Sleep(ahead)
		}
		if time.Since(told) > 30*time.Second {
			told = time.Now()
			c.Logf("%d subjects: %s, %d keys in Redis, %d rows in Postgres", i*perCall, c.footprint(), c.keys(), c.rows())
		}
		calls <- struct{}{}
	}
	close(calls)
	all.Wait()
	require.False(c, c.Failed())
}

// ask checks n new subjects in one batch, users and addresses by turns; all must be allowed.
func (c *crowd) ask(n int) {
	checks := make([]map[string]any, n)
	for i := range checks {
		id := c.seen.Add(1)
		if id%2 == 0 {
			checks[i] = map[string]any{"tenant": c.tenants[id/2%uint64(len(c.tenants))], "user": fmt.Sprintf("user-%d", id)}
			continue
		}
		network := [16]byte{0x20, 0x01} // each id is another /64 of 2001::/16
		binary.BigEndian.PutUint32(network[4:], uint32(id))
		checks[i] = map[string]any{"address": netip.AddrFrom16(network).String()}
	}
	body, err := json.Marshal(map[string]any{"checks": checks})
	if err != nil {
		c.Error(err)
		return
	}
	status, answer, err := c.post("/v1/check/batch", body)
	if err != nil || status != http.StatusOK || bytes.Count(answer, []byte(`"allowed":true`)) != n {
		c.Errorf("%d %v %.300s", status, err, answer)
	}
}

// keys is how many there are in Redis; rows is how many counters Postgres holds.
func (c *crowd) keys() int64 {
	c.Helper()
	if c.redisAddr == "" {
		return 0
	}
	client := redis.NewClient(&redis.Options{Addr: c.redisAddr})
	defer func() { _ = client.Close() }()
	n, err := client.DBSize(c.Context()).Result()
	require.NoError(c, err)
	return n
}

func (c *crowd) rows() (n int64) {
	c.Helper()
	require.NoError(c, c.pool.QueryRow(c.Context(), `SELECT count(*) FROM rate_limit_windows`).Scan(&n))
	return n
}
