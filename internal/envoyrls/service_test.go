package envoyrls_test

import (
	"bytes"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	extv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pegel-dev/pegel/internal/envoyrls"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

const (
	ok   = ratelimitv3.RateLimitResponse_OK
	over = ratelimitv3.RateLimitResponse_OVER_LIMIT
)

// Guarantee: the numbers and headers of wire.md, in Envoy's words, from the first hit to the refusal.
func TestAllowSlowDeny(t *testing.T) {
	t.Parallel()
	d := newDoor(t, doorOptions{limits: []tenants.Rule{perMinute(10)}})
	hit := descriptor("tenant", "school-17")

	r := d.must(hit)
	require.Equal(t, ok, r.GetOverallCode())
	require.Equal(t, uint32(9), r.GetStatuses()[0].GetLimitRemaining())
	require.Equal(t, "requests-per-minute", r.GetStatuses()[0].GetCurrentLimit().GetName())
	require.Equal(t, uint32(10), r.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit())
	require.Equal(t, ratelimitv3.RateLimitResponse_RateLimit_MINUTE, r.GetStatuses()[0].GetCurrentLimit().GetUnit())
	headers := headersOf(t, r)
	require.Equal(t, "10", headers["x-ratelimit-limit"])
	require.Equal(t, "9", headers["x-ratelimit-remaining"])
	require.Equal(t, `"requests-per-minute";q=10;w=60`, headers["ratelimit-policy"])
	require.Contains(t, headers, "x-ratelimit-reset")
	require.Contains(t, headers, "ratelimit")
	require.Contains(t, headers, "x-pegel-decision")
	require.Equal(t, "memory", headers["x-pegel-source"])
	require.NotContains(t, headers, "x-ratelimit-slowdown")
	require.NotContains(t, headers, "retry-after")
	require.Empty(t, r.GetRequestHeadersToAdd())
	require.Empty(t, r.GetRawBody())

	for range 7 {
		require.Equal(t, ok, d.must(hit).GetOverallCode())
	}
	started := time.Now()
	r = d.must(hit) // the ninth: utilisation 0.9, half of the way to 2 s
	require.Equal(t, ok, r.GetOverallCode())
	require.Equal(t, "1000", headersOf(t, r)["x-ratelimit-slowdown"])
	require.Equal(t, "x-envoy-fault-delay-request", r.GetRequestHeadersToAdd()[0].GetKey())
	require.Equal(t, "1000", r.GetRequestHeadersToAdd()[0].GetValue())
	d.must(hit)
	require.Less(t, time.Since(started), 3*time.Second, "the delays of 1 s and 2 s are told, never waited for")

	r = d.must(hit)
	require.Equal(t, over, r.GetOverallCode())
	require.Zero(t, r.GetStatuses()[0].GetLimitRemaining())
	left := r.GetStatuses()[0].GetDurationUntilReset().AsDuration()
	require.Greater(t, left, 30*time.Second)
	require.LessOrEqual(t, left, time.Minute)
	headers = headersOf(t, r)
	seconds, err := strconv.Atoi(headers["retry-after"])
	require.NoError(t, err)
	require.InDelta(t, left.Seconds(), seconds, 1.01)
	require.Equal(t, "application/problem+json", headers["content-type"])
	require.NotContains(t, headers, "x-ratelimit-slowdown")
	require.Empty(t, r.GetRequestHeadersToAdd())
	body := bodyOf(t, r)
	require.Equal(t, "rate_limit_exceeded", body["error"])
	require.InDelta(t, 429, body["status"], 0)
	require.Equal(t, headers["x-pegel-decision"], body["decision_id"])
	require.InDelta(t, seconds, body["retry_after_seconds"], 0)
	require.InDelta(t, 10, d.counter("pegel_rls_calls_total", "OK"), 0)
	require.InDelta(t, 1, d.counter("pegel_rls_calls_total", "OVER_LIMIT"), 0)
}

// Guarantee: one status for each descriptor, in the order of the request; one that is over makes the call OVER_LIMIT, and the
// others stay charged.
func TestStatusesInRequestOrder(t *testing.T) {
	t.Parallel()
	d := newDoor(t, doorOptions{limits: []tenants.Rule{perMinute(3)}, policy: []tenants.Rule{perAddress(100)}})
	r := d.must(
		descriptor("remote_address", "203.0.113.7"),
		descriptor("tenant", "school-17"),
		descriptor("generic_key", "whatever"),
		descriptor("tenant", "school-17", "user", "u1"),
		descriptor("tenant", "school-17"),
		descriptor("tenant", "school-17"), // the fourth of three
		descriptor("tenant", "free-1"),
		descriptor("remote_address", "203.0.113.7"),
	)
	require.Equal(t, over, r.GetOverallCode())
	require.Equal(t, []ratelimitv3.RateLimitResponse_Code{ok, ok, ok, ok, ok, over, ok, ok}, codesOf(r))
	require.Equal(t, uint32(2), r.GetStatuses()[1].GetLimitRemaining())
	require.Zero(t, r.GetStatuses()[4].GetLimitRemaining())
	require.Nil(t, r.GetStatuses()[6].GetCurrentLimit(), "no limit holds")
	require.Equal(t, uint32(98), r.GetStatuses()[7].GetLimitRemaining())
	require.Equal(t, "3", headersOf(t, r)["x-ratelimit-limit"], "the headers are those of the descriptor that refuses")
}

// Guarantee: what other doors refuse for the sake of the request is OVER_LIMIT here, never an error, which Envoy would let through.
func TestRefusedWithoutADecision(t *testing.T) {
	t.Parallel()
	d := newDoor(t, doorOptions{limits: []tenants.Rule{perMinute(100)}})
	d.changes.Networks = []tenants.Network{{ID: 1, CIDR: netip.MustParsePrefix("198.51.100.0/24"), Action: tenants.Deny}}
	d.apply()
	for name, c := range map[string]struct {
		descriptor *extv3.RateLimitDescriptor
		problem    string
	}{
		"unknown tenant":      {descriptor("tenant", "nobody"), "not_found"},
		"tenant that is none": {descriptor("tenant", "No Slug"), "not_found"},
		"suspended":           {descriptor("tenant", "suspended-1"), "tenant_suspended"},
		"denied network":      {descriptor("tenant", "school-17", "remote_address", "198.51.100.9"), "network_denied"},
		"empty tenant":        {descriptor("tenant", ""), "validation"},
		"empty user":          {descriptor("tenant", "school-17", "user", ""), "validation"},
		"tenant twice":        {descriptor("tenant", "school-17", "tenant", "free-1"), "validation"},
		"no address":          {descriptor("remote_address", "not an address"), "validation"},
		"user too long":       {descriptor("tenant", "school-17", "user", strings.Repeat("u", 257)), "validation"},
		"NUL":                 {descriptor("tenant", "school-17", "user", "a\x00b"), "validation"},
		"hits beyond bounds": {&extv3.RateLimitDescriptor{
			Entries: descriptor("tenant", "school-17").GetEntries(), HitsAddend: wrapperspb.UInt64(1_000_001),
		}, "validation"},
		"cost above the quota": {&extv3.RateLimitDescriptor{
			Entries: descriptor("tenant", "school-17").GetEntries(), HitsAddend: wrapperspb.UInt64(101),
		}, "cost_exceeds_limit"},
	} {
		r := d.must(descriptor("tenant", "free-1"), c.descriptor)
		require.Equal(t, over, r.GetOverallCode(), name)
		require.Equal(t, []ratelimitv3.RateLimitResponse_Code{ok, over}, codesOf(r), name)
		require.NotNil(t, r.GetStatuses()[1].GetDurationUntilReset(), name)
		require.Equal(t, c.problem, bodyOf(t, r)["error"], name)
		require.InDelta(t, 429, bodyOf(t, r)["status"], 0, name)
		require.NotContains(t, headersOf(t, r), "retry-after", "%s: waiting does not help", name)
	}
	require.Equal(t, uint32(99), d.must(descriptor("tenant", "school-17")).GetStatuses()[0].GetLimitRemaining(), "nothing of that was charged")
}

// Guarantee: what no limit can hold for is let through, counted by reason, and logged once; values never reach the log.
func TestUnknownIsLetThroughAndCounted(t *testing.T) {
	t.Parallel()
	d := newDoor(t, doorOptions{limits: []tenants.Rule{perMinute(100)}})
	full := descriptor("tenant", "school-17")
	for range 3 {
		r, err := d.send(&ratelimitv3.RateLimitRequest{Domain: "another", Descriptors: []*extv3.RateLimitDescriptor{full, full}})
		require.NoError(t, err)
		require.Equal(t, ok, r.GetOverallCode())
		require.Equal(t, []ratelimitv3.RateLimitResponse_Code{ok, ok}, codesOf(r))
		require.Equal(t, ok, d.must(descriptor("header_match", "canary-value")).GetOverallCode())
		require.Equal(t, ok, d.must(descriptor()).GetOverallCode(), "no entries")
		require.Equal(t, ok, d.must(descriptor("user", "u1", "path", "/")).GetOverallCode(), "a user of nobody")
		require.Equal(t, ok, d.must().GetOverallCode(), "no descriptors")
		require.Equal(t, ok, d.must(descriptor("", "canary-value")).GetOverallCode(), "an entry without a key")
		mixed := descriptor("tenant", "school-17", "header_match", "canary-value")
		mixed.Limit = &extv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1_000_000}
		require.Equal(t, uint32(100), d.must(mixed).GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit(), "known entries count")
	}
	for reason, n := range map[string]float64{"domain": 3, "entry": 9, "no_subject": 12, "limit": 3, "descriptors": 3} {
		require.InDelta(t, n, d.ignored(reason), 0, reason)
	}
	logged := d.logs.String()
	require.Equal(t, 1, strings.Count(logged, "name=another"))
	require.Equal(t, 1, strings.Count(logged, "name=header_match"))
	require.NotContains(t, logged, "canary-value")
	for i := range 200 {
		d.must(descriptor("key-"+strconv.Itoa(i), "v"))
	}
	require.LessOrEqual(t, strings.Count(d.logs.String(), "\n"), 64, "whoever invents names cannot fill the log")
}

