package app_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/app"
	"github.com/pegel-dev/pegel/internal/testenv"
)

const hookSecret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="

// hooks receives webhooks whose signature is good and fresh, and remembers those about tenants.
type hooks struct {
	*httptest.Server

	mu    sync.Mutex
	types []string
}

func newHooks(t *testing.T) *hooks {
	t.Helper()
	verifier, err := standardwebhooks.NewWebhook(hookSecret)
	require.NoError(t, err)
	h := &hooks{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		var body struct {
			Type string
			Data struct{ Kind string }
		}
		if err != nil || verifier.Verify(raw, r.Header) != nil || json.Unmarshal(raw, &body) != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if body.Data.Kind == "tenant_high" {
			h.types = append(h.types, body.Type)
		}
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hooks) got() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.types, " ")
}

// alertEnv is where alerts of a test go.
func alertEnv(mail *testenv.MailServer, h *hooks) []string {
	return []string{
		"PEGEL_SMTP_URL=smtp://" + mail.Addr, "PEGEL_MAIL_FROM=pegel@example.org", "PEGEL_ALERT_TO=ops@example.org",
		"PEGEL_ALERT_WEBHOOK_URL=" + h.URL, "PEGEL_ALERT_WEBHOOK_SECRET=" + hookSecret,
	}
}

// about counts the mails that say something.
func about(mail *testenv.MailServer, text string) (n int) {
	for _, m := range mail.Mails() {
		if strings.Contains(strings.ReplaceAll(string(m.Raw), "=\r\n", ""), text) {
			n++
		}
	}
	return n
}

// Guarantee: a tenant that stays high is one mail and one webhook, however many replicas there are; it is listed,
// acknowledged and resolved once; and a Redis that goes away is told of as well.
func TestAlertsOfAnInstallation(t *testing.T) {
	t.Parallel()
	mail, h, redis := testenv.NewMailServer(t, testenv.MailOptions{}), newHooks(t), testenv.RedisServer(t)
	env := append(alertEnv(mail, h), "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_REDIS_URL="+redis.URL(),
		"PEGEL_REDIS_TIMEOUT=5s", "PEGEL_DATABASE_DECISION_TIMEOUT=5s")
	replicas := []*replica{startReplica(t, env...).ready(), startReplica(t, env...).ready(), startReplica(t, env...).ready()}
	one := replicas[0]
	one.administer(http.StatusCreated, http.MethodPost, "/admin/plans", map[string]any{
		"name": "small", "limits": []map[string]any{perMinute(100)}, "alert": map[string]any{"at": 0.8, "for": "2s"},
	})
	slug, key := one.tenantOn("small")
	for _, r := range replicas {
		r.knows(key)
	}
	require.Equal(t, http.StatusOK, one.call(http.MethodPost, one.public+"/v1/check", key, map[string]any{"cost": 85}).status)

	opened := slug + " at 85 % of requests-per-minute"
	require.Eventually(t, func() bool { return about(mail, opened) == 1 && h.got() == "alert.opened" }, 40*time.Second, 100*time.Millisecond)
	items, _ := replicas[1].administer(http.StatusOK, http.MethodGet, "/admin/alerts?tenant="+slug, nil)["items"].([]any)
	require.Len(t, items, 1)
	found, _ := items[0].(map[string]any)
	require.Equal(t, "open", found["status"])
	require.InDelta(t, 0.85, found["utilization"], 0.001)
	metrics := one.call(http.MethodGet, one.admin+"/metrics", "", nil)
	require.Contains(t, string(metrics.body), "pegel_alerts_open ")

	replicas[2].administer(http.StatusOK, http.MethodPost, "/admin/tenants/"+slug+"/reset", nil)
	require.Eventually(t, func() bool {
		one.call(http.MethodPost, one.public+"/v1/check", key, map[string]any{}) // 1 % now
		return about(mail, slug+" is below 70 % of requests-per-minute again") == 1 && h.got() == "alert.opened alert.resolved"
	}, 120*time.Second, 500*time.Millisecond)
	require.Equal(t, 1, about(mail, opened))

	require.NoError(t, redis.Stop())
	require.Eventually(t, func() bool { return about(mail, "Redis is away") == 1 }, 60*time.Second, 200*time.Millisecond)
	require.Equal(t, 1, about(mail, opened))
}

// Guarantee: an outage of Postgres, in which nothing can be written down, is told of once when it is over.
func TestAnOutageOfPostgresIsTold(t *testing.T) {
	t.Parallel()
	mail, h, postgres := testenv.NewMailServer(t, testenv.MailOptions{}), newHooks(t), testenv.PostgresServer(t)
	env := append(alertEnv(mail, h), "PEGEL_DATABASE_URL="+postgres.URL(), "PEGEL_REDIS_URL="+testenv.RedisServer(t).URL())
	one := startReplica(t, env...).ready()
	startReplica(t, env...).ready()
	require.Eventually(t, func() bool {
		return strings.Contains(string(one.call(http.MethodGet, one.admin+"/metrics", "", nil).body), "pegel_alert_judgement_age_seconds ")
	}, 10*time.Second, 100*time.Millisecond)
	require.NoError(t, postgres.Pause())
	down := time.Now()
	one.becomes(30*time.Second, http.StatusOK, map[string]any{"postgres": "down"})
	require.Eventually(t, func() bool { return strings.Contains(one.logs.String(), "alerts cannot be judged now") }, 60*time.Second, 100*time.Millisecond)
	require.Eventually(t, func() bool { return time.Since(down) > 20*time.Second }, 60*time.Second, time.Second, "long enough to be worth a mail")
	require.NoError(t, postgres.Resume())
	require.Eventually(t, func() bool { return about(mail, "Postgres was away") == 1 }, 60*time.Second, 100*time.Millisecond)
}

// Guarantee: the settings can be tried, and what does not work is said, without the secret.
func TestAlertsCanBeTried(t *testing.T) {
	t.Parallel()
	mail, h := testenv.NewMailServer(t, testenv.MailOptions{}), newHooks(t)
	results, err := app.TestAlerts(t.Context(), app.Sources{Env: alertEnv(mail, h)}, time.Now())
	require.NoError(t, err)
	require.Equal(t, []app.AlertTest{{Channel: "mail"}, {Channel: "webhook"}}, results)
	require.Equal(t, 1, about(mail, "Subject: [Pegel] test: school-17"))
	require.Equal(t, "alert.test", h.got())

	_, err = app.TestAlerts(t.Context(), app.Sources{}, time.Now())
	require.ErrorContains(t, err, "there is nobody to tell")
	h.Close()
	results, err = app.TestAlerts(t.Context(), app.Sources{Env: alertEnv(mail, h)}, time.Now())
	require.NoError(t, err)
	require.Contains(t, results[1].Error, "refused")
}
