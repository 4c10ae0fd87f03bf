package dashboard_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/app"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// service is a whole replica on a real Postgres and a real Redis.
type service struct {
	t             *testing.T
	public, admin string
}

func startService(t *testing.T) *service {
	t.Helper()
	cfg, err := app.Load(app.Sources{Env: []string{
		"PEGEL_LISTEN=127.0.0.1:0", "PEGEL_ADMIN_LISTEN=127.0.0.1:0", "PEGEL_ADMIN_TOKEN=" + bootstrap, "PEGEL_DRAIN_PAUSE=0s",
		"PEGEL_DATABASE_URL=" + testenv.Postgres(t), "PEGEL_REDIS_URL=" + testenv.RedisServer(t).URL(),
		"PEGEL_REDIS_TIMEOUT=5s", "PEGEL_DATABASE_DECISION_TIMEOUT=5s",
	}})
	require.NoError(t, err)
	logs := &logBuffer{}
	replica, err := app.New(t.Context(), cfg, app.Options{Log: slog.New(slog.NewTextHandler(logs, nil)), Now: time.Now, Version: "test", Name: "pegel-0"})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- replica.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(patience):
			require.Fail(t, "the replica does not end: a live page holds it")
		}
		if t.Failed() {
			t.Log(logs.String())
		}
	})
	select {
	case <-replica.Ready():
	case <-time.After(patience):
		require.Fail(t, "the replica is not ready", logs.String())
	}
	return &service{t: t, public: "http://" + replica.Addr("public"), admin: "http://" + replica.Addr("admin")}
}

