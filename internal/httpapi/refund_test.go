package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

func (w *world) refund(credential, body string) *response {
	w.t.Helper()
	return w.do(w.public, request{method: http.MethodPost, path: "/v1/refund", body: body, header: bearer(credential)})
}

func TestRefundGivesUnitsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plan("small", 5)
	key := w.tenant("school-17", "small")
	edge := w.service("edge", true, tenants.MayCheck, tenants.MayRefund)
	w.check(key, `{"cost":5}`).ok(http.StatusOK)
	w.check(key, `{}`).ok(http.StatusTooManyRequests)

	r := w.refund(edge, `{"tenant":"school-17","cost":2}`).ok(http.StatusOK)
	require.Equal(t, "no-store", r.header.Get("Cache-Control"))
	body := r.json()
	require.Equal(t, "allow", body["decision"])
	require.InDelta(t, 3, body["used"], 0)
	require.InDelta(t, 2, body["remaining"], 0)
	w.check(key, `{"cost":2}`).ok(http.StatusOK)

	body = w.refund(edge, `{"tenant":"school-17","cost":0}`).ok(http.StatusOK).json()
	require.Equal(t, "deny", body["decision"], "what a hit would get, and no error")
	require.InDelta(t, 4, w.refund(edge, `{"tenant":"school-17"}`).ok(http.StatusOK).json()["used"], 0, "one unit unless said otherwise")
	require.InDelta(t, 0, w.refund(edge, `{"tenant":"school-17","cost":1000000}`).ok(http.StatusOK).json()["used"], 0)

	w.policy(perMinute("per-minute", 5))
	w.check(edge, `{"address":"203.0.113.7","cost":5}`).ok(http.StatusOK)
	require.InDelta(t, 4, w.refund(edge, `{"address":"203.0.113.7"}`).ok(http.StatusOK).json()["used"], 0)
}

func TestWhoMayRefund(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plan("small", 5)
	key := w.tenant("school-17", "small")
	edge := w.service("edge", true, tenants.MayCheck, tenants.MayStatus, tenants.MayIdentify)
	w.check(key, `{"cost":5}`).ok(http.StatusOK)
	w.refund(key, `{"cost":1}`).problem(problem.Forbidden)
	w.refund(key, `{"tenant":"school-17"}`).problem(problem.Forbidden)
	w.refund(edge, `{"tenant":"school-17"}`).problem(problem.Forbidden)
	w.refund("", `{"tenant":"school-17"}`).problem(problem.Unauthorized)
	w.refund("pgs_forged", `{"tenant":"school-17"}`).problem(problem.Unauthorized)
	may := w.service("may", true, tenants.MayRefund)
	w.refund(may, `{"tenant":"nobody"}`).problem(problem.NotFound)
	w.refund(may, `{"user":"u"}`).problem(problem.Validation)
	w.check(may, `{"tenant":"school-17"}`).problem(problem.Forbidden)
	require.InDelta(t, 5, w.refund(may, `{"tenant":"school-17","cost":0}`).ok(http.StatusOK).json()["used"], 0, "nothing was given back")

	w.memory.fail.Store(&errStoreAway)
	r := w.refund(may, `{"tenant":"school-17"}`)
	r.problem(problem.StoreUnavailable)
	require.NotEmpty(t, r.header.Get("Retry-After"))
}

var errStoreAway = ratelimit.ErrUnavailable

// A malformed refund is refused like a malformed check, and gives nothing back.
func TestMalformedRefunds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := w.tenant("school-17", "light")
	edge := w.service("edge", true, tenants.MayRefund)
	w.check(key, `{"cost":7}`).ok(http.StatusOK)
	bodies := map[string]string{
		`{"tenant":"school-17","peek":false}`: "/peek",
		`{"tenant":"school-17","wait":true}`:  "/wait",
	}
	for body, pointer := range malformedChecks() {
		switch pointer {
		case "/peek", "/wait": // these are not known at all
		default:
			bodies[body] = pointer
		}
	}
	for body, pointer := range bodies {
		r := w.refund(edge, body)
		p := r.problem(problem.Validation)
		name := body[:min(len(body), 120)]
		require.NotEmpty(t, p.Errors, name)
		require.Equal(t, pointer, p.Errors[0].Pointer, name)
		require.NotContains(t, strings.ToLower(string(r.body)), canary, name)
	}
	require.InDelta(t, 7, w.refund(edge, `{"tenant":"school-17","cost":0}`).ok(http.StatusOK).json()["used"], 0)
}
