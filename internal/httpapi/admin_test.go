package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/api"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// wirePlan is the plan of the wire contract, word for word.
const wirePlan = `{"name":"light2","title":"Light","alert":{"at":0.8,"for":"10m"},"request_log":"denied",
 "limits":[
  {"name":"requests-per-minute","scope":"tenant","algorithm":"sliding_window_log","limit":2000,"window":"1m",
   "slowdown":{"from":0.8,"max_delay":"2s"},"on_store_failure":"open","mode":"enforce"},
  {"name":"exports","scope":"user","match":{"methods":["POST"],"paths":["/v1/exports/*"]},"algorithm":"token_bucket","limit":10,"refill":{"units":1,"every":"1s"}}]}`

func TestPlansLiveThroughTheAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.administer(http.MethodPost, "/admin/plans", wirePlan).ok(http.StatusCreated)
	require.Equal(t, "/admin/plans/light2", r.header.Get("Location"))
	created := r.json()
	require.NotZero(t, created["id"])
	read := w.administer(http.MethodGet, "/admin/plans/light2", "").ok(http.StatusOK)
	require.Equal(t, created, read.json())
	require.Equal(t, r.header.Get("ETag"), read.header.Get("ETag"))

	var sent, got struct {
		Limits []map[string]any `json:"limits"`
	}
	require.NoError(t, json.Unmarshal([]byte(wirePlan), &sent))
	require.NoError(t, json.Unmarshal(read.body, &got))
	for i, limit := range sent.Limits {
		for field, value := range limit {
			require.Equal(t, value, got.Limits[i][field], field)
		}
	}
	require.Equal(t, "sliding_window_log", got.Limits[0]["algorithm"])
	require.NotContains(t, got.Limits[1], "window")

	w.administer(http.MethodPost, "/admin/plans", wirePlan).problem(problem.Conflict)

	// What was read can be written back.
	tag := read.header.Get("ETag")
	w.administer(http.MethodPut, "/admin/plans/light2", string(read.body)).problem(problem.PreconditionRequired)
	w.administer(http.MethodPut, "/admin/plans/light2", string(read.body), "If-None-Match", "*").problem(problem.PreconditionFailed)
	w.administer(http.MethodPut, "/admin/plans/light2", string(read.body), "If-Match", `"999"`).problem(problem.PreconditionFailed)
	w.administer(http.MethodPut, "/admin/plans/light2", string(read.body), "If-Match", `W/`+tag).problem(problem.PreconditionFailed)
	w.administer(http.MethodPut, "/admin/plans/light2", string(read.body), "If-Match", `"0"`).problem(problem.PreconditionFailed)
	put := w.administer(http.MethodPut, "/admin/plans/light2", string(read.body), "If-Match", tag).ok(http.StatusOK)
	require.NotEqual(t, tag, put.header.Get("ETag"))
	w.administer(http.MethodPut, "/admin/plans/light2", string(read.body), "If-Match", tag).problem(problem.PreconditionFailed)
	w.administer(http.MethodPut, "/admin/plans/light2", string(read.body), "If-Match", "*").ok(http.StatusOK)
	w.administer(http.MethodPut, "/admin/plans/other", wirePlan, "If-Match", "*").problem(problem.Validation)

	// PUT creates what is absent.
	absent := strings.Replace(wirePlan, "light2", "light3", 1)
	w.administer(http.MethodPut, "/admin/plans/light3", absent, "If-Match", "*").problem(problem.PreconditionFailed)
	r = w.administer(http.MethodPut, "/admin/plans/light3", absent).ok(http.StatusCreated)
	require.Equal(t, "/admin/plans/light3", r.header.Get("Location"))
	w.administer(http.MethodPut, "/admin/plans/light4", strings.Replace(wirePlan, "light2", "light4", 1), "If-None-Match", "*").ok(http.StatusCreated)

	// A used plan stays; an unused one goes with its ETag.
	w.tenant("school-17", "light3")
	w.administer(http.MethodDelete, "/admin/plans/light3", "").problem(problem.PreconditionRequired)
	w.administer(http.MethodDelete, "/admin/plans/light3", "", "If-Match", r.header.Get("ETag")).problem(problem.Conflict)
	w.administer(http.MethodDelete, "/admin/plans/light4", "", "If-Match", `"7777"`).problem(problem.PreconditionFailed)
	gone := w.administer(http.MethodDelete, "/admin/plans/light4", "", "If-Match", "*").ok(http.StatusNoContent)
	require.Empty(t, gone.body)
	w.administer(http.MethodDelete, "/admin/plans/light4", "", "If-Match", "*").problem(problem.NotFound)
	w.administer(http.MethodDelete, "/admin/plans/light4", "").problem(problem.NotFound)
	w.administer(http.MethodGet, "/admin/plans/light4", "").problem(problem.NotFound)
}

func TestTenantsLiveThroughTheAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.administer(http.MethodPost, "/admin/tenants", `{"slug":"school-17","name":"School 17","plan":"light","status":"active","contact_email":"office@example.org","metadata":{"city":"Kiel"}}`).ok(http.StatusCreated)
	require.Equal(t, "/admin/tenants/school-17", r.header.Get("Location"))
	require.NotZero(t, r.json()["id"])
	w.administer(http.MethodPost, "/admin/tenants", `{"slug":"school-17","name":"Again","plan":"light"}`).problem(problem.Conflict)
	p := w.administer(http.MethodPost, "/admin/tenants", `{"slug":"school-18","name":"x","plan":"nope"}`).problem(problem.Validation)
	require.Equal(t, "/plan", p.Errors[0].Pointer)

	tag := r.header.Get("ETag")
	w.administer(http.MethodPatch, "/admin/tenants/school-17", `{"plan":"pro"}`).problem(problem.PreconditionRequired)
	w.administer(http.MethodPatch, "/admin/tenants/nobody", `{"plan":"pro"}`).problem(problem.NotFound)
	w.administer(http.MethodPatch, "/admin/tenants/school-17", `{"plan":"nope"}`, "If-Match", tag).problem(problem.Validation)
	patched := w.administer(http.MethodPatch, "/admin/tenants/school-17", `{"plan":"pro"}`, "If-Match", tag).ok(http.StatusOK).json()
	require.Equal(t, "pro", patched["plan"])
	require.Equal(t, "School 17", patched["name"])
	require.Equal(t, map[string]any{"city": "Kiel"}, patched["metadata"])
	w.administer(http.MethodPatch, "/admin/tenants/school-17", `{"name":"x"}`, "If-Match", tag).problem(problem.PreconditionFailed)
	w.administer(http.MethodPatch, "/admin/tenants/school-17", `{}`, "If-Match", "*").ok(http.StatusOK)
	for _, body := range []string{`{"slug":"x"}`, `{"metadata":{"a":null}}`, `{"metadata":null}`, `{"name":null}`, `{"status":"off"}`, `{"contact_email":"a@b\r\nBcc: c@d"}`} {
		w.administer(http.MethodPatch, "/admin/tenants/school-17", body, "If-Match", "*").problem(problem.Validation)
	}
	cleared := w.administer(http.MethodPatch, "/admin/tenants/school-17", `{"metadata":{},"contact_email":""}`, "If-Match", "*").ok(http.StatusOK).json()
	require.Empty(t, cleared["metadata"])

	// A reset shows at once on this replica.
	key := w.tenant("school-19", "light")
	w.check(key, `{"cost":1500}`).ok(http.StatusOK)
	w.administer(http.MethodPost, "/admin/tenants/school-19/reset", "").ok(http.StatusOK)
	require.InDelta(t, 1, w.check(key, `{}`).ok(http.StatusOK).json()["used"], 0)

	w.administer(http.MethodDelete, "/admin/tenants/school-19", "", "If-Match", "*").ok(http.StatusNoContent)
	w.administer(http.MethodGet, "/admin/tenants/school-19", "").problem(problem.NotFound)
	w.check(key, `{}`).problem(problem.Unauthorized)
}

