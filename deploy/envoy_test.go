package deploy_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pegel-dev/pegel/internal/envoyrls"
)

// loadEnvoy reads the shipped configuration as Envoy does: unknown fields are errors, every rule of Envoy's types holds, inside
// typed_config too.
func loadEnvoy(t *testing.T) *bootstrapv3.Bootstrap {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("envoy", "envoy.yaml"))
	require.NoError(t, err)
	var tree map[string]any
	require.NoError(t, yaml.Unmarshal(raw, &tree))
	asJSON, err := json.Marshal(tree)
	require.NoError(t, err)
	b := &bootstrapv3.Bootstrap{}
	require.NoError(t, protojson.Unmarshal(asJSON, b))
	validate(t, b)
	return b
}

// validate applies a message's rules, and those of every message packed anywhere inside it.
func validate(t *testing.T, m proto.Message) {
	t.Helper()
	if checked, ok := m.(interface{ ValidateAll() error }); ok {
		require.NoError(t, checked.ValidateAll())
	}
	if packed, ok := m.(*anypb.Any); ok {
		inner, err := packed.UnmarshalNew()
		require.NoError(t, err)
		validate(t, inner)
		return
	}
	m.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap():
			if field.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					validate(t, v.Message().Interface())
					return true
				})
			}
		case field.IsList() && field.Message() != nil:
			for i := range v.List().Len() {
				validate(t, v.List().Get(i).Message().Interface())
			}
		case field.Message() != nil:
			validate(t, v.Message().Interface())
		}
		return true
	})
}

// Guarantee: Envoy's own types accept the shipped configuration, and it keeps what docs/front-doors.md says of it: Pegel away lets requests
// through, the time-out leaves room for the fallback, and every fact is one that Pegel knows.
func TestEnvoyConfiguration(t *testing.T) {
	t.Parallel()
	b := loadEnvoy(t)
	manager := &hcmv3.HttpConnectionManager{}
	require.NoError(t, b.GetStaticResources().GetListeners()[0].GetFilterChains()[0].GetFilters()[0].GetTypedConfig().UnmarshalTo(manager))
	place := map[string]int{}
	filter := &filterv3.RateLimit{}
	for i, f := range manager.GetHttpFilters() {
		place[f.GetName()] = i
		if f.GetTypedConfig().MessageIs(filter) {
			require.NoError(t, f.GetTypedConfig().UnmarshalTo(filter))
		}
	}
	require.Zero(t, place["envoy.filters.http.header_mutation"], "what a client sends must be gone before it is read")
	require.Less(t, place["envoy.filters.http.jwt_authn"], place["envoy.filters.http.ratelimit"])
	require.Less(t, place["envoy.filters.http.ratelimit"], place["envoy.filters.http.fault"], "the delay comes from the decision")

	require.Equal(t, envoyrls.DefaultDomain, filter.GetDomain())
	require.False(t, filter.GetFailureModeDeny())
	require.GreaterOrEqual(t, filter.GetTimeout().AsDuration(), 200*time.Millisecond)
	require.Equal(t, corev3.ApiVersion_V3, filter.GetRateLimitService().GetTransportApiVersion())
	require.Equal(t, filterv3.RateLimit_OFF, filter.GetEnableXRatelimitHeaders(), "Pegel sends these headers itself")

	limits := manager.GetRouteConfig().GetVirtualHosts()[0].GetRateLimits()
	require.Len(t, limits, 1)
	var facts []string
	for _, action := range limits[0].GetActions() {
		switch a := action.GetActionSpecifier().(type) {
		case *routev3.RateLimit_Action_RemoteAddress_:
			facts = append(facts, "remote_address")
		case *routev3.RateLimit_Action_RequestHeaders_:
			facts = append(facts, a.RequestHeaders.GetDescriptorKey())
		default:
			require.Failf(t, "an entry that Pegel does not know", "%T", a)
		}
	}
	require.Equal(t, []string{"remote_address", "method", "path", "tenant", "user"}, facts)
}
