package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/problem"
)

// itemsOf is the first page of a list.
func itemsOf(w *world, path string) []map[string]any {
	w.t.Helper()
	var page struct{ Items []map[string]any }
	require.NoError(w.t, json.Unmarshal(w.administer(http.MethodGet, path, "").ok(http.StatusOK).body, &page))
	return page.Items
}

// escape writes a name as one segment of a path. A dot segment would be resolved by clients on the way.
func escape(name string) string { return strings.ReplaceAll(url.PathEscape(name), ".", "%2E") }

func TestOverridesHoldUntilTheyExpire(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plan("small", 10)
	key := w.tenant("school-17", "small")
	const path = "/admin/tenants/school-17/overrides/requests-per-minute"
	until := w.clock.now().Add(time.Hour).UTC().Format(time.RFC3339)

	created := w.administer(http.MethodPut, path, `{"limit":3,"reason":"ticket 4711","expires_at":"`+until+`"}`).ok(http.StatusCreated)
	require.Equal(t, path, created.header.Get("Location"))
	require.Equal(t, "requests-per-minute", created.json()["id"])
	require.Equal(t, true, created.json()["in_force"])
	require.Equal(t, until, created.json()["expires_at"])
	w.check(key, `{"cost":4}`).problem(problem.CostExceedsLimit)
	w.check(key, `{"cost":2}`).ok(http.StatusOK)

	// A raised quota acts on the live counter at once.
	w.administer(http.MethodPut, path, `{"limit":5,"reason":"still"}`).ok(http.StatusOK)
	require.EqualValues(t, 3, w.check(key, `{"cost":0}`).ok(http.StatusOK).json()["remaining"])
	require.Nil(t, w.administer(http.MethodPut, path, `{"limit":5,"reason":"still","expires_at":null}`).ok(http.StatusOK).json()["expires_at"])

	w.administer(http.MethodPut, path, `{"limit":0,"reason":"stop","expires_at":"`+until+`"}`).ok(http.StatusOK)
	w.check(key, `{}`).problem(problem.CostExceedsLimit)
	w.clock.advance(61 * time.Minute)
	require.EqualValues(t, 10, w.check(key, `{"cost":0}`).ok(http.StatusOK).json()["limit"])
	left := itemsOf(w, "/admin/tenants/school-17/overrides")
	require.Len(t, left, 1, "expired ones stay listed")
	require.Equal(t, false, left[0]["in_force"])

	w.administer(http.MethodDelete, path, "").ok(http.StatusNoContent)
	w.administer(http.MethodDelete, path, "").problem(problem.NotFound)
	require.Len(t, itemsOf(w, "/admin/audit?resource=override"), 5)
}

func TestOverridesOfAnyLimitName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tenant("school-17", "light")
	for _, name := range []string{"a/b", "per day", "50%", "a;b?c=d#e", "..", "%2F", "~"} {
		path := "/admin/tenants/school-17/overrides/" + escape(name)
		r := w.administer(http.MethodPut, path, `{"limit":1,"reason":"r"}`).ok(http.StatusCreated)
		require.Equal(t, name, r.json()["limit_name"])
		require.Equal(t, false, r.json()["in_force"], "the plan has no such limit")
		w.administer(http.MethodDelete, r.header.Get("Location"), "").ok(http.StatusNoContent)
	}
	for _, name := range []string{`a"b`, ` a`, `a `, `a\b`, "ä", "a\nb"} {
		w.administer(http.MethodPut, "/admin/tenants/school-17/overrides/"+escape(name), `{"limit":1,"reason":"r"}`).problem(problem.Validation)
	}
}

func TestOverridesAreRefusedWithTheReasonWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tenant("school-17", "light")
	const path = "/admin/tenants/school-17/overrides/requests-per-minute"
	for body, pointer := range map[string]string{
		`{"limit":5}`: "/reason", `{"limit":5,"reason":""}`: "/reason", `{"reason":"r"}`: "/limit", `{"limit":-1,"reason":"r"}`: "/limit",
		`{"limit":1e3,"reason":"r"}`: "/limit", `{"limit":1000000000001,"reason":"r"}`: "/limit", `{"limit":5,"reason":"r","expires_at":"2020-01-01T00:00:00Z"}`: "/expires_at",
		`{"limit":5,"reason":"r","expires_at":"0001-01-01T00:00:00Z"}`: "/expires_at", `{"limit":5,"reason":" \t\u00a0"}`: "/reason",
		`{"limit":99999999999999999999,"reason":"r"}`: "/limit", `{"limit":5,"reason":"r","quota":5}`: "/quota", `{"limit":null,"reason":"r"}`: "/limit",
	} {
		p := w.administer(http.MethodPut, path, body).problem(problem.Validation)
		require.Equal(t, pointer, p.Errors[0].Pointer, body)
	}
	w.administer(http.MethodPut, "/admin/tenants/nobody/overrides/x", `{"limit":5,"reason":"r"}`).problem(problem.NotFound)
	w.administer(http.MethodGet, "/admin/tenants/nobody/overrides", "").problem(problem.NotFound)
}

func TestNetworksDenyAndCarveOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.policy()
	ping := func(from string) int {
		return w.do(w.public, request{method: http.MethodGet, path: "/v1/ping", from: from}).status
	}
	until := w.clock.now().Add(time.Hour).UTC().Format(time.RFC3339)
	denied := w.administer(http.MethodPost, "/admin/networks", `{"cidr":"203.0.113.0/30","action":"deny","reason":"stuffing","expires_at":"`+until+`"}`).ok(http.StatusCreated)
	allowed := w.administer(http.MethodPost, "/admin/networks", `{"cidr":"203.0.113.2","action":"allow"}`, "Idempotency-Key", "k").ok(http.StatusCreated)
	require.Equal(t, "203.0.113.2/32", allowed.json()["cidr"])
	require.Equal(t, allowed.json(), w.administer(http.MethodPost, "/admin/networks", `{"cidr":"203.0.113.2","action":"allow"}`, "Idempotency-Key", "k").ok(http.StatusCreated).json())
	require.Equal(t, http.StatusForbidden, ping("203.0.113.1"))
	require.Equal(t, http.StatusOK, ping("203.0.113.2"))
	require.Equal(t, http.StatusOK, ping("203.0.113.4"))
	w.administer(http.MethodPost, "/admin/networks", `{"cidr":"203.0.113.0/30","action":"deny"}`).problem(problem.Conflict)

	text := func(format string) string {
		r := w.administer(http.MethodGet, "/admin/networks?format="+format, "").ok(http.StatusOK)
		require.Equal(t, "text/plain; charset=utf-8", r.header.Get("Content-Type"))
		return string(r.body)
	}
	require.Equal(t, "203.0.113.0/31\n203.0.113.3/32\n", text("text"))
	require.Equal(t, "allow 203.0.113.2/32;\ndeny 203.0.113.0/30;\n", text("nginx"))
	require.Len(t, itemsOf(w, "/admin/networks?action=deny"), 1)
	require.Len(t, itemsOf(w, "/admin/networks?search=STUFF"), 1)
	require.Len(t, itemsOf(w, "/admin/networks?address=203.0.113.2"), 2)
	require.Len(t, itemsOf(w, "/admin/networks?address=203.0.113.3"), 1)
	require.Empty(t, itemsOf(w, "/admin/networks?address=2001:db8::1"))

	w.clock.advance(61 * time.Minute)
	require.Equal(t, http.StatusOK, ping("203.0.113.1"))
	require.Empty(t, text("text"))
	w.administer(http.MethodDelete, denied.header.Get("Location"), "").ok(http.StatusNoContent)
	w.administer(http.MethodDelete, denied.header.Get("Location"), "").problem(problem.NotFound)
	require.Len(t, itemsOf(w, "/admin/networks"), 1)
}

func TestNetworksAreRefusedWithTheReasonWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, cidr := range []string{"203.0.113.1/24", "::ffff:203.0.113.0/120", "203.0.113.0/33", "fe80::1%eth0", "nonsense", "010.0.0.1", "0x7f.1"} {
		p := w.administer(http.MethodPost, "/admin/networks", fmt.Sprintf(`{"cidr":%q,"action":"deny"}`, cidr)).problem(problem.Validation)
		require.Equal(t, "/cidr", p.Errors[0].Pointer, cidr)
	}
	for _, body := range []string{`{"cidr":"10.0.0.0/8"}`, `{"action":"deny"}`, `{"cidr":"10.0.0.0/8","action":"block"}`, `{"cidr":"10.0.0.0/8","action":"deny","expires_at":"2020-01-01T00:00:00Z"}`, `{"cidr":"10.0.0.0/8","action":"deny","expires_at":"0001-01-01T00:00:00Z"}`} {
		w.administer(http.MethodPost, "/admin/networks", body).problem(problem.Validation)
	}
	for _, id := range []string{"0", "-1", "x", "99999999999999999999"} {
		w.administer(http.MethodDelete, "/admin/networks/"+id, "").problem(problem.Validation)
	}
	w.administer(http.MethodDelete, "/admin/networks/9007199254740993", "").problem(problem.NotFound)
	for _, query := range []string{"address=x", "address=fe80::1%25eth0", "action=block", "format=xml", "search="} {
		w.administer(http.MethodGet, "/admin/networks?"+query, "").problem(problem.Validation)
	}
}

func TestListsAreNarrowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tenant("school-17", "light")
	for _, name := range []string{"mobile app", "100%", "old", "short"} {
		body := fmt.Sprintf(`{"name":%q}`, name)
		if name == "short" {
			body = fmt.Sprintf(`{"name":%q,"expires_at":%q}`, name, time.Now().Add(time.Hour).Format(time.RFC3339))
		}
		r := w.administer(http.MethodPost, "/admin/tenants/school-17/keys", body).ok(http.StatusCreated)
		if name == "old" {
			w.administer(http.MethodDelete, r.header.Get("Location"), "").ok(http.StatusNoContent)
		}
		w.administer(http.MethodPost, "/admin/service-tokens", body).ok(http.StatusCreated)
		w.administer(http.MethodPost, "/admin/admin-tokens", body[:len(body)-1]+`,"role":"viewer"}`).ok(http.StatusCreated)
	}
	keys := "/admin/tenants/school-17/keys"
	require.Len(t, itemsOf(w, keys+"?search=MOBILE"), 1)
	require.Len(t, itemsOf(w, keys+"?search=%25"), 1)
	require.Len(t, itemsOf(w, keys+"?status=revoked"), 1)
	require.Len(t, itemsOf(w, keys+"?status=active"), 4)
	require.Empty(t, itemsOf(w, keys+"?status=expired"))
	id, _ := itemsOf(w, keys+"?search=mobile")[0]["id"].(string)
	require.Len(t, itemsOf(w, keys+"?search="+id), 1)
	require.Len(t, itemsOf(w, "/admin/service-tokens?search=app&status=active"), 1)
	require.Len(t, itemsOf(w, "/admin/admin-tokens?search=app"), 1)
	require.Len(t, itemsOf(w, "/admin/plans?search=LIGH"), 1)
	w.administer(http.MethodGet, keys+"?status=lost", "").problem(problem.Validation)
}
