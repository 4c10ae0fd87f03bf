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

func TestTheRootLeadsToThePageForPeople(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.do(w.public, request{method: http.MethodGet, path: "/"}).ok(http.StatusFound)
	require.Equal(t, "/docs", r.header.Get("Location"))
}