func TestListsTurnPagesWithoutSkippingOrRepeating(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var want []string
	for i := range 23 {
		slug := fmt.Sprintf("t-%02d", i)
		want = append(want, slug)
		_, err := w.repository.CreateTenant(t.Context(), testActor(), tenants.Tenant{Slug: slug, Name: slug, Plan: "light", Status: tenants.Active})
		require.NoError(t, err)
	}
	var got []string
	for path := "/admin/tenants?limit=7"; path != ""; {
		var page struct {
			Items []struct{ Slug string } `json:"items"`
			Next  string                  `json:"next_cursor"`
		}
		require.NoError(t, json.Unmarshal(w.administer(http.MethodGet, path, "").ok(http.StatusOK).body, &page))
		for _, item := range page.Items {
			got = append(got, item.Slug)
		}
		if path = ""; page.Next != "" {
			path = "/admin/tenants?limit=7&cursor=" + page.Next
		}
	}
	require.Equal(t, want, got)
	for _, query := range []string{"limit=0", "limit=-1", "limit=501", "limit=1e2", "limit=1000000000000", "limit=x", "limit=1.5", "limit=", "limit=+5", "limit=05", "limit=5&limit=6", "cursor=", "cursor=tampered", "status=off", "search=%00", "search=%ff", "plan=UPPER", "q=%zz"} {
		w.administer(http.MethodGet, "/admin/tenants?"+query, "").problem(problem.Validation)
	}
	require.Len(t, w.administer(http.MethodGet, "/admin/tenants?search=T-1&limit=500&plan=light&status=active", "").ok(http.StatusOK).json()["items"], 10)
}

func TestSecretsAreShownOnceAndWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tenant("school-17", "light")
	r := w.administer(http.MethodPost, "/admin/tenants/school-17/keys", `{"name":"mobile","expires_at":"2100-01-01T00:00:00+01:00"}`, "Idempotency-Key", "k1").ok(http.StatusCreated)
	secret, _ := r.json()["secret"].(string)
	id, _ := r.json()["id"].(string)
	require.True(t, strings.HasPrefix(secret, "pgk_"+id+"_"))
	require.Equal(t, "2099-12-31T23:00:00Z", r.json()["expires_at"])
	require.Equal(t, "/admin/tenants/school-17/keys/"+id, r.header.Get("Location"))
	w.check(secret, `{}`).ok(http.StatusOK)

	// A replay answers the same without the secret; another body under the key is a conflict.
	replay := w.administer(http.MethodPost, "/admin/tenants/school-17/keys", `{"name":"mobile","expires_at":"2100-01-01T00:00:00+01:00"}`, "Idempotency-Key", "k1").ok(http.StatusCreated)
	require.Equal(t, "true", replay.header.Get("Idempotent-Replayed"))
	require.Equal(t, r.header.Get("Location"), replay.header.Get("Location"))
	want := r.json()
	delete(want, "secret")
	require.Equal(t, want, replay.json())
	w.administer(http.MethodPost, "/admin/tenants/school-17/keys", `{"name":"other"}`, "Idempotency-Key", "k1").problem(problem.Conflict)
	require.Len(t, w.administer(http.MethodGet, "/admin/tenants/school-17/keys", "").ok(http.StatusOK).json()["items"], 2)
	require.NotContains(t, string(w.administer(http.MethodGet, "/admin/tenants/school-17/keys", "").body), "secret")

	// Rotation overlaps; revocation does not.
	successor := w.administer(http.MethodPost, "/admin/tenants/school-17/keys/"+id+"/rotate", `{"overlap":"1h"}`).ok(http.StatusCreated).json()
	require.Equal(t, "mobile", successor["name"])
	next, _ := successor["secret"].(string)
	w.check(secret, `{}`).ok(http.StatusOK)
	w.check(next, `{}`).ok(http.StatusOK)
	w.clock.advance(61 * time.Minute)
	w.check(secret, `{}`).problem(problem.Unauthorized)
	w.check(next, `{}`).ok(http.StatusOK)
	w.administer(http.MethodDelete, "/admin/tenants/school-17/keys/"+fmt.Sprint(successor["id"]), "").ok(http.StatusNoContent)
	w.administer(http.MethodDelete, "/admin/tenants/school-17/keys/"+fmt.Sprint(successor["id"]), "").ok(http.StatusNoContent)
	w.check(next, `{}`).problem(problem.Unauthorized)
	w.administer(http.MethodDelete, "/admin/tenants/school-17/keys/doesnotexist", "").problem(problem.NotFound)
	w.administer(http.MethodPost, "/admin/tenants/school-17/keys/"+fmt.Sprint(successor["id"])+"/rotate", "").problem(problem.Conflict)
	for _, body := range []string{`{"overlap":"721h"}`, `{"overlap":"-1h"}`, `{"overlap":"1d"}`, `{"expires_at":"2020-01-01T00:00:00Z"}`, `{"overlap":"99999999999999999h"}`, `{"expires_at":"9999-12-31T23:59:59-12:00"}`} {
		w.administer(http.MethodPost, "/admin/tenants/school-17/keys/"+id+"/rotate", body).problem(problem.Validation)
	}

	service := w.administer(http.MethodPost, "/admin/service-tokens", `{"name":"edge","exempt":["address"],"may":["check","status"],"expires_at":null}`).ok(http.StatusCreated).json()
	token, _ := service["secret"].(string)
	w.check(token, `{"tenant":"school-17"}`).ok(http.StatusOK)
	rotated := w.administer(http.MethodPost, "/admin/service-tokens/"+fmt.Sprint(service["id"])+"/rotate", "").ok(http.StatusCreated).json()
	require.Equal(t, []any{"check", "status"}, rotated["may"])
	require.Equal(t, []any{"address"}, rotated["exempt"])
	w.administer(http.MethodDelete, "/admin/service-tokens/"+fmt.Sprint(service["id"]), "").ok(http.StatusNoContent)
	w.check(token, `{"tenant":"school-17"}`).problem(problem.Unauthorized)

	administrator := w.administer(http.MethodPost, "/admin/admin-tokens", `{"name":"alice","role":"viewer"}`).ok(http.StatusCreated).json()
	alice := bearer(fmt.Sprint(administrator["secret"]))
	w.do(w.admin, request{method: http.MethodGet, path: "/admin/plans", header: alice}).ok(http.StatusOK)
	w.do(w.admin, request{method: http.MethodPost, path: "/admin/plans", header: alice, body: wirePlan}).problem(problem.Forbidden)
	w.administer(http.MethodDelete, "/admin/admin-tokens/"+fmt.Sprint(administrator["id"]), "").ok(http.StatusNoContent)
	w.do(w.admin, request{method: http.MethodGet, path: "/admin/plans", header: alice}).problem(problem.Unauthorized)

	for _, canary := range []string{secret, next, token, fmt.Sprint(administrator["secret"]), bootstrap} {
		require.NotContains(t, w.logs.String(), canary)
	}
}