// call sends JSON to the API and reads JSON back.
func (s *service) call(status int, method, url, token string, body any) map[string]any {
	s.t.Helper()
	raw, err := json.Marshal(body)
	require.NoError(s.t, err)
	r, err := http.NewRequestWithContext(s.t.Context(), method, url, strings.NewReader(string(raw)))
	require.NoError(s.t, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(r)
	require.NoError(s.t, err)
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	require.Equal(s.t, status, res.StatusCode, "%s", answer)
	var m map[string]any
	if len(answer) > 0 {
		require.NoError(s.t, json.Unmarshal(answer, &m))
	}
	return m
}

func (s *service) secret(path string, body any) string {
	s.t.Helper()
	secret, ok := s.call(http.StatusCreated, http.MethodPost, s.admin+path, bootstrap, body)["secret"].(string)
	require.True(s.t, ok)
	return secret
}

// Guarantee: what on-call does, in a real browser on a whole service: sign in, find the tenant that runs away, open the
// explanation of its 429, grant it an override that expires, see it act; revoke a token and see it refused; and a viewer
// is offered none of it, and refused when they try.
func TestOnCallStory(t *testing.T) {
	t.Parallel()
	s := startService(t)
	s.call(http.StatusCreated, http.MethodPost, s.admin+"/admin/tenants", bootstrap, map[string]any{"slug": "school-17", "name": "School 17", "plan": "light"})
	s.call(http.StatusCreated, http.MethodPost, s.admin+"/admin/tenants", bootstrap, map[string]any{"slug": "quiet", "name": "Quiet", "plan": "light"})
	key := s.secret("/admin/tenants/school-17/keys", map[string]any{"name": "n8n"})
	svc := s.secret("/admin/service-tokens", map[string]any{"name": "edge", "may": []string{"check"}, "exempt": []string{"address"}})
	operator := s.secret("/admin/admin-tokens", map[string]any{"name": "on call", "role": "admin"})
	viewer := s.secret("/admin/admin-tokens", map[string]any{"name": "guest", "role": "viewer"})
	check := func(status int, cost int) map[string]any {
		return s.call(status, http.MethodPost, s.public+"/v1/check", key, map[string]any{"cost": cost})
	}
	check(http.StatusOK, 2000)
	refused := check(http.StatusTooManyRequests, 1)
	s.call(http.StatusOK, http.MethodPost, s.public+"/v1/check", svc, map[string]any{"tenant": "quiet"})

	b := chromium(t, s.admin)
	b.size(1280, 900)
	b.open("/") // leads to the dashboard, which asks to sign in first
	b.sees("Admin token")
	b.run(chromedp.SendKeys(chromedp.CSS("#token"), "pga_nonsense"), chromedp.Submit(chromedp.CSS("#token")))
	b.sees("This is not a valid admin token.")
	b.signIn(operator)
	b.sees("Redis decides.")

	// The runaway is on top, and the page gets there by itself.
	b.until(`(document.querySelector("#live-top tbody tr:first-child")?.innerText ?? "").match(/^school-17.*100 %/s) !== null`, "the runaway on top")
	b.clean()

	// Why was it refused?
	id, ok := refused["decision_id"].(string)
	require.True(t, ok)
	require.Eventually(t, func() bool { // it is written within half a second
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.admin+"/admin/decisions/"+id, http.NoBody)
		if err != nil {
			return false
		}
		r.Header.Set("Authorization", "Bearer "+operator)
		res, err := http.DefaultClient.Do(r)
		return err == nil && res.Body.Close() == nil && res.StatusCode == http.StatusOK
	}, patience, 100*time.Millisecond)
	b.open("/dashboard/decisions")
	b.run(chromedp.SendKeys(chromedp.CSS("#id"), id), chromedp.Submit(chromedp.CSS("#id")))
	b.sees("Refused: tenant school-17")
	b.sees("requests-per-minute")

	// Give it more for a day, by the form, with a mistake first.
	b.open("/dashboard/tenants/school-17")
	b.run(chromedp.Click(chromedp.CSS("#overrides .more > summary")), chromedp.SendKeys(chromedp.CSS("#override-limit"), "5,000"),
		chromedp.SendKeys(chromedp.CSS("#override-reason"), "report week"), chromedp.Submit(chromedp.CSS("#override-limit")))
	b.sees("must be a whole number")
	require.Equal(t, "report week", eval[string](b, `document.querySelector("#override-reason").value`), "what was typed is kept")
	b.run(chromedp.SetValue(chromedp.CSS("#override-limit"), "5000"), chromedp.Submit(chromedp.CSS("#override-limit")))
	b.sees("Override saved.")
	b.sees("in 24 h")
	b.sees("of 5,000")
	require.Eventually(t, func() bool { // it acts: within a second
		res := s.call(http.StatusOK, http.MethodGet, s.public+"/v1/status", key, nil)
		return res["limit"] == 5000.0
	}, patience, 50*time.Millisecond)
	check(http.StatusOK, 1000)
	b.sees("60 %") // 3,000 of 5,000, without a reload

	// Revoke the service's token.
	b.open("/dashboard/tokens")
	b.run(chromedp.Click(chromedp.CSS("#services td .confirm > summary")), chromedp.Click(chromedp.CSS("#services td .confirm button.danger")))
	b.sees("Token revoked.")
	b.sees("revoked")
	s.call(http.StatusUnauthorized, http.MethodPost, s.public+"/v1/check", svc, map[string]any{"tenant": "quiet"})
	b.open("/dashboard/audit")
	b.sees("service_token.revoke")
	b.sees("on call")
	b.clean()

	// A viewer sees the same and changes nothing.
	b.run(chromedp.Click(chromedp.CSS(`form[action="/dashboard/sign-out"] button`)), chromedp.WaitVisible(chromedp.CSS("#token")))
	b.signIn(viewer)
	b.open("/dashboard/tenants/school-17")
	b.sees("5,000")
	require.Zero(t, eval[int](b, `document.querySelectorAll('main form[method="post"]').length`), "nothing is offered")
	answer := eval[int](b, `fetch("/dashboard/tenants/school-17/reset", {method: "POST", headers: {"Content-Type": "application/x-www-form-urlencoded"}, body: ""}).then((r) => r.status)`)
	require.Equal(t, http.StatusForbidden, answer)
}
