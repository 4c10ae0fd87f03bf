package app_test

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// serviceInShadow is the change that is everybody's, and so tried alone.
const serviceInShadow = "Whole service in shadow, and enforcing again"

// subject is a tenant of a plan of its own, of whose quota of 10 a minute 6 are used, as two replicas see it.
type subject struct {
	*testing.T
	one, two   *replica
	token      string // a service's
	slug, plan string
}

// counter is what a tenant has used of what.
type counter struct{ used, limit float64 }

// putPlan replaces the limits of a plan, or makes one.
func (s *subject) putPlan(name string, limits ...map[string]any) {
	s.Helper()
	header := []string{}
	if name == s.plan {
		header = append(header, "If-Match", "*")
	}
	a := s.one.callWith(http.MethodPut, s.one.admin+"/admin/plans/"+name, adminToken, map[string]any{"name": name, "limits": limits}, header...)
	require.Contains(s, []int{http.StatusOK, http.StatusCreated}, a.status, "%s", a.body)
}

func (s *subject) patch(body map[string]any) {
	s.Helper()
	a := s.one.callWith(http.MethodPatch, s.one.admin+"/admin/tenants/"+s.slug, adminToken, body, "If-Match", "*")
	require.Equal(s, http.StatusOK, a.status, "%s", a.body)
}

func (s *subject) override(method string, status int, body any) {
	s.Helper()
	s.one.administer(status, method, "/admin/tenants/"+s.slug+"/overrides/requests-per-minute", body)
}

// hit asks the second replica for units; 0 only looks.
func (s *subject) hit(cost int) answer {
	s.Helper()
	return s.two.call(http.MethodPost, s.two.public+"/v1/check", s.token, map[string]any{"tenant": s.slug, "user": "u", "cost": cost})
}

// shows waits until the second replica sees the counter so.
func (s *subject) shows(want counter) {
	s.Helper()
	var got map[string]any
	require.Eventually(s, func() bool {
		a := s.hit(0)
		got = a.json(s.T)
		return got["used"] == want.used && got["limit"] == want.limit
	}, 10*time.Second, 20*time.Millisecond, "want %v, got %v", want, &got)
}

// answers waits until the second replica answers with the status.
func (s *subject) answers(status int) {
	s.Helper()
	require.Eventually(s, func() bool { return s.hit(0).status == status }, 10*time.Second, 20*time.Millisecond)
}

