package httpapi_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/problem"
)

// Guarantee: every name and title that the API takes is visible, without control characters and without white space at its ends; the fault
// is named by its field.
func TestNamesOfTheAPIAreVisible(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tenant("school-17", "light")
	const limits = `,"limits":[{"name":"a","limit":5,"window":"1m"}]}`
	for _, r := range []struct{ method, path, before, after, pointer, field string }{
		{http.MethodPost, "/admin/tenants", `{"slug":"school-18","plan":"light","name":`, `}`, "/name", "name"},
		{http.MethodPatch, "/admin/tenants/school-17", `{"name":`, `}`, "/name", "name"},
		{http.MethodPost, "/admin/tenants/school-17/keys", `{"name":`, `}`, "/name", "name"},
		{http.MethodPost, "/admin/service-tokens", `{"name":`, `}`, "/name", "name"},
		{http.MethodPost, "/admin/admin-tokens", `{"role":"viewer","name":`, `}`, "/name", "name"},
		{http.MethodPost, "/admin/plans", `{"name":"gold","title":`, limits, "/title", "title"},
		{http.MethodPut, "/admin/plans/silver", `{"name":"silver","title":`, limits, "/title", "title"},
		{http.MethodPost, "/admin/configuration", `{"tenants":[{"slug":"school-19","plan":"light","name":`, `}]}`, "/tenants/0/name", ""},
		{http.MethodPost, "/admin/configuration", `{"plans":[{"name":"iron","title":`, limits + `]}`, "/plans/0/title", ""},
	} {
		send := func(text string) *response {
			match := []string{}
			if r.method == http.MethodPatch {
				match = []string{"If-Match", "*"}
			}
			return w.administer(r.method, r.path, r.before+text+r.after, match...)
		}
		for text, message := range map[string]string{
			`"   "`: "must not be only spaces", `"\u200b"`: "must not be only spaces",
			`"a\nb"`: "must not hold line breaks or other control characters", `"\u001b[31m"`: "must not hold line breaks or other control characters",
		} {
			p := send(text).problem(problem.Validation)
			require.Equal(t, []problem.FieldError{{Pointer: r.pointer, Message: message}}, p.Errors, "%s %s %s", r.method, r.path, text)
		}
		made := send(`"  Über 17\n"`)
		require.Less(t, made.status, 300, "%s", made.body)
		if r.field != "" {
			require.Equal(t, "Über 17", made.json()[r.field], r.path)
		}
	}
	require.Equal(t, "Über 17", w.administer(http.MethodGet, "/admin/tenants/school-19", "").ok(http.StatusOK).json()["name"])
	require.Equal(t, "Über 17", w.administer(http.MethodGet, "/admin/plans/iron", "").ok(http.StatusOK).json()["title"])
	again := w.administer(http.MethodPost, "/admin/configuration", `{"tenants":[{"slug":"school-19","plan":"light","name":" Über 17 "}]}`).ok(http.StatusOK).json()
	require.Empty(t, again["changes"], "the same name, written otherwise, changes nothing")
}
