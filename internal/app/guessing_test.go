package app_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/testenv"
)

const (
	guessesPerSecond = 5_000
	// queriesPerSecond is what a replica may ask of Postgres whatever strangers send: its polls and probes, and batches of logs.
	queriesPerSecond = 100
	// guessingMemory is what a flood may add to the memory of a replica: buffers that are bounded, and what Go keeps.
	guessingMemory = 64 * mebi
)

// Guarantee (B039): whoever guesses credentials costs Postgres nothing, memory stays flat, and who has one is answered all the while.
func TestGuessingCredentialsHarmsNobody(t *testing.T) {
	t.Parallel()
	guessCredentials(t, 3*time.Second)
}

// TestSoakGuessingCredentialsHarmsNobody is the same for 20 seconds.
func TestSoakGuessingCredentialsHarmsNobody(t *testing.T) {
	testenv.Soak(t)
	guessCredentials(t, 20*time.Second)
}

func guessCredentials(t *testing.T, long time.Duration) {
	t.Helper()
	database := testenv.PostgresServer(t, "shared_preload_libraries=pg_stat_statements", "pg_stat_statements.track_utility=off")
	conn, err := pgx.Connect(t.Context(), database.URL())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	_, err = conn.Exec(t.Context(), `CREATE EXTENSION pg_stat_statements`)
	require.NoError(t, err, "Debian's postgresql-15 has it")
	p := startProcess(t, "PEGEL_DATABASE_URL="+database.URL(), "PEGEL_REDIS_URL="+testenv.RedisServer(t).URL(), "PEGEL_TRUSTED_PROXIES=127.0.0.1",
		"PEGEL_REDIS_TIMEOUT=5s", "PEGEL_DATABASE_DECISION_TIMEOUT=5s")
	slug, key := p.tenant(perMinute(1_000_000))
	p.knows(key)
	g := &guessing{process: p, slug: slug, key: key, refused: map[int]*atomic.Int64{http.StatusUnauthorized: {}, http.StatusTooManyRequests: {}}}
	g.flood(time.Second) // code, connections and pools are warm
	require.False(t, t.Failed())

	before := p.footprint()
	_, err = conn.Exec(t.Context(), `SELECT pg_stat_statements_reset()`)
	require.NoError(t, err)
	g.guesses.Store(0)
	g.refused[http.StatusUnauthorized].Store(0)
	g.refused[http.StatusTooManyRequests].Store(0)
	begun := time.Now()
	g.flood(long)
	took := time.Since(begun)
	after := p.footprint()
	var queries, onCredentials int64
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT sum(calls)::bigint, coalesce(sum(calls) FILTER (WHERE query ~ 'api_keys|service_tokens|admin_tokens' AND query ~ 'WHERE.*id ='), 0)::bigint
		FROM pg_stat_statements WHERE query !~ 'pg_stat_statements'`).Scan(&queries, &onCredentials))
	slices.Sort(g.waited)
	t.Logf("%d guesses in %s (%.0f/s; %d were 401, %d 429): %d queries (%.0f/s); %s before, %s after; %d legitimate calls, p50 %s, p99 %s",
		g.guesses.Load(), took.Round(time.Millisecond), float64(g.guesses.Load())/took.Seconds(), g.refused[http.StatusUnauthorized].Load(), g.refused[http.StatusTooManyRequests].Load(), queries, float64(queries)/took.Seconds(),
		before, after, len(g.waited), g.waited[len(g.waited)/2].Round(time.Microsecond), g.waited[len(g.waited)*99/100].Round(time.Microsecond))
	require.LessOrEqual(t, float64(queries), queriesPerSecond*took.Seconds())
	require.Zero(t, onCredentials, "no look-up of a credential")
	require.LessOrEqual(t, after.memory, before.memory+guessingMemory)
	require.NotEmpty(t, g.waited)
}

// guessing is one address that tries credentials, and clients with good ones, at the same address and elsewhere.
type guessing struct {
	*process

	slug, key string
	guesses   atomic.Int64
	refused   map[int]*atomic.Int64
	mu        sync.Mutex
	waited    []time.Duration
}

func (g *guessing) flood(long time.Duration) {
	ctx, stop := context.WithTimeout(g.t.Context(), long)
	defer stop()
	const workers = 32
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}, Timeout: 30 * time.Second}
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	begun := time.Now()
	var sent atomic.Int64
	for range workers {
		all.Go(func() {
			for {
				n := sent.Add(1)
				due := begun.Add(time.Duration(n) * time.Second / guessesPerSecond)
				select {
				case <-ctx.Done():
					return
				case <-time.After(time.Until(due)):
				}
				if err := g.guess(client, n); err != nil {
					g.t.Error(err)
					return
				}
			}
		})
	}
	all.Go(func() { g.legitimate(ctx) })
	all.Wait()
}

// guess presents a credential that nobody has, by every way in.
func (g *guessing) guess(client *http.Client, n int64) error {
	kind := []tenants.Kind{tenants.KindAPIKey, tenants.KindServiceToken, tenants.KindAdminToken}[n%3]
	_, token, err := tenants.NewCredential(kind, rand.Reader)
	if err != nil {
		return err
	}
	method, url, body := http.MethodGet, g.public+"/v1/ping", io.Reader(http.NoBody)
	switch n % 4 {
	case 0:
		method, url, body = http.MethodPost, g.public+"/v1/check", jsonBody(g.t, map[string]any{"tenant": g.slug})
	case 1:
		if kind == tenants.KindAdminToken {
			url = g.admin + "/admin/plans"
		}
	case 2:
		token = token[:len(token)-1] // the checksum is wrong
	}
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		return err
	}
	req.Header.Set("X-Forwarded-For", "203.0.113.66")
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	_, err = io.Copy(io.Discard, res.Body)
	g.guesses.Add(1)
	if counter := g.refused[res.StatusCode]; counter != nil {
		counter.Add(1)
	} else if res.StatusCode != http.StatusOK { // a ping with a wrong service token is anybody's
		return fmt.Errorf("%s %s: %d", method, url, res.StatusCode)
	}
	return err
}

// legitimate asks 40 times a second with good credentials from the same address, and without any from another.
func (g *guessing) legitimate(ctx context.Context) {
	ticker := time.NewTicker(25 * time.Millisecond)
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		token, address := g.key, "203.0.113.66"
		body := map[string]any{}
		if n%2 == 0 {
			token, body = g.token, map[string]any{"tenant": g.slug, "user": "u"}
		}
		method, url := http.MethodPost, g.public+"/v1/check"
		if n%10 == 9 {
			token, address, method, url = "", "192.0.2.1", http.MethodGet, g.public+"/v1/ping"
		}
		req, err := http.NewRequest(method, url, jsonBody(g.t, body))
		if err != nil {
			g.t.Error(err)
			return
		}
		req.Header.Set("X-Forwarded-For", address)
		req.Header.Set("Content-Type", "application/json")
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		begun := time.Now()
		res, err := g.client.Do(req)
		if err != nil {
			g.t.Error(err)
			return
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			g.t.Errorf("a legitimate call got %d", res.StatusCode)
		}
		g.mu.Lock()
		g.waited = append(g.waited, time.Since(begun))
		g.mu.Unlock()
	}
}
