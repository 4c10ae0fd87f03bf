package httpapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// canary stands in malformed requests where a value is; no answer may repeat it.
const canary = "c4n4ry"

// malformedChecks are bodies of /v1/check that wire.md refuses, with where the first finding points.
func malformedChecks() map[string]string {
	deep := strings.Repeat(`[`, 10000) + strings.Repeat(`]`, 10000)
	return map[string]string{
		``:                                  "",
		` `:                                 "",
		`{`:                                 "",
		`{"tenant":"school-17"`:             "",
		`{"tenant":"school-17"} x`:          "",
		`{"tenant":"school-17"}{}`:          "",
		`{"tenant":"school-17",}`:           "",
		`{'tenant':'school-17'}`:            "",
		"\ufeff" + `{"tenant":"school-17"}`: "",
		`[]`:                                "",
		`null`:                              "",
		`"c4n4ry"`:                          "",
		`42`:                                "",
		deep:                                strings.Repeat("/0", 32),
		`{"x":` + deep + `}`:                "/x" + strings.Repeat("/0", 31),
		`{"tenant":"school-17","c4n4ry c4n4ry":1}`:      "/…",
		`{"tenant":"school-17","unknown":"c4n4ry"}`:     "/unknown",
		`{"tenant":"school-17","tenant":"school-18"}`:   "/tenant",
		`{"tenant":"school-17","ten\u0061nt":"c4n4ry"}`: "/tenant",
		`{"tenant":null}`:          "/tenant",
		`{"tenant":""}`:            "/tenant",
		`{"tenant":17}`:            "/tenant",
		`{"tenant":["school-17"]}`: "/tenant",
		`{"tenant":"C4n4ry_"}`:     "/tenant",
		`{"tenant":"-c4n4ry"}`:     "/tenant",
		`{"tenant":"c4n4ry` + strings.Repeat("a", 60) + `"}`:                 "/tenant",
		`{"tenant":"school-17","user":""}`:                                   "/user",
		`{"tenant":"school-17","user":null}`:                                 "/user",
		`{"tenant":"school-17","user":"c4n4ry\u0000"}`:                       "/user",
		"{\"tenant\":\"school-17\",\"user\":\"c4n4ry\x00\"}":                 "",
		"{\"tenant\":\"school-17\",\"user\":\"c4n4ry\xff\"}":                 "/user",
		`{"tenant":"school-17","user":"c4n4ry\ud800"}`:                       "/user",
		`{"tenant":"school-17","user":"c4n4ry\udc00x"}`:                      "/user",
		`{"tenant":"school-17","user":"` + strings.Repeat("ü", 129) + `"}`:   "/user",
		`{"tenant":"school-17","key":"` + strings.Repeat("k", 257) + `"}`:    "/key",
		`{"tenant":"school-17","key":{}}`:                                    "/key",
		`{"tenant":"school-17","cost":-1}`:                                   "/cost",
		`{"tenant":"school-17","cost":1.5}`:                                  "/cost",
		`{"tenant":"school-17","cost":1.0}`:                                  "/cost",
		`{"tenant":"school-17","cost":1e3}`:                                  "/cost",
		`{"tenant":"school-17","cost":"1e3"}`:                                "/cost",
		`{"tenant":"school-17","cost":"NaN"}`:                                "/cost",
		`{"tenant":"school-17","cost":NaN}`:                                  "",
		`{"tenant":"school-17","cost":Infinity}`:                             "",
		`{"tenant":"school-17","cost":null}`:                                 "/cost",
		`{"tenant":"school-17","cost":""}`:                                   "/cost",
		`{"tenant":"school-17","cost":true}`:                                 "/cost",
		`{"tenant":"school-17","cost":01}`:                                   "",
		`{"tenant":"school-17","cost":+1}`:                                   "",
		`{"tenant":"school-17","cost":0x10}`:                                 "",
		`{"tenant":"school-17","cost":1000001}`:                              "/cost",
		`{"tenant":"school-17","cost":9223372036854775808}`:                  "/cost",
		`{"tenant":"school-17","cost":18446744073709551617}`:                 "/cost",
		`{"tenant":"school-17","cost":1` + strings.Repeat("0", 400) + `}`:    "/cost",
		`{"tenant":"school-17","peek":"true"}`:                               "/peek",
		`{"tenant":"school-17","peek":1}`:                                    "/peek",
		`{"tenant":"school-17","peek":null}`:                                 "/peek",
		`{"tenant":"school-17","wait":null}`:                                 "/wait",
		`{"tenant":"school-17","wait":TRUE}`:                                 "",
		`{"tenant":"school-17","method":""}`:                                 "/method",
		`{"tenant":"school-17","method":"C4N4RY C4N4RY"}`:                    "/method",
		`{"tenant":"school-17","method":null}`:                               "/method",
		`{"tenant":"school-17","path":""}`:                                   "/path",
		`{"tenant":"school-17","path":"/` + strings.Repeat("p", 8192) + `"}`: "/path",
		`{"tenant":"school-17","path":null}`:                                 "/path",
		`{"tenant":"school-17","address":""}`:                                "/address",
		`{"tenant":"school-17","address":"c4n4ry"}`:                          "/address",
		`{"tenant":"school-17","address":"999.1.1.1"}`:                       "/address",
		`{"tenant":"school-17","address":null}`:                              "/address",
		`{"tenant":"school-17","address":"` + strings.Repeat("1", 65) + `"}`: "/address",
		`{}`: "",
	}
}

