package httpapi_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// TestServiceTokensAreNotTrustedForEver: what Postgres has not confirmed for a day may have been revoked meanwhile.
func TestServiceTokensAreNotTrustedForEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := w.tenant("school-17", "light")
	token := w.service("edge", true, tenants.MayCheck)
	w.clock.advance(tenants.TrustTokensFor - time.Minute)
	w.check(token, `{"tenant":"school-17"}`).ok(http.StatusOK)
	w.clock.advance(2 * time.Minute)
	w.check(token, `{"tenant":"school-17"}`).problem(problem.Unauthorized)
	w.check(key, `{}`).ok(http.StatusOK)

	// And it gives no exemption: the caller is counted like anybody else's.
	ping := func() int {
		return w.do(w.public, request{method: http.MethodGet, path: "/v1/ping", header: bearer(token), from: "203.0.113.9"}).status
	}
	w.policy(perMinute("per-minute", 2))
	require.Equal(t, http.StatusOK, ping(), "the change confirmed the tokens")
	w.clock.advance(tenants.TrustTokensFor)
	statuses := map[int]int{}
	for range 4 {
		statuses[ping()]++
	}
	require.Equal(t, map[int]int{http.StatusOK: 2, http.StatusTooManyRequests: 2}, statuses)
	w.refresh()
	w.check(token, `{"tenant":"school-17"}`).ok(http.StatusOK)
}

func TestAPreconditionWithoutQuotesIsToldWhatIsMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tenant("school-17", "light")
	for _, tag := range []string{"1", "1\"", "\"1", "W/1", "abc"} {
		p := w.administer(http.MethodPatch, "/admin/tenants/school-17", `{"name":"x"}`, "If-Match", tag).problem(problem.Validation)
		require.Equal(t, "/header/If-Match", p.Errors[0].Pointer)
		require.Contains(t, p.Errors[0].Message, `such as "3"`)
	}
	p := w.administer(http.MethodPatch, "/admin/tenants/school-17", `{"name":"x"}`).problem(problem.PreconditionRequired)
	require.Contains(t, p.Detail, "If-Match")
}

// Guarantee: a client that sends its language's zero time gets no credential that never ends.
func TestTheZeroMomentIsNotForEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tenant("school-17", "light")
	for path, body := range map[string]string{
		"/admin/tenants/school-17/keys": `{"name":"k","expires_at":"0001-01-01T00:00:00Z"}`,
		"/admin/service-tokens":         `{"name":"k","may":["check"],"expires_at":"0001-01-01T00:00:00Z"}`,
		"/admin/admin-tokens":           `{"name":"k","role":"viewer","expires_at":"0001-01-01T05:00:00+05:00"}`,
	} {
		p := w.administer(http.MethodPost, path, body).problem(problem.Validation)
		require.Equal(t, "/expires_at", p.Errors[0].Pointer)
	}
	id, _ := w.administer(http.MethodPost, "/admin/service-tokens", `{"name":"k","may":["check"]}`).ok(http.StatusCreated).json()["id"].(string)
	p := w.administer(http.MethodPost, "/admin/service-tokens/"+id+"/rotate", `{"expires_at":"0001-01-01T00:00:00Z"}`).problem(problem.Validation)
	require.Equal(t, "/expires_at", p.Errors[0].Pointer)
}

// Guarantee: who read a plan or a tenant that was deleted since cannot overwrite another one of its name.
func TestAVersionNeverComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for path, body := range map[string]string{"/admin/plans": `{"name":"again","limits":[]}`, "/admin/tenants": `{"slug":"again","name":"A","plan":"light"}`} {
		made := func() string {
			return w.administer(http.MethodPost, path, body).ok(http.StatusCreated).header.Get("ETag")
		}
		first := made()
		w.administer(http.MethodDelete, path+"/again", "", "If-Match", first).ok(http.StatusNoContent)
		second := made()
		require.NotEqual(t, first, second)
		w.administer(http.MethodDelete, path+"/again", "", "If-Match", first).problem(problem.PreconditionFailed)
		w.administer(http.MethodDelete, path+"/again", "", "If-Match", second).ok(http.StatusNoContent)
	}
}

func TestTheRootLeadsToThePageForPeople(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.do(w.public, request{method: http.MethodGet, path: "/"}).ok(http.StatusFound)
	require.Equal(t, "/docs", r.header.Get("Location"))
}
