package app_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// Guarantee: people see when a credential and an override were last used; a replica that ends writes what it still has.
func TestLastUsedIsShown(t *testing.T) {
	t.Parallel()
	env := []string{"PEGEL_DATABASE_URL=" + testenv.Postgres(t), "PEGEL_DATABASE_DECISION_TIMEOUT=5s"}
	begun := time.Now().Truncate(time.Second)
	first := startReplica(t, env...).ready()
	created := first.call(http.MethodPost, first.admin+"/admin/service-tokens", adminToken, map[string]any{"name": "edge"}).json(t)
	secret, ok := created["secret"].(string)
	require.True(t, ok)
	require.Nil(t, created["last_used_at"])
	require.Eventually(t, func() bool {
		return first.call(http.MethodGet, first.public+"/v1/ping", secret, nil).header.Get("X-RateLimit-Limit") == ""
	}, 10*time.Second, 20*time.Millisecond, "the token is known: no address limit applies")
	slug, key := first.tenant(perMinute(5))
	override := first.administer(http.StatusCreated, http.MethodPut, "/admin/tenants/"+slug+"/overrides/requests-per-minute", map[string]any{"limit": 50, "reason": "test"})
	require.Nil(t, override["last_used_at"])
	require.EqualValues(t, 50, first.call(http.MethodPost, first.public+"/v1/check", key, map[string]any{}).json(t)["limit"])
	first.stop()
	require.NoError(t, <-first.ended)
	first.ended <- nil

	second := startReplica(t, env...).ready()
	for _, path := range []string{"/admin/service-tokens", "/admin/tenants/" + slug + "/overrides"} {
		list, ok := second.administer(http.StatusOK, http.MethodGet, path, nil)["items"].([]any)
		require.True(t, ok)
		require.Len(t, list, 1)
		item, ok := list[0].(map[string]any)
		require.True(t, ok)
		text, ok := item["last_used_at"].(string)
		require.True(t, ok, "%v", item)
		at, err := time.Parse(time.RFC3339, text)
		require.NoError(t, err)
		require.False(t, at.Before(begun), "%s is before %s", at, begun)
	}
}