// Guarantee: 0 or nothing on the call is one hit; a number on the descriptor goes before it; an explicit 0 only looks; a
// negative number gives back and needs the permission.
func TestHitsAddend(t *testing.T) {
	t.Parallel()
	d := newDoor(t, doorOptions{limits: []tenants.Rule{perMinute(10)}})
	hits := func(n uint64, negative bool) *extv3.RateLimitDescriptor {
		return &extv3.RateLimitDescriptor{
			Entries: descriptor("tenant", "school-17").GetEntries(), HitsAddend: wrapperspb.UInt64(n), IsNegativeHits: negative,
		}
	}
	call := func(addend uint32, descriptors ...*extv3.RateLimitDescriptor) *ratelimitv3.RateLimitResponse {
		r, err := d.send(&ratelimitv3.RateLimitRequest{Domain: envoyrls.DefaultDomain, Descriptors: descriptors, HitsAddend: addend})
		require.NoError(t, err)
		return r
	}
	remaining := func(r *ratelimitv3.RateLimitResponse) uint32 { return r.GetStatuses()[0].GetLimitRemaining() }

	require.Equal(t, uint32(9), remaining(call(0, descriptor("tenant", "school-17"))))
	require.Equal(t, uint32(6), remaining(call(3, descriptor("tenant", "school-17"))))
	require.Equal(t, uint32(1), remaining(call(3, hits(5, false))), "the descriptor's number holds")
	require.Equal(t, ok, call(3, hits(0, false)).GetOverallCode(), "one more would fit")
	require.Equal(t, uint32(1), remaining(call(0, hits(0, false))), "looking takes nothing")
	require.Equal(t, over, call(0, hits(2, false)).GetOverallCode())
	require.Zero(t, remaining(call(0, hits(1, false))))
	require.Equal(t, over, call(0, hits(0, false)).GetOverallCode(), "nothing would fit")

	_, err := d.ask([]*extv3.RateLimitDescriptor{hits(4, true)})
	require.Equal(t, codes.PermissionDenied, status.Code(err), "nobody gives back without a token")
	_, err = d.ask([]*extv3.RateLimitDescriptor{hits(4, true)}, "authorization", "Bearer "+d.token(tenants.MayCheck))
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	refunder := d.token(tenants.MayRefund)
	r, err := d.ask([]*extv3.RateLimitDescriptor{hits(4, true)}, "authorization", "Bearer "+refunder)
	require.NoError(t, err)
	require.Equal(t, ok, r.GetOverallCode())
	require.Equal(t, uint32(4), remaining(r))
	require.NotContains(t, headersOf(t, r), "retry-after")
	_, err = d.ask([]*extv3.RateLimitDescriptor{hits(1, false)}, "authorization", "Bearer "+refunder)
	require.Equal(t, codes.PermissionDenied, status.Code(err), "who may refund may not check by that")
}

