package app_test

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// places are where a secret must never be, by name.
type places map[string]func() string

// holdNone looks for secrets, as they are and as Postgres writes bytes.
func (p places) holdNone(t *testing.T, secrets map[string]string) {
	t.Helper()
	for place, read := range p {
		text := read()
		require.NotEmpty(t, text, "%s: nothing to look at", place)
		for name, secret := range secrets {
			require.NotContains(t, text, secret, "%s is in %s", name, place)
			require.NotContains(t, text, hex.EncodeToString([]byte(secret)), "%s is in %s as bytes", name, place)
		}
	}
}

// Guarantee: whatever is done with credentials, rightly and wrongly, none of them is ever in a log (ours at debug, Postgres' with every
// statement and its parameters), a table, the audit log, an answer but the one that made it, a metric, or a command to Redis.
func TestSecretsAppearNowhere(t *testing.T) {
	t.Parallel()
	database := testenv.PostgresServer(t, "log_statement=all", "log_min_duration_statement=0", "log_parameter_max_length=-1", "log_parameter_max_length_on_error=-1")
	redis := testenv.RedisServer(t)
	monitor := monitorRedis(t, redis.Addr())
	at, err := url.Parse(database.URL())
	require.NoError(t, err)
	at.User = url.UserPassword(at.User.Username(), "canary-of-the-database")
	r := startReplica(t, "PEGEL_DATABASE_URL="+at.String(), "PEGEL_REDIS_URL="+redis.URL()).ready()

	secrets := map[string]string{"the password of the database": "canary-of-the-database", "the bootstrap token": adminToken}
	var answers strings.Builder
	ask := func(method, to, token string, body any, header ...string) {
		t.Helper()
		a := r.callWith(method, to, token, body, header...)
		require.Less(t, a.status, http.StatusInternalServerError, "%s", a.body)
		fmt.Fprintln(&answers, a.header, string(a.body))
	}
	keep := func(name string, made map[string]any) string {
		t.Helper()
		secret, ok := made["secret"].(string)
		require.True(t, ok, "%v", made)
		secrets[name] = secret[strings.LastIndex(secret, "_")+1:] // the secret part; ids are public
		return secret
	}
	slug, key := r.tenant(perMinute(5))
	secrets["an API key"] = key[strings.LastIndex(key, "_")+1:]
	keys := r.admin + "/admin/tenants/" + slug + "/keys"
	id := strings.Split(key, "_")[1]
	successor := keep("a rotated API key", r.administer(http.StatusCreated, http.MethodPost, "/admin/tenants/"+slug+"/keys/"+id+"/rotate", map[string]any{"overlap": "1h"}))
	service := keep("a service token", r.administer(http.StatusCreated, http.MethodPost, "/admin/service-tokens", map[string]any{"name": "edge", "may": []string{"check", "status", "refund", "identify"}}))
	admin := keep("an admin token", r.administer(http.StatusCreated, http.MethodPost, "/admin/admin-tokens", map[string]any{"name": "alice", "role": "viewer"}))
	for range 2 { // and its replay, which has no secret
		a := r.callWith(http.MethodPost, keys, adminToken, map[string]any{"name": "once"}, "Idempotency-Key", "once")
		if secret, first := a.json(t)["secret"].(string); first {
			secrets["a key made once"] = secret[strings.LastIndex(secret, "_")+1:]
			continue
		}
		fmt.Fprintln(&answers, string(a.body))
	}

	check := r.public + "/v1/check"
	for _, token := range []string{key, successor, service, admin, adminToken, key[:len(key)-1] + "!"} {
		for range 7 { // also refused, from memory too
			ask(http.MethodPost, check, token, map[string]any{})
		}
		ask(http.MethodPost, check, token, map[string]any{"tenant": slug, "user": "u", "cost": 2})
		ask(http.MethodGet, r.public+"/v1/ping", token, nil, "X-API-Key", token, "X-Pegel-Service-Token", token)
		ask(http.MethodGet, r.admin+"/admin/plans", token, nil)
		ask(http.MethodPut, r.admin+"/admin/mode", token, map[string]any{"mode": token})
		if token == adminToken {
			continue // the one of the tests has the form of a slug: as one it is looked up
		}
		// Where they do not belong, by somebody's mistake.
		ask(http.MethodGet, r.admin+"/admin/tenants/"+token, adminToken, nil, "X-Request-Id", token)
		ask(http.MethodGet, r.admin+"/admin/plans?cursor="+token, adminToken, nil)
		ask(http.MethodPost, r.admin+"/admin/tenants", adminToken, map[string]any{"slug": token, "name": "x", "plan": token}, "Idempotency-Key", token)
		ask(http.MethodPatch, r.admin+"/admin/tenants/"+slug, adminToken, map[string]any{"plan": token}, "If-Match", `"`+token+`"`)
		ask(http.MethodGet, r.public+"/v1/status?tenant="+token, service, nil)
		ask(http.MethodPost, check, service, map[string]any{"tenant": token})
		ask(http.MethodGet, r.admin+"/no/"+token, "", nil)
	}
	ask(http.MethodDelete, keys+"/"+id, adminToken, nil)
	ask(http.MethodPost, check, key, map[string]any{})

	away := startReplica(t, "PEGEL_DATABASE_URL=postgres://pegel:canary-of-the-database@127.0.0.1:1/pegel")
	require.Eventually(t, func() bool { return strings.Contains(away.logs.String(), "waiting for Postgres") }, 20*time.Second, 20*time.Millisecond)
	require.Eventually(t, func() bool { return strings.Contains(monitor(), "EVALSHA") || strings.Contains(monitor(), "evalsha") }, 20*time.Second, 20*time.Millisecond)

	places{
		"the log": r.logs.String,
		"the log of a replica without a database": away.logs.String,
		"answers": answers.String,
		"the audit log": func() string {
			return string(r.call(http.MethodGet, r.admin+"/admin/audit/export", adminToken, nil).body)
		},
		"metrics":           func() string { return string(r.call(http.MethodGet, r.admin+"/metrics", "", nil).body) },
		"commands to Redis": monitor,
		"the tables":        func() string { return dumpTables(t, database.URL()) },
		"Postgres' log": func() string {
			raw, err := os.ReadFile(database.LogPath())
			require.NoError(t, err)
			return string(raw)
		},
	}.holdNone(t, secrets)
}

// callWith is call with more headers.
func (r *replica) callWith(method, to, token string, body any, header ...string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, to, jsonBody(r.t, body))
	require.NoError(r.t, err)
	if body == nil {
		req.Body, req.ContentLength = http.NoBody, 0
	} else {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return r.send(req)
}

// monitorRedis collects every command that a Redis gets, until the test ends.
func monitorRedis(t *testing.T, addr string) (text func() string) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
	require.NoError(t, err)
	var seen syncBuffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewReader(conn)
		for {
			line, err := lines.ReadString('\n')
			_, _ = seen.Write([]byte(line))
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	_, err = conn.Write([]byte("MONITOR\r\n"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return strings.Contains(seen.String(), "+OK") }, 10*time.Second, 10*time.Millisecond)
	return seen.String
}

// dumpTables is every row of every table as text.
func dumpTables(t *testing.T, database string) string {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, database)
	require.NoError(t, err)
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, `SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')`)
	require.NoError(t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	var all strings.Builder
	for _, table := range tables {
		rows, err := conn.Query(ctx, `SELECT t::text FROM `+table+` AS t`)
		require.NoError(t, err)
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		all.WriteString(strings.Join(texts, "\n"))
	}
	return all.String()
}