// safeChanges is the table of docs/plans.md: what each change does to counters that are in use.
func safeChanges() map[string]func(s *subject) {
	return map[string]func(s *subject){
		"Quota raised": func(s *subject) {
			require.Equal(s, http.StatusTooManyRequests, s.hit(5).status)
			s.putPlan(s.plan, perMinute(20))
			s.shows(counter{6, 20})
			require.Equal(s, http.StatusOK, s.hit(5).status, "who was refused a moment ago passes")
		},
		"Quota lowered": func(s *subject) {
			s.putPlan(s.plan, perMinute(4))
			s.shows(counter{4, 4}) // answers never show more than the quota
			require.Equal(s, http.StatusTooManyRequests, s.hit(1).status)
			s.putPlan(s.plan, perMinute(10))
			s.shows(counter{6, 10})
		},
		"Window changed": func(s *subject) {
			s.putPlan(s.plan, perMinute(10, map[string]any{"window": "2m"}))
			s.shows(counter{0, 10})
			s.putPlan(s.plan, perMinute(10))
			s.shows(counter{6, 10})
		},
		"Algorithm changed": func(s *subject) {
			s.putPlan(s.plan, perMinute(10, map[string]any{"algorithm": "fixed_window"}))
			s.shows(counter{0, 10})
		},
		"Limit renamed": func(s *subject) {
			s.putPlan(s.plan, perMinute(10, map[string]any{"name": "other"}))
			s.shows(counter{0, 10})
		},
		"Scope changed": func(s *subject) {
			s.putPlan(s.plan, perMinute(10, map[string]any{"scope": "user"}))
			s.shows(counter{0, 10})
		},
		"Anything else of a limit changed": func(s *subject) {
			s.putPlan(s.plan, perMinute(11, map[string]any{
				"cost": 2, "on_store_failure": "closed", "slowdown": map[string]any{"from": 0.9, "max_delay": "1s"}, "match": map[string]any{"methods": []string{"GET", "POST"}},
			}))
			look := func(cost int) answer {
				return s.two.call(http.MethodPost, s.two.public+"/v1/check", s.token, map[string]any{"tenant": s.slug, "method": "GET", "path": "/", "cost": cost})
			}
			require.Eventually(s, func() bool {
				got := look(0).json(s.T)
				return got["used"] == 6.0 && got["limit"] == 11.0
			}, 10*time.Second, 20*time.Millisecond)
			require.EqualValues(s, 8, look(1).json(s.T)["used"], "a hit costs two from now on")
		},
		"Bucket's capacity or refill changed": func(s *subject) {
			bucket := func(capacity, units int) map[string]any {
				return map[string]any{"name": "bucket", "algorithm": "token_bucket", "limit": capacity, "refill": map[string]any{"units": units, "every": "1h"}}
			}
			s.putPlan(s.plan, bucket(100, 1))
			s.shows(counter{0, 100})
			require.Equal(s, http.StatusOK, s.hit(60).status)
			s.putPlan(s.plan, bucket(120, 2))
			s.shows(counter{60, 120})
			require.Equal(s, http.StatusTooManyRequests, s.hit(61).status)
			require.Equal(s, http.StatusOK, s.hit(60).status)
		},
		"Tenant moved to a plan with a limit of the same name": func(s *subject) {
			other := "plan-" + random(s.T)
			s.putPlan(other, perMinute(30), perMinute(100, map[string]any{"name": "more", "window": "1h"}))
			s.patch(map[string]any{"plan": other})
			s.shows(counter{6, 30})
			s.patch(map[string]any{"plan": s.plan})
			s.shows(counter{6, 10})
		},
		"Override put": func(s *subject) {
			s.override(http.MethodPut, http.StatusCreated, map[string]any{"limit": 50, "reason": "r"})
			s.shows(counter{6, 50})
		},
		"Override deleted": func(s *subject) {
			s.override(http.MethodPut, http.StatusCreated, map[string]any{"limit": 50, "reason": "r"})
			s.shows(counter{6, 50})
			require.Equal(s, http.StatusOK, s.hit(10).status)
			s.override(http.MethodDelete, http.StatusNoContent, nil)
			s.shows(counter{10, 10})
			require.Equal(s, http.StatusTooManyRequests, s.hit(1).status, "what was used under it counts")
		},
		"Override expired": func(s *subject) {
			ends := time.Now().Add(3 * time.Second)
			s.override(http.MethodPut, http.StatusCreated, map[string]any{"limit": 50, "reason": "r", "expires_at": ends.Format(time.RFC3339Nano)})
			s.shows(counter{6, 50})
			s.shows(counter{6, 10})
			require.False(s, time.Now().Before(ends), "not before")
		},
		"Reset": func(s *subject) {
			s.one.administer(http.StatusOK, http.MethodPost, "/admin/tenants/"+s.slug+"/reset", nil)
			s.shows(counter{0, 10})
		},
		"Tenant suspended, and active again": func(s *subject) {
			s.patch(map[string]any{"status": "suspended"})
			s.answers(http.StatusForbidden)
			require.Equal(s, http.StatusForbidden, s.hit(3).status)
			s.patch(map[string]any{"status": "active"})
			s.shows(counter{6, 10})
		},
		"Tenant deleted, and made again under the same name": func(s *subject) {
			a := s.one.callWith(http.MethodDelete, s.one.admin+"/admin/tenants/"+s.slug, adminToken, nil, "If-Match", "*")
			require.Equal(s, http.StatusNoContent, a.status, "%s", a.body)
			s.one.administer(http.StatusCreated, http.MethodPost, "/admin/tenants", map[string]any{"slug": s.slug, "name": "T", "plan": s.plan})
			s.shows(counter{0, 10})
		},
		"Limit in shadow, and enforced again": func(s *subject) {
			s.putPlan(s.plan, perMinute(10, map[string]any{"mode": "shadow"}))
			require.Eventually(s, func() bool { return s.hit(0).json(s.T)["limit"] == nil }, 10*time.Second, 20*time.Millisecond)
			require.Equal(s, http.StatusOK, s.hit(3).status)
			require.Equal(s, http.StatusOK, s.hit(3).status, "more than fits, and not charged")
			s.putPlan(s.plan, perMinute(10))
			s.shows(counter{9, 10})
		},
	}
}

