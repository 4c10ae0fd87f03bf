package app_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// rateLimits is what the tests read of GET /admin/rate-limits.
type rateLimits struct {
	ActiveTenants int `json:"active_tenants"`
	Tenants, High []struct {
		Tenant                                string
		Used, Limit, Allowed, Slowed, Refused int64
		Utilization                           float64
	}
	Total                struct{ Allowed, Slowed, Refused int64 }
	RefusedServiceTokens []struct {
		Name    string
		Refused int64
	} `json:"refused_service_tokens"`
	Series   []struct{ Allowed, Slowed, Refused float64 }
	Replicas []struct{ Replica, Instance, Source, Redis, Postgres, Status string }
	Missing  []string
}

func (r *replica) rateLimits(top int) (l rateLimits) {
	r.t.Helper()
	a := r.call(http.MethodGet, fmt.Sprintf("%s/admin/rate-limits?series=true&top=%d", r.admin, top), adminToken, nil)
	require.Equal(r.t, http.StatusOK, a.status, "%s", a.body)
	require.NoError(r.t, json.Unmarshal(a.body, &l))
	return l
}

// thousand makes 1,000 tenants, in one transaction, on a plan of 2,000 requests a minute.
func thousand(t *testing.T, r *replica) []string {
	t.Helper()
	slugs, tenants := make([]string, 1000), make([]any, 1000)
	for i := range slugs {
		slugs[i] = fmt.Sprintf("school-%04d", i)
		tenants[i] = map[string]any{"slug": slugs[i], "name": "School", "plan": "thousand"}
	}
	r.administer(http.StatusOK, http.MethodPost, "/admin/configuration", map[string]any{
		"plans": []any{map[string]any{"name": "thousand", "limits": []any{perMinute(2000)}}}, "tenants": tenants,
	})
	return slugs
}

// Guarantee: the top ten of 1,000 tenants over two replicas are right in order and numbers on both, within seconds.
func TestTopTenOfAThousandTenantsOverTwoReplicas(t *testing.T) {
	t.Parallel()
	env := []string{"PEGEL_DATABASE_URL=" + testenv.Postgres(t), "PEGEL_REDIS_URL=" + testenv.Redis(t), "PEGEL_REDIS_TIMEOUT=5s"}
	replicas := []*replica{startReplica(t, env...).ready(), startReplica(t, env...).ready()}
	slugs := thousand(t, replicas[0])
	service, pegel := replicas[0].service(), buildPegel(t)
	for _, r := range replicas {
		require.Eventually(t, func() bool {
			a, err := call(t.Context(), http.MethodGet, r.public+"/v1/status?tenant="+slugs[999], service, nil)
			return err == nil && a.status == http.StatusOK
		}, 10*time.Second, 20*time.Millisecond)
	}

	// Tenant n of the first ten makes 300 − 20n requests, uneven over the replicas; the others 3 each.
	sent := make([]int64, len(slugs))
	var checks [2][]any
	for i, slug := range slugs {
		n := 3
		if i < 10 {
			n = 300 - 20*i
		}
		for k := range n {
			at := min(1, k%(2+i%3))
			checks[at] = append(checks[at], map[string]any{"tenant": slug})
			sent[i]++
		}
	}
	for i, r := range replicas {
		for from := 0; from < len(checks[i]); from += 1000 {
			part := checks[i][from:min(from+1000, len(checks[i]))]
			require.Equal(t, http.StatusOK, r.call(http.MethodPost, r.public+"/v1/check/batch", service, map[string]any{"checks": part}).status)
		}
	}
	driven := time.Now()

	for i, r := range replicas {
		var got rateLimits
		if !assertEventually(t, 30*time.Second, func() bool {
			got = r.rateLimits(10)
			for k := range got.Tenants {
				if got.Tenants[k].Tenant != slugs[k] || got.Tenants[k].Allowed != sent[k] || got.Tenants[k].Used != sent[k] {
					return false
				}
			}
			return len(got.Tenants) == 10 && got.ActiveTenants == 1000
		}) {
			require.Fail(t, "the top ten are not right", "replica %d: %+v", i, got)
		}
		t.Logf("replica %d: right %s after the last request", i, time.Since(driven).Round(time.Millisecond))
		require.Len(t, got.Replicas, 2)
		require.NotEqual(t, got.Replicas[0].Instance, got.Replicas[1].Instance)
		require.Empty(t, got.Missing)
		require.Empty(t, got.High)

		var top rateLimits
		require.NoError(t, json.Unmarshal(topOnce(t, pegel, r), &top))
		require.Equal(t, got.Tenants, top.Tenants, "pegel top")
		page := overviewPage(t, r)
		for k := range 10 {
			row := regexp.MustCompile(`(?s)>` + slugs[k] + `</a>.*?data-label="Used" class="n">(\d+) .*?data-label="Allowed" class="n opt">(\d+)<`).FindStringSubmatchIndex(page)
			require.NotNil(t, row, "%s follows on the dashboard", slugs[k])
			require.Equal(t, []string{strconv.FormatInt(sent[k], 10), strconv.FormatInt(sent[k], 10)}, []string{page[row[2]:row[3]], page[row[4]:row[5]]})
			page = page[row[1]:]
		}
	}
	sum, sentInAll := 0.0, float64(len(checks[0])+len(checks[1]))
	if !assertEventually(t, 30*time.Second, func() bool {
		sum = 0
		for _, p := range replicas[0].rateLimits(1).Series {
			sum += 10 * p.Allowed
		}
		return math.Abs(sum-sentInAll) < 0.02*sentInAll // strangers were counted too while the token was not known yet
	}) {
		require.Fail(t, "the series of the hour has not all of them", "%v of %v", sum, sentInAll)
	}

	// History has them too, once, when the replicas have written.
	require.Eventually(t, func() bool {
		a := replicas[1].call(http.MethodGet, replicas[1].admin+"/admin/tenants/"+slugs[0]+"/usage?by=limit", adminToken, nil)
		var history struct {
			Series []struct {
				Name  string
				Total struct{ Allowed int64 }
			}
		}
		require.NoError(t, json.Unmarshal(a.body, &history))
		return len(history.Series) == 1 && history.Series[0].Name == "requests-per-minute" && history.Series[0].Total.Allowed == sent[0]
	}, 60*time.Second, 200*time.Millisecond)
}

