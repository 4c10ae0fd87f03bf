package client_test

import (
	"context"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/api/client"
)

// Guarantee: the verdicts of the service, with their numbers, from the first hit to the refusal; and SetHeaders writes what the
// service itself wrote.
func TestCheck(t *testing.T) {
	t.Parallel()
	s := shared(t)
	s.tenant("school-17", perMinute(10, slowdown))
	wire := &recorder{}
	c := s.client(client.WithHTTPClient(&http.Client{Transport: wire}))
	check := func(cost int64) (*client.Decision, error) {
		d, err := c.Check(t.Context(), client.Check{Tenant: "school-17", User: "u1", Cost: cost})
		if d != nil {
			sameHeaders(t, wire.last(), d)
		}
		return d, err
	}

	d, err := check(0)
	require.NoError(t, err)
	require.Equal(t, client.Allow, d.Verdict)
	require.True(t, d.Allowed)
	require.Equal(t, "school-17", d.Tenant)
	require.Equal(t, "of-school-17", d.Plan)
	require.Equal(t, "redis", d.Source)
	require.Equal(t, "requests-per-minute", d.LimitName)
	require.Equal(t, []int64{10, 1, 9}, []int64{d.Limit, d.Used, d.Remaining})
	require.InDelta(t, 0.1, d.Utilization, 1e-9)
	require.Len(t, d.Limits, 1)
	require.Equal(t, time.Minute, d.Limits[0].Window)
	require.Equal(t, "sliding_window_log", d.Limits[0].EffectiveAlgorithm)
	require.Zero(t, d.Delay)

	d, err = check(8)
	require.NoError(t, err)
	require.Equal(t, client.Slow, d.Verdict)
	require.Equal(t, time.Second, d.Delay, "utilisation 0.9, half of the way to 2 s")

	d, err = check(2)
	require.True(t, client.IsRateLimited(err))
	require.Equal(t, client.Deny, d.Verdict)
	require.False(t, d.Allowed)
	wait, ok := client.RetryAfter(err)
	require.True(t, ok)
	require.Greater(t, wait, 30*time.Second)
	require.LessOrEqual(t, wait, time.Minute)
	var refusal *client.RateLimitError
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, wait, refusal.RetryAfter)
	require.Equal(t, "rate_limit_exceeded", refusal.Code)
	require.Same(t, d, refusal.Decision)
	require.Contains(t, string(refusal.Body), `"type":"https://pegel.dev/problems/rate-limit-exceeded"`)

	d, err = check(11)
	require.ErrorAs(t, err, &refusal)
	require.False(t, d.Allowed)
	require.False(t, refusal.Retryable)
	require.Equal(t, "cost_exceeds_limit", refusal.Code)
	_, ok = client.RetryAfter(err)
	require.False(t, ok, "no waiting helps")

	d, err = c.Check(t.Context(), client.Check{Tenant: "school-17", Peek: true})
	require.NoError(t, err)
	require.Equal(t, int64(9), d.Used, "refused hits and looks take nothing")
	d, err = c.Status(t.Context(), client.Query{Tenant: "school-17"})
	require.NoError(t, err)
	require.Equal(t, int64(9), d.Used)
	d, err = c.Refund(t.Context(), client.Check{Tenant: "school-17", Cost: 4})
	require.NoError(t, err)
	require.Equal(t, int64(5), d.Used)

	s.tenant("free-1")
	d, err = c.Check(t.Context(), client.Check{Tenant: "free-1"})
	require.NoError(t, err)
	require.True(t, d.Allowed)
	require.Empty(t, d.LimitName)
	sameHeaders(t, wire.last(), d)
}

// sameHeaders holds SetHeaders to what the service wrote; the clock may have gone on by a second.
func sameHeaders(t *testing.T, wire http.Header, d *client.Decision) {
	t.Helper()
	h := http.Header{}
	d.SetHeaders(h, time.Now())
	for _, name := range []string{
		"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Slowdown", "RateLimit-Policy", "RateLimit", "X-Pegel-Decision",
		"X-Pegel-Source", "Retry-After",
	} {
		require.Equal(t, wire.Get(name), strings.Join(h.Values(name), "|"), name)
	}
	const reset = "X-RateLimit-Reset"
	if want := wire.Get(reset); want != "" {
		service, err := strconv.Atoi(want)
		require.NoError(t, err)
		own, err := strconv.Atoi(h.Get(reset))
		require.NoError(t, err)
		require.InDelta(t, service, own, 5)
	}
}