// Guarantee: the effect of every change on counters that are in use is the one that docs/plans.md states, on the replica that did not make
// it, and whichever store counts.
func TestSafeChanges(t *testing.T) {
	t.Parallel()
	for source, settings := range counters(t) {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			env := append([]string{"PEGEL_DATABASE_URL=" + testenv.Postgres(t), "PEGEL_DATABASE_DECISION_TIMEOUT=5s", "PEGEL_REDIS_TIMEOUT=5s", "PEGEL_LOG_LEVEL=info"}, settings...)
			one, two := startReplica(t, env...).ready(), startReplica(t, env...).ready()
			token := one.service()
			used := func(t *testing.T) *subject {
				t.Helper()
				s := &subject{T: t, one: one, two: two, token: token, plan: "plan-" + random(t)}
				s.putPlanNew(perMinute(10))
				s.slug, _ = one.tenantOn(s.plan)
				require.Eventually(t, func() bool { return s.hit(0).status == http.StatusOK }, 10*time.Second, 20*time.Millisecond)
				a := s.hit(6)
				require.Equal(t, http.StatusOK, a.status, "%s", a.body)
				require.Equal(t, source, a.json(t)["source"])
				return s
			}
			t.Run("each", func(t *testing.T) {
				for name, change := range safeChanges() {
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						change(used(t))
					})
				}
			})
			t.Run(serviceInShadow, func(t *testing.T) { // alone: it is everybody's
				s := used(t)
				one.administer(http.StatusOK, http.MethodPut, "/admin/mode", map[string]any{"mode": "shadow"})
				require.Eventually(t, func() bool { return s.hit(1000).status == http.StatusOK }, 10*time.Second, 20*time.Millisecond)
				require.Equal(t, http.StatusOK, s.hit(3).status)
				one.administer(http.StatusOK, http.MethodPut, "/admin/mode", map[string]any{"mode": "enforce"})
				require.Eventually(t, func() bool { return s.hit(1000).status == http.StatusTooManyRequests }, 10*time.Second, 20*time.Millisecond)
				s.shows(counter{9, 10})
			})
		})
	}
}

// putPlanNew makes the subject's own plan.
func (s *subject) putPlanNew(limits ...map[string]any) {
	s.Helper()
	s.one.administer(http.StatusCreated, http.MethodPost, "/admin/plans", map[string]any{"name": s.plan, "limits": limits})
}

// Guarantee: the table of the documentation has a row for each change that is tested, and for no other.
func TestSafeChangesAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/plans.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## Changing a plan")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	documented := map[string]bool{}
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) > 3 && !strings.Contains(line, "---") && strings.TrimSpace(cells[1]) != "Change" {
			documented[strings.TrimSpace(cells[1])] = true
		}
	}
	tested := map[string]bool{serviceInShadow: true}
	for name := range safeChanges() {
		tested[name] = true
	}
	require.Equal(t, tested, documented)
}