func TestTwentyEqualPostsMakeOneTenant(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var wg sync.WaitGroup
	statuses := make([]int, 20)
	bodies := make([]string, 20)
	for i := range statuses {
		wg.Go(func() {
			r := w.administer(http.MethodPost, "/admin/tenants", `{"slug":"school-17","name":"x","plan":"light"}`, "Idempotency-Key", "once")
			statuses[i], bodies[i] = r.status, string(r.body)
		})
	}
	wg.Wait()
	for i := range statuses {
		require.Equal(t, http.StatusCreated, statuses[i], bodies[i])
		require.JSONEq(t, bodies[0], bodies[i])
	}
	require.Len(t, w.administer(http.MethodGet, "/admin/audit?action=tenant.create", "").ok(http.StatusOK).json()["items"], 1)
}

func TestAddressPolicyAndMode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	read := w.administer(http.MethodGet, "/admin/address-policy", "").ok(http.StatusOK)
	w.administer(http.MethodPut, "/admin/address-policy", string(read.body)).problem(problem.PreconditionRequired)
	w.administer(http.MethodPut, "/admin/address-policy", string(read.body), "If-Match", read.header.Get("ETag")).ok(http.StatusOK)
	w.administer(http.MethodPut, "/admin/address-policy", string(read.body), "If-Match", read.header.Get("ETag")).problem(problem.PreconditionFailed)
	w.administer(http.MethodPut, "/admin/address-policy", `{"limits":[{"name":"one","limit":1,"window":"1m","scope":"address"}]}`, "If-Match", "*").ok(http.StatusOK)
	ping := func() *response {
		return w.do(w.public, request{method: http.MethodGet, path: "/v1/ping", from: "203.0.113.7"})
	}
	ping().ok(http.StatusOK)
	ping().problem(problem.RateLimitExceeded)

	require.Equal(t, "enforce", w.administer(http.MethodGet, "/admin/mode", "").ok(http.StatusOK).json()["mode"])
	w.administer(http.MethodPut, "/admin/mode", `{"mode":"off"}`).problem(problem.Validation)
	w.administer(http.MethodPut, "/admin/mode", `{"mode":"shadow"}`).ok(http.StatusOK)
	ping().ok(http.StatusOK)
	w.administer(http.MethodPut, "/admin/mode", `{"mode":"enforce"}`).ok(http.StatusOK)
	ping().problem(problem.RateLimitExceeded)
}