// topOnce is what pegel top prints for scripts.
func topOnce(t *testing.T, binary string, r *replica) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, "top", "--once", "-o", "json", "--server", r.admin)
	cmd.Env = []string{"PEGEL_TOKEN=" + adminToken}
	out, err := cmd.Output()
	require.NoError(t, err)
	return out
}

// overviewPage signs in to the dashboard and is its first page, from the list of the biggest consumers on.
func overviewPage(t *testing.T, r *replica) string {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.admin+"/dashboard/sign-in", strings.NewReader(url.Values{"token": {adminToken}}.Encode()))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	res, err := (&http.Client{Jar: jar}).Do(req) // follows to the page
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode, "%s", body)
	_, list, found := strings.Cut(string(body), `id="live-top"`)
	require.True(t, found, "%s", body)
	return list
}

func assertEventually(t *testing.T, limit time.Duration, ok func() bool) bool {
	t.Helper()
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
		if ok() {
			return true
		}
		time.Sleep(50 * time.Millisecond)
	}
	return false
}

// Guarantee: without Redis replicas see each other through Postgres, and a replica that ends leaves the list at once but not the
// hour's chart; a 429 counts as a service token's only when its own address is refused.
func TestReplicasSeeEachOtherThroughPostgres(t *testing.T) {
	t.Parallel()
	settings := []string{"PEGEL_DATABASE_URL=" + testenv.Postgres(t), "PEGEL_DATABASE_DECISION_TIMEOUT=5s"}
	stays, goes := startReplica(t, settings...).ready(), startReplica(t, settings...).ready()
	slug, key := stays.tenant(perMinute(1))
	goes.knows(key)
	service := stays.service()
	require.Equal(t, http.StatusOK, goes.call(http.MethodPost, goes.public+"/v1/check", key, map[string]any{}).status)
	goes.knows(key)
	require.Equal(t, http.StatusTooManyRequests, stays.call(http.MethodPost, stays.public+"/v1/check", service, map[string]any{"tenant": slug}).status)

	stays.administer(http.StatusOK, http.MethodPost, "/admin/configuration", map[string]any{"address_policy": map[string]any{"limits": []any{map[string]any{
		"name": "tight", "scope": "address", "algorithm": "fixed_window", "limit": 0, "window": "1m", "applies_to": "all",
	}}}})
	plain := stays.administer(http.StatusCreated, http.MethodPost, "/admin/service-tokens", map[string]any{"name": "not-exempt", "may": []string{"check"}})
	secret, _ := plain["secret"].(string)
	require.Equal(t, http.StatusTooManyRequests, stays.call(http.MethodGet, stays.public+"/v1/ping", secret, nil).status)

	require.Eventually(t, func() bool {
		l := stays.rateLimits(10)
		return len(l.Replicas) == 2 && len(l.Tenants) == 1 && l.Tenants[0].Allowed == 1 && l.Tenants[0].Refused == 1 &&
			len(l.RefusedServiceTokens) == 1 && l.RefusedServiceTokens[0].Name == "not-exempt"
	}, 20*time.Second, 50*time.Millisecond)
	goes.stop()
	require.Eventually(t, func() bool { return len(stays.rateLimits(10).Replicas) == 1 }, 30*time.Second, 50*time.Millisecond)
}