// Guarantee: a caller is a service token with the permission, or somebody on this machine. Everybody else is counted against
// the address of the connection.
func TestWhoMayAsk(t *testing.T) {
	t.Parallel()
	hit := []*extv3.RateLimitDescriptor{descriptor("tenant", "school-17")}
	for _, remote := range []bool{false, true} {
		d := newDoor(t, doorOptions{limits: []tenants.Rule{perMinute(100)}, policy: []tenants.Rule{perAddress(6)}, remote: remote})
		good, useless, forged := d.token(tenants.MayCheck), d.token(tenants.MayStatus), "pgs_0123456789ab_forged"
		for name, c := range map[string]struct {
			pairs []string
			want  codes.Code
		}{
			"authorization":         {[]string{"authorization", "Bearer " + good}, codes.OK},
			"own header":            {[]string{"x-pegel-service-token", good}, codes.OK},
			"forged":                {[]string{"authorization", "Bearer " + forged}, codes.Unauthenticated},
			"forged in own header":  {[]string{"x-pegel-service-token", forged}, codes.Unauthenticated},
			"two tokens":            {[]string{"authorization", "Bearer " + good, "x-pegel-service-token", good}, codes.Unauthenticated},
			"without permission":    {[]string{"authorization", "Bearer " + useless}, codes.PermissionDenied},
			"API key":               {[]string{"authorization", "Bearer " + d.apiKey()}, codes.PermissionDenied},
			"somebody else's token": {[]string{"authorization", "Bearer eyJhbGciOi"}, map[bool]codes.Code{false: codes.OK, true: codes.Unauthenticated}[remote]},
			"nothing":               {nil, map[bool]codes.Code{false: codes.OK, true: codes.Unauthenticated}[remote]},
		} {
			_, err := d.ask(hit, c.pairs...)
			require.Equal(t, c.want, status.Code(err), "%s, remote %v: %v", name, remote, err)
		}
		wrong := map[bool]uint32{false: 3, true: 5}[remote]
		peek := descriptor("remote_address", "127.0.0.1")
		peek.HitsAddend = wrapperspb.UInt64(0)
		r, err := d.ask([]*extv3.RateLimitDescriptor{peek}, "authorization", "Bearer "+good)
		require.NoError(t, err)
		require.Equal(t, 6-wrong, r.GetStatuses()[0].GetLimitRemaining(), "wrong credentials count against their address, remote %v", remote)
	}
}