func TestAuditSaysWhoDidWhat(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	operator := w.administrator(tenants.Operator)
	r := w.do(w.admin, request{method: http.MethodPost, path: "/admin/tenants", body: `{"slug":"school-17","name":"x","plan":"light"}`, header: bearer(operator), from: "203.0.113.50"}).ok(http.StatusCreated)
	w.administer(http.MethodPatch, "/admin/tenants/school-17", `{"plan":"pro"}`, "If-Match", "*").ok(http.StatusOK)
	var page struct {
		Items []struct {
			Actor  struct{ Kind, Name, Address string } `json:"actor"`
			Action string                               `json:"action"`
			Diff   []map[string]any                     `json:"diff"`
		} `json:"items"`
	}
	require.NoError(t, json.Unmarshal(w.administer(http.MethodGet, "/admin/audit?resource=tenant&resource_id=school-17&from=2020-01-01T00:00:00Z&to=2100-01-01T00:00:00Z", "").ok(http.StatusOK).body, &page))
	require.Len(t, page.Items, 2)
	require.Equal(t, "tenant.update", page.Items[0].Action)
	require.Equal(t, "bootstrap", page.Items[0].Actor.Kind)
	require.Equal(t, []map[string]any{{"field": "plan", "from": "light", "to": "pro"}}, page.Items[0].Diff)
	require.Equal(t, "admin_token", page.Items[1].Actor.Kind)
	require.Equal(t, "203.0.113.50", page.Items[1].Actor.Address)
	_ = r
	for _, query := range []string{"from=yesterday", "from=2026-02-30T00:00:00Z", "to=2026-01-01", "limit=0", "actor=", "actor=%00", "cursor=x"} {
		w.administer(http.MethodGet, "/admin/audit?"+query, "").problem(problem.Validation)
	}
}

func TestRateLimitsShowTheBiggestConsumers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plan("small", 10)
	keys := map[string]string{"a": w.tenant("a", "small"), "b": w.tenant("b", "small"), "c": w.tenant("c", "small")}
	for slug, cost := range map[string]int{"a": 9, "b": 5, "c": 1} {
		w.check(keys[slug], fmt.Sprintf(`{"cost":%d}`, cost)).ok(http.StatusOK)
	}
	w.check(keys["a"], `{"cost":2}`).problem(problem.RateLimitExceeded)
	w.policy(perMinute("per-minute", 1))
	for range 3 {
		w.do(w.public, request{method: http.MethodGet, path: "/v1/ping", from: "203.0.113.7"})
	}
	w.usage.Collect(w.clock.now())
	var body struct {
		Tenants []struct {
			Tenant, Plan                          string
			Used, Limit, Allowed, Slowed, Refused int64
			Utilization                           float64
			HighSince                             *time.Time `json:"high_since"`
		}
		Addresses []struct {
			Address string
			Refused int64
		} `json:"refused_addresses"`
		Replicas []map[string]any
	}
	require.NoError(t, json.Unmarshal(w.administer(http.MethodGet, "/admin/rate-limits?top=2", "").ok(http.StatusOK).body, &body))
	require.Len(t, body.Tenants, 2)
	require.Equal(t, "a", body.Tenants[0].Tenant)
	require.Equal(t, int64(9), body.Tenants[0].Used)
	require.Equal(t, int64(10), body.Tenants[0].Limit)
	require.Equal(t, int64(1), body.Tenants[0].Refused)
	require.InDelta(t, 0.9, body.Tenants[0].Utilization, 1e-9)
	require.NotNil(t, body.Tenants[0].HighSince)
	require.Equal(t, "b", body.Tenants[1].Tenant)
	require.Nil(t, body.Tenants[1].HighSince)
	require.Equal(t, "203.0.113.7/32", body.Addresses[0].Address)
	require.Equal(t, int64(2), body.Addresses[0].Refused)
	require.Equal(t, "test-1", body.Replicas[0]["replica"])
	w.administer(http.MethodGet, "/admin/rate-limits?top=0", "").problem(problem.Validation)
	w.administer(http.MethodGet, "/admin/rate-limits?top=501", "").problem(problem.Validation)
}