func TestMalformedChecksAreRefusedAndConsumeNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tenant("school-17", "light")
	edge := w.service("edge", true, tenants.MayCheck)
	before := w.memory.takes.Load()
	for body, pointer := range malformedChecks() {
		r := w.check(edge, body)
		p := r.problem(problem.Validation)
		name := body[:min(len(body), 120)]
		require.NotEmpty(t, p.Errors, name)
		require.Equal(t, pointer, p.Errors[0].Pointer, name)
		require.NotContains(t, strings.ToLower(string(r.body)), canary, name)
	}
	require.Equal(t, before, w.memory.takes.Load(), "nothing was charged")
	require.InDelta(t, 0, w.check(edge, `{"tenant":"school-17","cost":0}`).ok(http.StatusOK).json()["used"], 0)
}

func TestBodiesTooLargeOrOfAnotherMediaType(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tenant("school-17", "light")
	edge := w.service("edge", true, tenants.MayCheck)
	before := w.memory.takes.Load()
	big := `{"tenant":"school-17","user":"` + strings.Repeat("x", 1<<20) + `"}`
	w.check(edge, big).problem(problem.PayloadTooLarge)
	w.do(w.public, request{method: http.MethodPost, path: "/v1/check/batch", body: big, header: bearer(edge)}).problem(problem.PayloadTooLarge)
	w.administer(http.MethodPost, "/admin/plans", big).problem(problem.PayloadTooLarge)
	chunked, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.public.URL+"/v1/check", struct{ *strings.Reader }{strings.NewReader(big)})
	require.NoError(t, err)
	chunked.Header.Set("Authorization", "Bearer "+edge)
	require.Zero(t, chunked.ContentLength, "of unknown length")
	w.send(chunked).problem(problem.PayloadTooLarge)

	with := func(header, value string) *response {
		h := bearer(edge)
		h[header] = value
		return w.do(w.public, request{method: http.MethodPost, path: "/v1/check", body: `{"tenant":"school-17","cost":0}`, header: h})
	}
	for _, media := range []string{"text/plain", "application/xml", "multipart/form-data; boundary=x", "application/json; charset=latin1", "nonsense/", ";;"} {
		p := with("Content-Type", media).problem(problem.Validation)
		require.Equal(t, "/header/Content-Type", p.Errors[0].Pointer, media)
	}
	with("Content-Encoding", "gzip").problem(problem.Validation)
	for _, media := range []string{"application/json", "application/json; charset=UTF-8", "Application/JSON", "application/x-www-form-urlencoded", ""} {
		with("Content-Type", media).ok(http.StatusOK)
	}
	require.Equal(t, before, w.memory.takes.Load())
}

