package envoyrls

import (
	"context"
	"errors"
	"log/slog"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// maxDescriptors is that of /v1/check/batch.
const maxDescriptors = 1000

// service answers ShouldRateLimit.
type service struct {
	ratelimitv3.UnimplementedRateLimitServiceServer

	engine    *decision.Engine
	directory *tenants.Directory
	domain    string
	local     bool
	log       *slog.Logger
	met       *metrics
}

// ShouldRateLimit decides all descriptors of a call: refunds first, then everything else as one batch.
func (s *service) ShouldRateLimit(ctx context.Context, req *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	if s.directory.Snapshot().Version == 0 {
		return nil, status.Error(codes.Unavailable, "this replica has not loaded its configuration yet")
	}
	caller, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	descriptors := req.GetDescriptors()
	switch {
	case len(descriptors) > maxDescriptors:
		return nil, status.Errorf(codes.InvalidArgument, "%d descriptors in one call; at most %d", len(descriptors), maxDescriptors)
	case req.GetDomain() != s.domain:
		s.met.ignore(otherDomain, req.GetDomain())
		return letThrough(len(descriptors)), nil
	case len(descriptors) == 0:
		s.met.ignore(noDescriptors, "")
		return letThrough(0), nil
	}
	elements := make([]element, len(descriptors))
	for i, d := range descriptors {
		elements[i] = s.read(d, req.GetHitsAddend(), caller.Service)
	}
	if err := s.permit(&caller, elements); err != nil {
		return nil, err
	}
	s.decide(ctx, elements)
	if err := s.failure(ctx, elements); err != nil {
		return nil, err
	}
	return answer(elements), nil
}

// caller is who asks: a service by its token, or somebody on this machine. Everybody else is counted against the address of
// the connection and refused.
func (s *service) caller(ctx context.Context) (decision.Caller, error) {
	credentials := decision.Credentials{
		Authorization: metadata.ValueFromIncomingContext(ctx, "authorization"),
		ServiceToken:  metadata.ValueFromIncomingContext(ctx, "x-pegel-service-token"),
	}
	remote := ""
	if p, ok := peer.FromContext(ctx); ok {
		remote = p.Addr.String()
	}
	address, _ := s.engine.AddressPrefix(remote) // a Unix socket has none
	caller := s.engine.Identify(credentials, address)
	caller.Door = decision.DoorEnvoy
	switch {
	case !caller.Wrong() && caller.APIKey == nil && (caller.Service != nil || s.local):
		return caller, nil
	case !caller.Wrong() && caller.APIKey != nil:
		return caller, status.Error(codes.PermissionDenied, "an API key decides for its own tenant over HTTP; a proxy needs a service token")
	}
	switch err := s.engine.Unauthorized(ctx, &caller, "", ""); {
	case errors.Is(err, decision.ErrUnauthorized):
		return caller, status.Error(codes.Unauthenticated,
			"no valid credential: send a service token in the metadata, as authorization (Bearer pgs_…) or x-pegel-service-token")
	case errors.Is(err, decision.ErrNetworkDenied):
		return caller, status.Error(codes.PermissionDenied, "the network of this address is denied")
	default:
		return caller, status.FromContextError(ctx.Err()).Err()
	}
}

// permit holds a call to what its token may do. Who came without one, from this machine, may check and no more.
func (s *service) permit(caller *decision.Caller, elements []element) error {
	for i := range elements {
		switch e := &elements[i]; {
		case e.refund && !caller.May(tenants.MayRefund):
			return status.Error(codes.PermissionDenied, "negative hits need a service token that may refund")
		case !e.refund && caller.Service != nil && !caller.May(tenants.MayCheck):
			return status.Error(codes.PermissionDenied, "this service token may not check")
		}
	}
	return nil
}

// decide asks the engine about every element that names something a limit can hold for.
func (s *service) decide(ctx context.Context, elements []element) {
	hits := make([]decision.Hit, 0, len(elements))
	places := make([]int, 0, len(elements))
	for i := range elements {
		switch e := &elements[i]; {
		case e.ignored || e.err != nil:
		case e.refund:
			e.decision, e.err = s.engine.Refund(ctx, e.hit)
		default:
			hits, places = append(hits, e.hit), append(places, i)
		}
	}
	if len(hits) == 0 {
		return
	}
	for i, result := range s.engine.DecideBatch(ctx, hits) {
		elements[places[i]].decision, elements[places[i]].err = result.Decision, result.Err
	}
}

// failure is the error of a call that cannot be answered as a whole: its deadline has passed, its caller is gone, or we
// failed. What was decided stays charged.
func (s *service) failure(ctx context.Context, elements []element) error {
	for i := range elements {
		err := elements[i].err
		var known *refusal
		if err == nil || errors.As(err, &known) {
			continue
		}
		if _, _, ok := decision.ProblemOf(err); ok {
			continue
		}
		if ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		s.log.LogAttrs(ctx, slog.LevelError, "descriptors could not be decided", slog.Any("error", err))
		return status.Error(codes.Internal, "something went wrong on our side")
	}
	return nil
}