// sampleBodies are bodies that pass validation, by operation.
func sampleBody(operation string) string {
	switch operation {
	case "createPlan", "putPlan":
		return strings.Replace(wirePlan, "light2", "sample", 1)
	case "createTenant":
		return `{"slug":"sample","name":"x","plan":"light"}`
	case "patchTenant":
		return `{"name":"x"}`
	case "createKey", "createServiceToken":
		return `{"name":"x"}`
	case "createAdminToken":
		return `{"name":"x","role":"viewer"}`
	case "putAddressPolicy":
		return `{"limits":[]}`
	case "putOverride":
		return `{"limit":1,"reason":"r"}`
	case "createNetwork":
		return `{"cidr":"192.0.2.0/24","action":"deny"}`
	case "putMode":
		return `{"mode":"enforce"}`
	}
	return ""
}

// TestEveryAdminRouteAsksForItsRole is generated from the contract: each operation of the administration, as everybody.
func TestEveryAdminRouteAsksForItsRole(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.policy() // wrong credentials are counted; here nobody is to be slowed by that
	rank := map[string]int{"viewer": 1, "operator": 2, "admin": 3}
	strangers := map[string]string{"nobody": "", "api key": w.tenant("sample-tenant", "light"), "service token": w.service("s", true, tenants.MayCheck, tenants.MayStatus), "nonsense": "pga_nonsense", "short bootstrap": bootstrap[:len(bootstrap)-1]}
	known := map[string]string{"viewer": w.administrator(tenants.Viewer), "operator": w.administrator(tenants.Operator), "admin": w.administrator(tenants.Admin), "bootstrap": bootstrap}

	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	require.NoError(t, err)
	operations := 0
	for path, item := range doc.Paths.Map() {
		if !strings.HasPrefix(path, "/admin/") {
			continue
		}
		for method, operation := range item.Operations() {
			operations++
			needs, _ := operation.Extensions["x-pegel-role"].(string)
			require.Contains(t, rank, needs, "%s %s", method, path)
			at := strings.NewReplacer("{plan}", "absent", "{tenant}", "absent", "{id}", "99", "{limit}", "absent").Replace(path)
			body := sampleBody(operation.OperationID)
			for name, credential := range strangers {
				r := w.do(w.admin, request{method: method, path: at, body: body, header: bearer(credential)})
				require.Equal(t, http.StatusUnauthorized, r.status, "%s %s as %s", method, path, name)
			}
			for name, credential := range known {
				r := w.do(w.admin, request{method: method, path: at, body: body, header: bearer(credential)})
				mine := rank[name]
				if name == "bootstrap" {
					mine = rank["admin"]
				}
				if mine < rank[needs] {
					require.Equal(t, http.StatusForbidden, r.status, "%s %s as %s", method, path, name)
					continue
				}
				require.NotContains(t, []int{http.StatusUnauthorized, http.StatusForbidden}, r.status, "%s %s as %s: %s", method, path, name, r.body)
			}
		}
	}
	require.GreaterOrEqual(t, operations, 35, "the contract has lost operations")
}

func TestFailedSignInsAreCountedAgainstTheAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.policy(perMinute("per-minute", 5))
	statuses := map[int]int{}
	for range 20 {
		statuses[w.do(w.admin, request{method: http.MethodGet, path: "/admin/plans", header: bearer("pga_wrong"), from: "203.0.113.66"}).status]++
	}
	require.Equal(t, map[int]int{http.StatusUnauthorized: 5, http.StatusTooManyRequests: 15}, statuses)
	w.administer(http.MethodGet, "/admin/plans", "").ok(http.StatusOK)
	two, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.admin.URL+"/admin/plans", http.NoBody)
	require.NoError(t, err)
	two.Header["Authorization"] = []string{"Bearer " + bootstrap, "Bearer " + bootstrap}
	w.send(two).problem(problem.Unauthorized)
}