// TestMalformedAdministrationIsRefused holds every field of the administration to its bounds.
func TestMalformedAdministrationIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	limit := func(fields string) string {
		return `{"name":"p","limits":[{"name":"l",` + fields + `}]}`
	}
	plans := map[string]string{
		`{"limits":[]}`:                                                                                     "/name",
		`{"name":"p"}`:                                                                                      "/limits",
		`{"name":"P","limits":[]}`:                                                                          "/name",
		`{"name":"p","limits":null}`:                                                                        "/limits",
		`{"name":"p","limits":[],"more":"c4n4ry"}`:                                                          "/more",
		`{"name":"p","limits":[{}]}`:                                                                        "/limits/0/name",
		`{"name":"p","limits":[],"title":"c4n4ry\u0000"}`:                                                   "/title",
		`{"name":"p","limits":[],"alert":{"at":0,"for":"10m"}}`:                                             "/alert/at",
		`{"name":"p","limits":[],"alert":{"at":0.8,"for":"0s"}}`:                                            "/alert/for",
		`{"name":"p","limits":[],"request_log":"c4n4ry"}`:                                                   "/request_log",
		limit(`"limit":1`):                                                                                  "/limits/0/window",
		limit(`"limit":-1,"window":"1m"`):                                                                   "/limits/0/limit",
		limit(`"limit":1.5,"window":"1m"`):                                                                  "/limits/0/limit",
		limit(`"limit":1e3,"window":"1m"`):                                                                  "/limits/0/limit",
		limit(`"limit":1000000000001,"window":"1m"`):                                                        "/limits/0/limit",
		limit(`"limit":9223372036854775807,"window":"1m"`):                                                  "/limits/0/limit",
		limit(`"limit":9223372036854775808,"window":"1m"`):                                                  "/limits/0/limit",
		limit(`"limit":"5","window":"1m"`):                                                                  "/limits/0/limit",
		limit(`"limit":null,"window":"1m"`):                                                                 "/limits/0/limit",
		limit(`"limit":5,"window":"1ms"`):                                                                   "/limits/0/window",
		limit(`"limit":5,"window":"999ms"`):                                                                 "/limits/0/window",
		limit(`"limit":5,"window":"8785h"`):                                                                 "/limits/0/window",
		limit(`"limit":5,"window":"999999999999999999h"`):                                                   "/limits/0/window",
		limit(`"limit":5,"window":"-1m"`):                                                                   "/limits/0/window",
		limit(`"limit":5,"window":"1d"`):                                                                    "/limits/0/window",
		limit(`"limit":5,"window":60`):                                                                      "/limits/0/window",
		limit(`"limit":5,"window":"1m","algorithm":"c4n4ry"`):                                               "/limits/0/algorithm",
		limit(`"limit":5,"window":"1m","scope":"address"`):                                                  "/limits/0/scope",
		limit(`"limit":5,"window":"1m","cost":0`):                                                           "/limits/0/cost",
		limit(`"limit":5,"window":"1m","cost":1000001`):                                                     "/limits/0/cost",
		limit(`"limit":5,"window":"1m","mode":"off"`):                                                       "/limits/0/mode",
		limit(`"limit":5,"window":"1m","on_store_failure":"c4n4ry"`):                                        "/limits/0/on_store_failure",
		limit(`"limit":5,"window":"1m","applies_to":"all"`):                                                 "/limits/0/applies_to",
		limit(`"limit":5,"window":"1m","slowdown":{"from":1,"max_delay":"2s"}`):                             "/limits/0/slowdown/from",
		limit(`"limit":5,"window":"1m","slowdown":{"from":0.5}`):                                            "/limits/0/slowdown/max_delay",
		limit(`"limit":5,"window":"1m","slowdown":{"from":1e999,"max_delay":"2s"}`):                         "/limits/0/slowdown/from",
		limit(`"limit":5,"window":"1m","match":{"paths":["c4n4ry"]}`):                                       "/limits/0/match/paths/0",
		limit(`"limit":5,"window":"1m","match":{"methods":["C4N4RY X"]}`):                                   "/limits/0/match/methods/0",
		limit(`"limit":5,"algorithm":"token_bucket"`):                                                       "/limits/0/refill/units",
		limit(`"limit":5,"algorithm":"token_bucket","window":"1m","refill":{"units":1,"every":"1s"}`):       "/limits/0/window",
		limit(`"limit":5,"window":"1m","refill":{"units":1,"every":"1s"}`):                                  "/limits/0/refill",
		limit(`"limit":1000000000000,"algorithm":"leaky_bucket","refill":{"units":1,"every":"1h"}`):         "/limits/0/refill",
		`{"name":"p","limits":[{"name":"l","limit":1,"window":"1m"},{"name":"l","limit":2,"window":"1m"}]}`: "/limits/1/name",
		`{"name":"p","limits":[` + strings.TrimSuffix(strings.Repeat(`{"name":"l","limit":1,"window":"1m"},`, 65), ",") + `]}`: "/limits",
	}
	tenantBodies := map[string]string{
		`{"name":"x","plan":"light"}`:                                                    "/slug",
		`{"slug":"A","name":"x","plan":"light"}`:                                         "/slug",
		`{"slug":"a","name":"","plan":"light"}`:                                          "/name",
		`{"slug":"a","name":"x"}`:                                                        "/plan",
		`{"slug":"a","name":"x","plan":"light","status":"c4n4ry"}`:                       "/status",
		`{"slug":"a","name":"x","plan":"light","contact_email":"x\r\nBcc: c4n4ry@evil"}`: "/contact_email",
		`{"slug":"a","name":"` + strings.Repeat("n", 201) + `","plan":"light"}`:          "/name",
		`{"slug":"a","name":"x","plan":"light","metadata":{"a":1}}`:                      "/metadata/a",
		`{"slug":"a","name":"x","plan":"light","metadata":{"":"c4n4ry"}}`:                "/metadata",
		`{"slug":"a","name":"x","plan":"light","id":7}`:                                  "/id",
	}
	tokens := map[string]string{
		`{}`:                                               "/name",
		`{"name":"x","may":["c4n4ry"]}`:                    "/may/0",
		`{"name":"x","may":["check","check"]}`:             "/may",
		`{"name":"x","exempt":["tenant"]}`:                 "/exempt/0",
		`{"name":"x","expires_at":"2020-01-01T00:00:00Z"}`: "/expires_at",
		`{"name":"x","expires_at":"c4n4ry"}`:               "/expires_at",
		`{"name":"x","expires_at":"2027-02-30T00:00:00Z"}`: "/expires_at",
		`{"name":"x","expires_at":1}`:                      "/expires_at",
	}
	before := len(w.administer(http.MethodGet, "/admin/audit?limit=500", "").ok(http.StatusOK).body)
	for path, bodies := range map[string]map[string]string{"/admin/plans": plans, "/admin/tenants": tenantBodies, "/admin/service-tokens": tokens} {
		for body, pointer := range bodies {
			name := fmt.Sprint(path, " ", body[:min(len(body), 150)])
			r := w.administer(http.MethodPost, path, body)
			p := r.problem(problem.Validation)
			require.NotEmpty(t, p.Errors, name)
			require.Equal(t, pointer, p.Errors[0].Pointer, "%s: %s", name, r.body)
			require.NotContains(t, strings.ToLower(string(r.body)), canary, name)
		}
	}
	for _, broken := range []string{``, `{`, `{"a":1}x`, `{"a":1,"a":2}`, "{\"\xff\":1}", strings.Repeat(`[`, 50) + strings.Repeat(`]`, 50), "null", "[]"} {
		for _, path := range []string{"/admin/plans", "/admin/tenants", "/admin/service-tokens", "/admin/admin-tokens"} {
			w.administer(http.MethodPost, path, broken).problem(problem.Validation)
		}
	}
	for _, key := range []string{" ", strings.Repeat("k", 256), "ä", "a b"} {
		w.administer(http.MethodPost, "/admin/tenants", `{"slug":"a","name":"x","plan":"light"}`, "Idempotency-Key", key).problem(problem.Validation)
	}
	for _, path := range []string{"/admin/tenants/UPPER", "/admin/plans/a_b", "/admin/tenants/a%00b", "/admin/tenants/" + strings.Repeat("a", 64), "/admin/tenants/a/keys?limit=0"} {
		w.administer(http.MethodGet, path, "").problem(problem.Validation)
	}
	require.Len(t, w.administer(http.MethodGet, "/admin/audit?limit=500", "").ok(http.StatusOK).body, before, "nothing was changed")
}

// Guarantee: a refusal says what would have been right, with an example where a pattern alone is hard to read.
func TestRefusalsSayWhatWouldBeRight(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for body, want := range map[string]string{
		`{"name":"School Plan","limits":[]}`:                                        ", such as school-17",
		`{"name":"p","limits":[{"name":"l","limit":5,"window":"60"}]}`:              ", such as 1m",
		`{"name":"p","limits":[{"name":"l","limit":"5","window":"1m"}]}`:            "must be an integer",
		`{"name":"p","limits":[{"name":"l","limit":5}]}`:                            "is required: whole milliseconds from 1s to 8784h (366 days)",
		`{"name":"p","limits":[{"name":"l","limit":5,"algorithm":"token_bucket"}]}`: "is required: token_bucket and leaky_bucket take a refill of units and every",
	} {
		p := w.administer(http.MethodPost, "/admin/plans", body).problem(problem.Validation)
		require.Len(t, p.Errors, 1, body)
		require.Contains(t, p.Errors[0].Message, want, body)
	}
}
