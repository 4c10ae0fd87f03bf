package dashboard_test

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/usage"
)

// listen opens a live page and hands its events on, until it ends.
func (b *browser) listen(path string) (events <-chan string, status int) {
	b.w.t.Helper()
	ctx, cancel := context.WithTimeout(b.w.t.Context(), patience)
	r := b.request(http.MethodGet, path, nil).WithContext(ctx)
	r.Header.Set("Accept", "text/event-stream")
	res, err := b.c.Do(r) //nolint:bodyclose // closed where it is read
	require.NoError(b.w.t, err)
	out := make(chan string, 100)
	go func() {
		defer cancel()
		defer close(out)
		defer func() { _ = res.Body.Close() }()
		var event strings.Builder
		lines := bufio.NewScanner(res.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if lines.Text() == "" {
				out <- event.String()
				event.Reset()
				continue
			}
			event.WriteString(lines.Text() + "\n")
		}
	}()
	return out, res.StatusCode
}

// waitFor reads events until one holds the words; the stream must not end before.
func waitFor(t *testing.T, events <-chan string, words string) {
	t.Helper()
	for {
		select {
		case event, more := <-events:
			require.True(t, more, "the stream ended before %q", words)
			if strings.Contains(event, words) {
				return
			}
		case <-time.After(patience):
			require.Fail(t, "it does not come", words)
		}
	}
}

func ends(t *testing.T, events <-chan string) {
	t.Helper()
	for {
		select {
		case _, more := <-events:
			if !more {
				return
			}
		case <-time.After(patience):
			require.Fail(t, "the stream does not end")
		}
	}
}

// Guarantee: a live page shows what is new within its interval, ends with the session, with what it shows, and when the
// replica drains, and is nobody's without a session.
func TestLivePages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tenant := w.tenant("school-17", "School 17", "light")
	id, token := w.administrator(tenants.Viewer)
	b := w.signIn(token)

	events, status := b.listen("/dashboard/live")
	require.Equal(t, http.StatusOK, status)
	waitFor(t, events, "No tenant made a request")
	w.live.Store(&usage.Overview{Tenants: []usage.TenantUsage{{TenantID: tenant.ID, Tenant: "school-17", Utilization: .97, Limit: 2000, Used: 1940}}})
	waitFor(t, events, "1,940")

	require.NoError(t, w.repository.RevokeAdminToken(t.Context(), testActor, id))
	w.refresh()
	waitFor(t, events, "event: over")
	ends(t, events)
	_, status = b.listen("/dashboard/live")
	require.Equal(t, http.StatusUnauthorized, status)

	b = w.signIn(bootstrap)
	require.Equal(t, http.StatusNotAcceptable, b.get("/dashboard/live").status, "only for event streams")
	one, _ := b.listen("/dashboard/tenants/school-17/live")
	waitFor(t, one, "requests-per-minute")
	two, _ := b.listen("/dashboard/live")
	waitFor(t, two, "event: live")
	require.NoError(t, w.repository.DeleteTenant(t.Context(), testActor, "school-17", tenants.Precondition{Any: true}))
	w.refresh()
	waitFor(t, one, "event: over")
	close(w.draining)
	ends(t, two)
}

// Guarantee: live pages are bounded, and one administrator's tabs, also those that nobody reads, leave room for the others'.
func TestLivePagesAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fill := func(token string) {
		b := w.signIn(token)
		for range 32 {
			_, status := b.listen("/dashboard/live")
			require.Equal(t, http.StatusOK, status)
		}
		_, status := b.listen("/dashboard/live")
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Equal(t, http.StatusOK, b.get("/dashboard").status, "pages go on")
	}
	fill(bootstrap)
	for range 3 { // 128 in all
		_, token := w.administrator(tenants.Viewer)
		fill(token)
	}
	_, token := w.administrator(tenants.Viewer)
	_, status := w.signIn(token).listen("/dashboard/live")
	require.Equal(t, http.StatusServiceUnavailable, status)
	close(w.draining)
}

// Guarantee: no name begins an event of its own.
func TestNamesStayInsideTheirEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.live.Store(&usage.Overview{Services: []usage.Refusals{{Name: "edge\r\revent: over\rdata:\r\r\nevent: over\n\n", Count: 7}}})
	events, _ := w.signIn(bootstrap).listen("/dashboard/live")
	event := <-events
	require.Contains(t, event, "edge")
	require.NotContains(t, event, "\r")
	require.NotRegexp(t, `(?m)^event: over`, event)
	close(w.draining)
}

// Guarantee: a page that nobody sees holds no connection, is live again when somebody looks, and asks to sign in when the
// session has ended meanwhile.
func TestHiddenPagesHoldNoConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tenant := w.tenant("school-17", "School 17", "light")
	id, token := w.administrator(tenants.Viewer)
	b := chromium(t, w.admin.URL)
	b.size(1280, 900)
	b.signIn(token)
	b.until(`document.querySelector("[data-live-state]").innerText === "live"`, "live")
	hide := func(hidden string) {
		eval[bool](b, `Object.defineProperty(document, "hidden", {get: () => `+hidden+`, configurable: true}); document.dispatchEvent(new Event("visibilitychange"))`)
	}
	hide("true")
	b.sees("paused")
	w.live.Store(&usage.Overview{Tenants: []usage.TenantUsage{{TenantID: tenant.ID, Tenant: "school-17", Utilization: .97, Limit: 2000, Used: 1940}}})
	hide("false")
	b.sees("1,940")
	b.until(`document.querySelector("[data-live-state]").innerText === "live"`, "live again")
	hide("true")
	require.NoError(t, w.repository.RevokeAdminToken(t.Context(), testActor, id))
	w.refresh()
	hide("false")
	b.sees("Admin token")
}