// Guarantee: hostile input has a defined answer, and the door answers afterwards.
func TestHostileInput(t *testing.T) {
	t.Parallel()
	d := newDoor(t, doorOptions{limits: []tenants.Rule{perMinute(1_000_000)}})
	many := func(n int) (all []*extv3.RateLimitDescriptor) {
		for i := range n {
			all = append(all, descriptor("tenant", "school-17", "user", "u"+strconv.Itoa(i%7), "path", "/v1/messages"))
		}
		return all
	}
	r := d.must(many(1000)...)
	require.Equal(t, ok, r.GetOverallCode())
	require.Equal(t, uint32(1_000_000-1), r.GetStatuses()[0].GetLimitRemaining())
	require.Equal(t, uint32(1_000_000-1000), r.GetStatuses()[999].GetLimitRemaining(), "duplicates are hits")
	_, err := d.ask(many(1001))
	require.Equal(t, codes.InvalidArgument, status.Code(err))

	_, err = d.ask([]*extv3.RateLimitDescriptor{descriptor("tenant", strings.Repeat("x", 5<<20))})
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "5 MB")
	_, err = d.ask([]*extv3.RateLimitDescriptor{descriptor("tenant", strings.Repeat("x", 500<<10))})
	require.NoError(t, err)

	for name, raw := range map[string]string{
		"invalid UTF-8": "\x0a\x01\xff",
		"cut short":     "\x0a\x05peg",
		"garbage":       strings.Repeat("\xff", 100),
	} {
		err := d.conn.Invoke(t.Context(), ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName, []byte(raw), &ratelimitv3.RateLimitResponse{}, grpc.ForceCodecV2(rawCodec{}))
		require.Equal(t, codes.Internal, status.Code(err), name)
	}
	require.Equal(t, ok, d.must(descriptor("tenant", "school-17")).GetOverallCode())
}

