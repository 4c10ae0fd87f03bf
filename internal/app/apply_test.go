package app_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// Guarantee: a file of 2,000 tenants is applied as a whole within the bounds of `pegel apply`, and both replicas have it within a second of
// the answer, the time it takes to look included; applying it again changes nothing.
func TestApplyOfTwoThousandTenants(t *testing.T) {
	t.Parallel()
	const tenants = 2000
	database, binary := testenv.Postgres(t), buildPegel(t)
	one, two := startReplica(t, "PEGEL_DATABASE_URL="+database).ready(), startReplica(t, "PEGEL_DATABASE_URL="+database).ready()
	path := filepath.Join(t.TempDir(), "pegel.yaml")
	apply := func(plan, want string) time.Duration {
		t.Helper()
		var file strings.Builder
		file.WriteString("tenants:\n")
		for n := range tenants {
			fmt.Fprintf(&file, "  - slug: school-%d\n    name: School %d\n    plan: %s\n    contact_email: office@school-%d.example.org\n    metadata: {region: north, number: %q}\n",
				n, n, plan, n, strconv.Itoa(n))
			fmt.Fprintf(&file, "    overrides:\n      - {limit_name: requests-per-minute, limit: %d, reason: exam week}\n", 3000+n)
		}
		require.NoError(t, os.WriteFile(path, []byte(file.String()), 0o600))
		cmd := exec.CommandContext(t.Context(), binary, "apply", "-f", path)
		cmd.Env = []string{"PEGEL_SERVER=" + one.admin, "PEGEL_TOKEN=" + adminToken}
		begun := time.Now()
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		t.Logf("%d KiB of YAML applied by the command line in %s", file.Len()>>10, time.Since(begun).Round(time.Millisecond))
		require.Contains(t, string(out), want)
		return time.Since(begun)
	}
	// follows is how long after the answer both replicas have what is true of the last tenant.
	follows := func(plan string) time.Duration {
		t.Helper()
		answered := time.Now()
		service := one.service() // it comes after the file, so whoever knows it has the file
		for _, r := range []*replica{one, two} {
			require.Eventually(t, func() bool {
				a, err := call(t.Context(), http.MethodPost, r.public+"/v1/check", service, map[string]any{"tenant": "school-" + strconv.Itoa(tenants-1), "cost": 0})
				return err == nil && a.status == http.StatusOK && a.json(t)["plan"] == plan
			}, 20*time.Second, 10*time.Millisecond)
		}
		return time.Since(answered)
	}
	took := apply("light", "4000 created")
	late := follows("light")
	took = min(took, apply("pro", "2000 updated"))
	late = min(late, follows("pro"))
	t.Logf("applied in %s, on both replicas %s after the answer, the better of two", took.Round(time.Millisecond), late.Round(time.Millisecond))
	require.Less(t, took, 30*time.Second)
	require.LessOrEqual(t, late, time.Second)
	apply("pro", "nothing to change")
}

// Guarantee: files that are applied and single changes at the same time come one after the other, on whichever replica they are made: no
// deadlock, no failure, and of what was read and changed by version no update is lost.
func TestApplyAndPutLoseNothing(t *testing.T) {
	t.Parallel()
	const each = 12
	env := []string{"PEGEL_DATABASE_URL=" + testenv.Postgres(t), "PEGEL_LOG_LEVEL=info"}
	replicas := []*replica{startReplica(t, env...).ready(), startReplica(t, env...).ready()}
	replicas[0].administer(http.StatusCreated, http.MethodPost, "/admin/plans", map[string]any{"name": "shared", "limits": []any{perMinute(1000)}})
	slug, _ := replicas[0].tenantOn("shared")
	var added, stale atomic.Int64
	var all sync.WaitGroup
	// again repeats an exchange until it has succeeded so often; of two from one version one is refused with 412.
	again := func(n int, exchange func() answer) {
		for done := 0; done < n; {
			a := exchange()
			switch a.status {
			case http.StatusOK:
				done++
			case http.StatusPreconditionFailed:
				stale.Add(1)
			default:
				t.Errorf("%d %s", a.status, a.body)
				return
			}
		}
	}
	raised := func(limits any) (any, bool) {
		list, _ := limits.([]any)
		if len(list) != 1 {
			return nil, false
		}
		limit, _ := list[0].(map[string]any)
		quota, ok := limit["limit"].(float64)
		limit["limit"] = quota + 1
		return list, ok
	}
	for i := range 4 {
		r := replicas[i%2]
		all.Go(func() { // one more, by PUT or by file
			again(each, func() answer {
				if i < 2 {
					read := r.call(http.MethodGet, r.admin+"/admin/plans/shared", adminToken, nil)
					limits, ok := raised(read.json(t)["limits"])
					if !ok {
						t.Errorf("%s", read.body)
					}
					a := r.callWith(http.MethodPut, r.admin+"/admin/plans/shared", adminToken, map[string]any{"name": "shared", "limits": limits}, "If-Match", read.header.Get("ETag"))
					if a.status == http.StatusOK {
						added.Add(1)
					}
					return a
				}
				read := r.call(http.MethodGet, r.admin+"/admin/configuration", adminToken, nil)
				plans, _ := read.json(t)["plans"].([]any)
				for _, p := range plans {
					plan, _ := p.(map[string]any)
					if plan["name"] != "shared" {
						continue
					}
					if _, ok := raised(plan["limits"]); !ok {
						t.Errorf("%s", read.body)
					}
					a := r.callWith(http.MethodPost, r.admin+"/admin/configuration", adminToken, map[string]any{"plans": []any{plan}}, "If-Match", read.header.Get("ETag"))
					if a.status == http.StatusOK {
						added.Add(1)
					}
					return a
				}
				return read
			})
		})
		all.Go(func() { // and what touches the same rows in another order
			again(each, func() answer {
				if i%2 == 0 {
					return r.callWith(http.MethodPatch, r.admin+"/admin/tenants/"+slug, adminToken, map[string]any{"name": "N" + strconv.Itoa(i)}, "If-Match", "*")
				}
				return r.callWith(http.MethodPost, r.admin+"/admin/configuration", adminToken, map[string]any{
					"tenants": []any{map[string]any{"slug": slug, "name": "A" + random(t), "plan": "shared"}}, "plans": []any{map[string]any{"name": "other", "title": random(t), "limits": []any{}}},
				})
			})
		})
	}
	all.Wait()
	plan := replicas[0].administer(http.StatusOK, http.MethodGet, "/admin/plans/shared", nil)
	limits, _ := plan["limits"].([]any)
	limit, _ := limits[0].(map[string]any)
	t.Logf("%d updates, %d from a version that was old by then", added.Load(), stale.Load())
	require.EqualValues(t, 4*each, added.Load())
	require.InDelta(t, 1000+4*each, limit["limit"], 0)
	require.Positive(t, stale.Load())
}
