package app_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// Guarantee: a full tenant is refused from memory, and whatever gives it room again is seen within a second on every replica: a
// raised plan, an override, a reset, a refund (where it was made at once).
func TestEveryReplicaSeesThatThereIsRoomAgain(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	env := []string{"PEGEL_DATABASE_URL=" + database, "PEGEL_REDIS_URL=" + testenv.RedisServer(t).URL(), "PEGEL_REDIS_TIMEOUT=5s", "PEGEL_DATABASE_DECISION_TIMEOUT=5s"}
	one, two := startReplica(t, env...).ready(), startReplica(t, env...).ready()
	pool, err := pgxpool.New(t.Context(), database)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	repository := postgres.NewRepository(pool)
	hour := func(quota int) map[string]any {
		return map[string]any{"name": "per-hour", "algorithm": "sliding_window_log", "limit": quota, "window": "1h"}
	}
	service := one.service()

	for name, c := range map[string]struct {
		makeRoom func(slug string)
		atOnce   bool // on the replica it was done on; a change of configuration may take until Postgres has answered
	}{
		"raise": {func(slug string) {
			plan, ok := one.administer(http.StatusOK, http.MethodGet, "/admin/tenants/"+slug, nil)["plan"].(string)
			require.True(t, ok)
			path := "/admin/plans/" + plan
			etag := one.call(http.MethodGet, one.admin+path, adminToken, nil).header.Get("ETag")
			body, err := json.Marshal(map[string]any{"name": plan, "limits": []any{hour(9)}})
			require.NoError(t, err)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, one.admin+path, bytes.NewReader(body))
			require.NoError(t, err)
			req.Header = http.Header{"Authorization": {"Bearer " + adminToken}, "Content-Type": {"application/json"}, "If-Match": {etag}}
			res, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			defer res.Body.Close()
			said, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, res.StatusCode, "%s", said)
		}, false},
		"override": {func(slug string) {
			_, _, err := repository.PutOverride(t.Context(), audit.Actor{Kind: "system", Name: "test"}, slug, tenants.Override{LimitName: "per-hour", Quota: 9, Reason: "test"})
			require.NoError(t, err)
		}, false},
		"reset": {func(slug string) {
			one.administer(http.StatusOK, http.MethodPost, "/admin/tenants/"+slug+"/reset", nil)
		}, true},
		"refund": {func(slug string) {
			a := one.call(http.MethodPost, one.public+"/v1/refund", service, map[string]any{"tenant": slug, "cost": 3})
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
			require.EqualValues(t, 0, a.json(t)["used"])
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			slug, key := one.tenant(hour(3))
			two.knows(key)
			check := func(r *replica) answer { return r.call(http.MethodPost, r.public+"/v1/check", key, map[string]any{}) }
			for range 3 {
				require.Equal(t, http.StatusOK, check(one).status)
			}
			first, ids := refusedID(t, check(two)), map[string]bool{}
			for range 5 {
				require.Equal(t, http.StatusTooManyRequests, check(one).status)
				ids[refusedID(t, check(two))] = true
			}
			require.Less(t, len(ids), 5, "refusals are repeated from memory, under one id (the first was %s)", first)

			c.makeRoom(slug)
			if c.atOnce {
				require.Equal(t, http.StatusOK, check(one).status, "the replica it was done on sees it at once")
			}
			for _, r := range []*replica{one, two} {
				require.Eventually(t, func() bool { return check(r).status == http.StatusOK }, 3*time.Second, 20*time.Millisecond)
			}
		})
	}
}

func refusedID(t *testing.T, a answer) string {
	t.Helper()
	require.Equal(t, http.StatusTooManyRequests, a.status, "%s", a.body)
	id, ok := a.json(t)["decision_id"].(string)
	require.True(t, ok)
	require.Equal(t, id, a.header.Get("X-Pegel-Decision"))
	return id
}