// Guarantee: a check that waits for its delay is answered, however short the time for an answer is, and its context still ends it.
func TestCheckWaits(t *testing.T) {
	t.Parallel()
	s := shared(t)
	s.tenant("slowed", perMinute(1000, map[string]any{"slowdown": map[string]any{"from": 0.0, "max_delay": "2s"}}))
	_, err := s.client().Check(t.Context(), client.Check{Tenant: "slowed", Cost: 499})
	require.NoError(t, err)
	c := s.client(client.WithTimeout(200 * time.Millisecond))
	begun := time.Now()
	d, err := c.Check(t.Context(), client.Check{Tenant: "slowed", Wait: true})
	require.NoError(t, err)
	require.Equal(t, time.Second, d.Delay)
	require.GreaterOrEqual(t, time.Since(begun), time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = c.Check(ctx, client.Check{Tenant: "slowed", Wait: true})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// Guarantee: results come in the order of the checks, whatever becomes of each; any number of checks may be sent.
func TestCheckBatch(t *testing.T) {
	t.Parallel()
	s := shared(t)
	s.tenant("school-17", perMinute(3))
	s.tenant("wide", perMinute(100_000))
	wire := &recorder{}
	c := s.client(client.WithHTTPClient(&http.Client{Transport: wire}))
	check := client.Check{Tenant: "school-17"}
	results, err := c.CheckBatch(t.Context(), []client.Check{check, {Tenant: "nobody"}, check, {}, check, check, {Tenant: "wide", Wait: true}})
	require.NoError(t, err)
	require.Len(t, results, 7)
	for i, code := range []string{"", "not_found", "", "validation", "", "limited", "validation"} {
		r := results[i]
		var problem *client.Error
		switch code {
		case "":
			require.NoError(t, r.Err, i)
			require.True(t, r.Decision.Allowed, i)
		case "limited":
			require.True(t, client.IsRateLimited(r.Err), i)
			require.False(t, r.Decision.Allowed, i)
		default:
			require.ErrorAs(t, r.Err, &problem, i)
			require.Equal(t, code, problem.Code, i)
			require.Nil(t, r.Decision, i)
		}
	}
	results, err = c.CheckBatch(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, results)

	before := wire.count("/v1/check/batch")
	results, err = c.CheckBatch(t.Context(), repeat(client.Check{Tenant: "wide"}, 2500))
	require.NoError(t, err)
	require.Len(t, results, 2500)
	require.Equal(t, int64(2500), results[2499].Decision.Used)
	require.Equal(t, 3, wire.count("/v1/check/batch")-before, "1,000 to a request")

	results, err = c.CheckBatch(t.Context(), repeat(client.Check{Tenant: "wide", Path: "/" + strings.Repeat("p", 8000)}, 300))
	require.NoError(t, err, "2.4 MB of checks are more than one request may carry")
	require.Equal(t, int64(2800), results[299].Decision.Used)
}

func repeat(c client.Check, n int) []client.Check {
	all := make([]client.Check, n)
	for i := range all {
		all[i] = c
	}
	return all
}

// Guarantee: with batching, checks made at the same time share requests, each gets its own answer, and the budget is exact.
func TestBatching(t *testing.T) {
	t.Parallel()
	s := shared(t)
	s.tenant("school-17", perMinute(100))
	wire := &recorder{}
	c := s.client(client.WithHTTPClient(&http.Client{Transport: wire}), client.WithBatching())
	var mu sync.Mutex
	var all sync.WaitGroup
	counts := map[string]int{}
	ids := map[string]bool{}
	for i := range 400 {
		all.Go(func() {
			check, want := client.Check{Tenant: "school-17"}, "other"
			if i%4 == 3 {
				check.Tenant = "nobody"
			}
			d, err := c.Check(t.Context(), check)
			var problem *client.Error
			switch {
			case err == nil:
				want = "allowed"
			case client.IsRateLimited(err):
				want = "refused"
			case i%4 == 3 && asError(err, &problem) && problem.Code == "not_found":
				want = "unknown"
			}
			mu.Lock()
			defer mu.Unlock()
			counts[want]++
			if err == nil {
				ids[d.ID] = true
			}
		})
	}
	all.Wait()
	require.Equal(t, map[string]int{"allowed": 100, "refused": 200, "unknown": 100}, counts)
	require.Len(t, ids, 100, "every caller has a decision of its own")
	require.Less(t, wire.count("/v1/check")+wire.count("/v1/check/batch"), 200, "requests are shared")

	c.Close()
	_, err := c.Check(t.Context(), client.Check{Tenant: "school-17"})
	require.ErrorContains(t, err, "closed")
}

// Guarantee: what Pegel will not decide is an *Error with its code; no error holds a credential or what was submitted.
func TestErrors(t *testing.T) {
	t.Parallel()
	s := shared(t)
	key := s.tenant("school-17", perMinute(100))
	s.tenant("school-18", perMinute(100))
	s.tenant("gone", perMinute(100))
	s.administer(http.MethodPost, "/admin/networks", map[string]any{"cidr": "198.51.100.0/24", "action": "deny", "reason": "test"})
	weak := s.serviceToken("status")
	canary := "canary-" + strings.Repeat("x", 300)
	for name, c := range map[string]struct {
		token  string
		check  client.Check
		status int
		code   string
	}{
		"forged":          {"pgs_AAAAAAAAAAAA_forged", client.Check{Tenant: "school-17"}, 401, "unauthorized"},
		"no permission":   {weak, client.Check{Tenant: "school-17"}, 403, "forbidden"},
		"another tenant":  {key, client.Check{Tenant: "school-18"}, 403, "forbidden"},
		"unknown tenant":  {s.token, client.Check{Tenant: "nobody"}, 404, "not_found"},
		"nobody named":    {s.token, client.Check{}, 400, "validation"},
		"user too long":   {s.token, client.Check{Tenant: "school-17", User: canary}, 400, "validation"},
		"negative cost":   {s.token, client.Check{Tenant: "school-17", Cost: -1}, 400, "validation"},
		"denied network":  {s.token, client.Check{Address: "198.51.100.1"}, 403, "network_denied"},
		"too large":       {s.token, client.Check{Tenant: "school-17", User: strings.Repeat("u", 2<<20)}, 413, "payload_too_large"},
		"own tenant, key": {key, client.Check{}, 0, ""},
	} {
		_, err := newClient(t, s.url, c.token).Check(t.Context(), c.check)
		if c.status == 0 {
			require.NoError(t, err, name)
			continue
		}
		var problem *client.Error
		require.ErrorAs(t, err, &problem, name)
		require.Equal(t, c.status, problem.Status, name)
		require.Equal(t, c.code, problem.Code, name)
		require.Equal(t, problem.Status == http.StatusRequestEntityTooLarge, problem.RequestID == "", "%s: it was not sent", name)
		require.NotContains(t, err.Error(), c.token, name)
		require.NotContains(t, err.Error(), "canary", name)
		require.False(t, client.IsRateLimited(err), name)
	}
	for _, bad := range [][2]string{
		{"", "pgs_x"},
		{"localhost:8080", "pgs_x"},
		{"ftp://x", "pgs_x"},
		{"http://u:canary@x", "pgs_x"},
		{"http://x/?q", "pgs_x"},
		{"http://x?", "pgs_x"},
		{"http://x", ""},
		{"http://x", "pgs_canary\n"},
	} {
		_, err := client.New(bad[0], bad[1])
		require.Error(t, err, bad)
		require.NotContains(t, err.Error(), "canary")
	}
}

// Guarantee: programs that use this package get the standard library and nothing else.
func TestStandardLibraryOnly(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	require.NoError(t, err)
	require.Equal(t, "github.com/pegel-dev/pegel/api/client", strings.TrimSpace(string(out)))
}
