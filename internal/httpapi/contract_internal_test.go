package httpapi

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
)

func mustContract(tb testing.TB) *contract {
	tb.Helper()
	c, err := loadContract()
	require.NoError(tb, err)
	require.NoError(tb, c.doc.Validate(tb.Context()))
	return c
}

// TestTheTableOfRoutesIsTheContract: no admin route without its operation and the same role, no operation without its route.
func TestTheTableOfRoutesIsTheContract(t *testing.T) {
	t.Parallel()
	c := mustContract(t)
	served := map[string]string{}
	for _, r := range (&admin{}).routes() {
		served[r.method+" "+specPath(r.path)] = string(r.role)
	}
	documented := map[string]string{}
	public := map[string]bool{}
	for path, item := range c.doc.Paths.Map() {
		for method, operation := range item.Operations() {
			if role, ok := operation.Extensions["x-pegel-role"].(string); ok {
				documented[method+" "+path] = role
			} else {
				public[method+" "+path] = true
			}
		}
	}
	require.Equal(t, documented, served)

	handlers := func(router *gin.Engine) (out map[string]bool) {
		out = map[string]bool{}
		for _, r := range router.Routes() {
			out[r.Method+" "+specPath(r.Path)] = true
		}
		return out
	}
	open := handlers(publicRouter(PublicConfig{}))
	open["GET /metrics"] = true
	require.Equal(t, public, open)
}

// checkBySpec is what api/openapi.yaml says of a body of /v1/check, with the rules that the schema language cannot say: the
// scanner's, whole numbers without exponent, bytes instead of characters.
func checkBySpec(t interface{ Helper() }, o *operation, raw []byte) bool {
	t.Helper()
	if o.checkBody(raw) != nil {
		return false
	}
	var in gen.CheckRequest
	if json.Unmarshal(raw, &in) != nil {
		return false
	}
	return len(orZero(in.User)) <= 256 && len(orZero(in.Key)) <= 256 && len(orZero(in.Path)) <= maxPathLength && len(orZero(in.Address)) <= maxAddressLength
}

// TestTheHandWrittenDecoderIsTheContract: it accepts what the document accepts, refuses what it refuses, and reads the same
// values.
func TestTheHandWrittenDecoderIsTheContract(t *testing.T) {
	t.Parallel()
	for path, decode := range map[string]func([]byte) (checkRequest, error){"/v1/check": decodeCheck, "/v1/refund": decodeRefund} {
		o, err := mustContract(t).operation(http.MethodPost, path)
		require.NoError(t, err)
		for _, seed := range checkSeeds() {
			_, err := decode([]byte(seed))
			require.Equal(t, checkBySpec(t, o, []byte(seed)), err == nil, "%s %q: %v", path, seed, err)
		}
		rapid.Check(t, func(t *rapid.T) {
			raw := []byte(drawObject(t))
			if rapid.IntRange(0, 9).Draw(t, "damage") == 0 && len(raw) > 0 {
				raw[rapid.IntRange(0, len(raw)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
			}
			got, err := decode(raw)
			if want := checkBySpec(t, o, raw); want != (err == nil) {
				t.Fatalf("%s %q: the document says %v, the decoder %v", path, raw, want, err)
			}
			if err == nil {
				sameRequest(t, raw, got)
			}
		})
	}
}

// sameRequest holds what was read to what encoding/json reads.
func sameRequest(t *rapid.T, raw []byte, got checkRequest) {
	var in gen.CheckRequest
	if err := json.Unmarshal(raw, &in); err != nil {
		t.Fatal(err)
	}
	want := checkRequest{
		tenant: orZero(in.Tenant), user: orZero(in.User), key: orZero(in.Key), address: orZero(in.Address), method: orZero(in.Method),
		path: orZero(in.Path), cost: 1, peek: orZero(in.Peek), wait: orZero(in.Wait),
	}
	if in.Cost != nil {
		want.cost = *in.Cost
	}
	if got != want {
		t.Fatalf("%q: %+v, want %+v", raw, got, want)
	}
}

// drawObject writes an object of a check's fields, mostly of the right kind.
func drawObject(t *rapid.T) string {
	fields := rapid.SliceOfN(rapid.SampledFrom([]string{"tenant", "user", "key", "address", "method", "path", "cost", "peek", "wait", "more", "te\\u006eant"}), 0, 5).Draw(t, "fields")
	members := make([]string, 0, len(fields))
	for _, field := range fields {
		value := rapid.OneOf(
			rapid.SampledFrom([]string{`"school-17"`, `"u42"`, `"GET"`, `"/v1/x"`, `"203.0.113.7"`, `""`, `"A"`, `"a\u0000"`, `"\ud83d\ude00"`, `"\ud83d"`, `"\u00e9"`, `"é"`, `"a\nb"`, `"a/b"`}),
			rapid.SampledFrom([]string{`0`, `1`, `-0`, `-1`, `1000000`, `1000001`, `1.0`, `1e0`, `1.5`, `9223372036854775808`, `01`}),
			rapid.SampledFrom([]string{`true`, `false`, `null`, `{}`, `[]`, `{"a":[1,{"b":null}]}`, `tru`, `[1,]`}),
			rapid.Map(rapid.StringN(0, 300, 300), func(s string) string {
				raw, err := json.Marshal(s)
				if err != nil {
					return `""`
				}
				return string(raw)
			}),
		).Draw(t, "value")
		members = append(members, `"`+field+`":`+value)
	}
	space := rapid.SampledFrom([]string{"", " ", "\n\t "}).Draw(t, "space")
	return space + "{" + space + strings.Join(members, space+","+space) + space + "}" + space
}

func checkSeeds() []string {
	return []string{
		`{}`, ``, `{"tenant":"a"}`, `{"tenant":"a","cost":5,"peek":true,"wait":false}`, `{"cost":1.0}`, `{"cost":-0}`, `{"user":"\u0000"}`,
		`{"user":"` + strings.Repeat("ü", 128) + `"}`, `{"user":"` + strings.Repeat("ü", 129) + `"}`, `{"path":"` + strings.Repeat("p", 8192) + `"}`,
		`{"path":"` + strings.Repeat("p", 8193) + `"}`, `{"a":` + strings.Repeat("[", 31) + strings.Repeat("]", 31) + `}`, `{"method":"X-Y_1"}`, `{"address":"::1"}`, `{"address":"\ud83d\ude00"}`,
		`{"tenant":"a","tenant":"a"}`, `[{}]`, `{"tenant":"a"}{}`, "{\"user\":\"\xff\"}",
	}
}

func TestPageLimitsOfTheContract(t *testing.T) {
	t.Parallel()
	schema := mustContract(t).doc.Components.Parameters["PageLimit"].Value.Schema.Value
	require.InDelta(t, 500, *schema.Max, 0)
	require.InDelta(t, float64(pageOf(nil, nil).Limit), schema.Default, 0)
	require.True(t, schema.Type.Is(openapi3.TypeInteger))
}

func BenchmarkDecodeCheck(b *testing.B) {
	raw := []byte(`{"tenant":"school-17","user":"u42","key":"k1","address":"203.0.113.7","method":"GET","path":"/v1/messages","cost":1,"peek":false,"wait":false}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decodeCheck(raw); err != nil {
			b.Fatal(err)
		}
	}
}