func TestAdminAnswers503WithinTwoSecondsWithoutPostgres(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresServer(t)
	require.NoError(t, postgresMigrate(t, server.URL()))
	w := newWorldOn(t, server.URL())
	key := w.tenant("school-17", "light")
	require.NoError(t, server.Pause())
	for _, call := range []struct{ method, path, body, header, value string }{
		{http.MethodGet, "/admin/plans", "", "Accept", "*/*"},
		{http.MethodGet, "/admin/audit", "", "Accept", "*/*"},
		{http.MethodPost, "/admin/tenants", `{"slug":"a","name":"a","plan":"light"}`, "Idempotency-Key", "k"},
		{http.MethodPatch, "/admin/tenants/school-17", `{"plan":"pro"}`, "If-Match", "*"},
		{http.MethodPut, "/admin/plans/light", `{"name":"light","limits":[]}`, "If-Match", "*"},
	} {
		started := time.Now()
		r := w.administer(call.method, call.path, call.body, call.header, call.value)
		r.problem(problem.StoreUnavailable)
		require.NotEmpty(t, r.header.Get("Retry-After"))
		require.Less(t, time.Since(started), 2*time.Second)
	}
	w.check(key, `{}`).ok(http.StatusOK)
	w.administer(http.MethodGet, "/admin/rate-limits", "").ok(http.StatusOK)
	require.NoError(t, server.Resume())
	require.Eventually(t, func() bool { return w.administer(http.MethodGet, "/admin/plans", "").status == http.StatusOK }, 10*time.Second, 50*time.Millisecond)
}

// Guarantee: If-Match is that of RFC 9110 on every route that takes it: any, a list on one line or several, never a weak tag; what is no such
// list is a 400 that names the header, and changes nothing.
func TestIfMatchIsAListOfTags(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	put := `{"name":"gold","limits":[{"name":"a","limit":5,"window":"1m"}]}`
	policy := `{"limits":[{"name":"one","limit":1,"window":"1m","scope":"address"}]}`
	w.administer(http.MethodPut, "/admin/plans/gold", put).ok(http.StatusCreated)
	w.tenant("school-17", "gold")
	type route struct{ method, path, body, read string }
	routes := []route{
		{http.MethodPut, "/admin/plans/gold", put, ""},
		{http.MethodPatch, "/admin/tenants/school-17", `{"status":"active"}`, ""},
		{http.MethodPut, "/admin/address-policy", policy, ""},
		{http.MethodPost, "/admin/configuration", `{"mode":"enforce"}`, ""},
		{http.MethodDelete, "/admin/tenants/school-17", "", ""},
		{http.MethodDelete, "/admin/plans/gold", "", ""},
	}
	send := func(r route, lines ...string) *response {
		req, err := http.NewRequestWithContext(t.Context(), r.method, w.admin.URL+r.path, strings.NewReader(r.body))
		require.NoError(t, err)
		req.Header = http.Header{"Authorization": {"Bearer " + bootstrap}, "If-Match": lines}
		if r.body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		return w.send(req)
	}
	for _, r := range routes {
		done := http.StatusOK
		if r.method == http.MethodDelete {
			done = http.StatusNoContent
		}
		tag := func() string {
			return w.administer(http.MethodGet, r.path, "").ok(http.StatusOK).header.Get("ETag")
		}
		current := tag()
		for _, text := range []string{"1", `"1`, `1"`, `"1" "2"`, `"1", 2`, `*, "1"`, `"1", *`, "w/" + current, ",", `"a b"`, "W/"} {
			p := send(r, text).problem(problem.Validation)
			require.Equal(t, "/header/If-Match", p.Errors[0].Pointer, "%s %s", r.path, text)
		}
		for _, text := range []string{"W/" + current, `"7777"`, `"7777", W/` + current, `"0` + strings.Trim(current, `"`) + `"`, `""`, `"a,b"`, `"7,` + strings.Trim(current, `"`) + `"`} {
			send(r, text).problem(problem.PreconditionFailed)
		}
		require.Equal(t, current, tag(), "nothing was changed")
		if r.method == http.MethodDelete {
			send(r, `"7777"`, current).ok(done)
			continue
		}
		for _, lines := range []func(tag string) []string{
			func(string) []string { return []string{"*"} },
			func(tag string) []string { return []string{tag} },
			func(tag string) []string { return []string{`"7777", ` + tag} },
			func(tag string) []string { return []string{" , " + tag + " ,\t, W/\"1\",\"7777\""} },
			func(tag string) []string { return []string{`"7777"`, tag} },
		} {
			send(r, lines(tag())...).ok(done)
		}
	}
}
