package app_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// scraped is one scrape: how many series each metric has, and its type and labels.
type scraped map[string]scrapedMetric

type scrapedMetric struct {
	kind   string
	labels []string
	series int
}

func (r *replica) scrape() scraped {
	r.t.Helper()
	a := r.call(http.MethodGet, r.admin+"/metrics", "", nil)
	require.Equal(r.t, http.StatusOK, a.status)
	all := scraped{}
	for line := range strings.Lines(string(a.body)) {
		if typed := regexp.MustCompile(`^# TYPE (\w+) (\w+)`).FindStringSubmatch(line); typed != nil {
			all[typed[1]] = scrapedMetric{kind: typed[2]}
			continue
		}
		sample := regexp.MustCompile(`^(\w+?)(_bucket|_sum|_count)?(?:\{(.*)\})? `).FindStringSubmatch(line)
		if sample == nil || strings.HasPrefix(line, "#") {
			continue
		}
		name := sample[1]
		m, known := all[name]
		if !known || m.kind != "histogram" && m.kind != "summary" {
			name += sample[2]
			m, known = all[name]
		}
		require.True(r.t, known, line)
		m.series++
		for _, label := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(sample[3], -1) {
			if label[1] != "le" && label[1] != "quantile" && !slices.Contains(m.labels, label[1]) {
				m.labels = append(m.labels, label[1])
			}
		}
		slices.Sort(m.labels)
		all[name] = m
	}
	return all
}

func (s scraped) total() (n int) {
	for _, m := range s {
		n += m.series
	}
	return n
}

// complete is a replica that has everything switched on, and has decided by most doors.
func complete(t *testing.T) (*replica, string) {
	t.Helper()
	upstream := "http://127.0.0.1:1"
	r := startReplica(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_REDIS_URL="+testenv.Redis(t), "PEGEL_REDIS_TIMEOUT=5s",
		"PEGEL_RLS_LISTEN=127.0.0.1:0", "PEGEL_PROXY_LISTEN=127.0.0.1:0", "PEGEL_PROXY_UPSTREAM="+upstream).ready()
	service := r.service()
	slug, _ := r.tenant(perMinute(2))
	for range 3 {
		r.call(http.MethodPost, r.public+"/v1/check", service, map[string]any{"tenant": slug})
	}
	r.call(http.MethodGet, r.public+"/v1/ping", "", nil)
	r.call(http.MethodGet, r.proxy+"/", "", nil)
	return r, service
}

// B069: whatever clients send, the number of series is fixed. 100,000 random addresses, paths, tenants, users and agents.
func TestMetricsDoNotGrowWithWhatClientsSend(t *testing.T) {
	t.Parallel()
	r, service := complete(t)
	before := r.scrape()
	dice := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		checks := make([]any, 1000)
		for i := range checks {
			check := map[string]any{"address": fmt.Sprintf("%d.%d.%d.%d", 1+dice.IntN(99), dice.IntN(256), dice.IntN(256), dice.IntN(256)), "method": "GET", "path": fmt.Sprintf("/%x", dice.Uint64())}
			if i%10 == 0 {
				check = map[string]any{"tenant": fmt.Sprintf("t-%x", dice.Uint64()), "user": fmt.Sprintf("u-%x", dice.Uint64())}
			}
			checks[i] = check
		}
		require.Equal(t, http.StatusOK, r.call(http.MethodPost, r.public+"/v1/check/batch", service, map[string]any{"checks": checks}).status)
	}
	for range 300 {
		req, err := http.NewRequestWithContext(t.Context(), fmt.Sprintf("M%d", dice.IntN(1000)), fmt.Sprintf("%s/%x", r.public, dice.Uint64()), http.NoBody)
		require.NoError(t, err)
		req.Header.Set("User-Agent", fmt.Sprintf("agent-%x", dice.Uint64()))
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
	}
	after := r.scrape()
	t.Logf("%d series before, %d after", before.total(), after.total())
	require.LessOrEqual(t, after.total(), before.total()+10, "an outcome or two that had not been seen")
	require.Less(t, after.total(), 1000)
	for name, m := range after {
		for _, label := range m.labels {
			require.NotContains(t, []string{"tenant", "user", "key", "address", "path", "method", "token", "agent"}, label, name)
		}
	}
}

// Guarantee: without Redis in the settings no metric says that Redis were down, which would be an alert for good.
func TestMetricsOfAStoreThatNobodyWants(t *testing.T) {
	t.Parallel()
	r := startReplica(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t)).ready()
	text := string(r.call(http.MethodGet, r.admin+"/metrics", "", nil).body)
	require.Contains(t, text, `pegel_store_up{store="postgres"} 1`)
	require.Contains(t, text, `pegel_decision_source{source="postgres"} 1`)
	require.NotContains(t, text, `store="redis"`)
}

// Guarantee: docs/metrics.md lists exactly what is exported, with type and labels.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	documented := scraped{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(pegel_[a-z_]+)` \\| ([a-z]+) \\|([^|]*)\\|").FindAllStringSubmatch(string(text), -1) {
		m := scrapedMetric{kind: row[2]}
		for _, label := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(row[3], -1) {
			m.labels = append(m.labels, label[1])
		}
		slices.Sort(m.labels)
		documented[row[1]] = m
	}
	r, _ := complete(t)
	exported := scraped{}
	for name, m := range r.scrape() {
		if strings.HasPrefix(name, "pegel_") {
			exported[name] = scrapedMetric{kind: m.kind, labels: m.labels}
		}
	}
	for name, m := range documented { // series that nobody has needed yet
		if _, there := exported[name]; !there && slices.Contains([]string{"pegel_alert_messages_total", "pegel_rls_calls_total", "pegel_config_broken_row"}, name) {
			exported[name] = m
		}
	}
	require.Equal(t, documented, exported)
}