// Guarantee: bytes that are no UTF-8 in a fact, which Envoy copies from its client, do not make the call fail, because Envoy would let
// the request pass: where they do not matter it is counted, elsewhere it is refused.
func TestFactsThatAreNotText(t *testing.T) {
	t.Parallel()
	d := newDoor(t, doorOptions{limits: []tenants.Rule{perMinute(2), {
		Limit: ratelimit.Limit{Name: "login", Scope: ratelimit.ScopeTenant, Algorithm: ratelimit.SlidingWindowLog, Quota: 1, Window: time.Hour},
		Match: tenants.Match{Methods: []string{"POST"}, Paths: []string{"/login"}},
	}}, policy: []tenants.Rule{perAddress(1)}})
	// placeholder stands for one byte that is none in UTF-8: lengths stay right.
	const placeholder = "\x01"
	ask := func(pairs ...string) *ratelimitv3.RateLimitResponse {
		raw, err := proto.Marshal(&ratelimitv3.RateLimitRequest{Domain: envoyrls.DefaultDomain, Descriptors: []*extv3.RateLimitDescriptor{descriptor(pairs...)}})
		require.NoError(t, err)
		for i, value := range pairs {
			if i%2 == 1 && strings.Contains(value, placeholder) {
				raw = bytes.ReplaceAll(raw, []byte(value), []byte(strings.ReplaceAll(value, placeholder, "\xff")))
			}
		}
		var answer rawAnswer
		err = d.conn.Invoke(t.Context(), ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName, raw, &answer, grpc.ForceCodecV2(rawCodec{}))
		require.NoError(t, err, "%q", pairs)
		r := &ratelimitv3.RateLimitResponse{}
		require.NoError(t, proto.Unmarshal(answer, r))
		return r
	}
	login := []string{"tenant", "school-17", "method", "POST", "path", "/login?next=" + placeholder + "x"}
	require.Equal(t, ok, ask(login...).GetOverallCode())
	require.Equal(t, over, ask(login...).GetOverallCode(), "the path is the same with any query")
	require.Equal(t, over, ask("tenant", "school-17", "method", "POST", "path", "/lo"+placeholder+"gin").GetOverallCode(), "a path that cannot be read meets every limit")
	require.Equal(t, over, ask("remote_address", "192.0.2.1", "user", "a"+placeholder+"b").GetOverallCode())
	for name, pairs := range map[string][]string{
		"validation": {"tenant", "school-17", "user", "a" + placeholder + "bcd"},
		"not_found":  {"tenant", "scho" + placeholder + "l"},
	} {
		r := ask(pairs...)
		require.Equal(t, over, r.GetOverallCode(), name)
		require.Equal(t, name, bodyOf(t, r)["error"])
	}
	require.Equal(t, ok, d.must(descriptor("tenant", "school-17", "path", "/")).GetOverallCode(), "the second of two")
}

// rawAnswer is an answer as it came.
type rawAnswer []byte

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil //nolint:errcheck,forcetypeassert // the test sends nothing else
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if answer, ok := v.(*rawAnswer); ok {
		*answer = data.Materialize()
	}
	return nil
}
func (rawCodec) Name() string { return "proto" }
