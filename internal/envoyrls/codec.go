package envoyrls

import (
	"unicode/utf8"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// codec reads the calls that gRPC's own codec refuses because a fact is not UTF-8. Envoy copies what its client wrote, bytes of any
// kind, and lets a request pass whose call fails: one such byte in a query would be a way around every limit.
type codec struct{ encoding.CodecV2 }

// newCodec is gRPC's own with that exception.
func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	err := c.CodecV2.Unmarshal(data, v)
	req, ok := v.(*ratelimitv3.RateLimitRequest)
	if err == nil || !ok {
		return err //nolint:wrapcheck // gRPC's own
	}
	raw := data.Materialize() // a copy
	blankValues(raw)
	if proto.Unmarshal(raw, req) != nil {
		return err //nolint:wrapcheck // gRPC's own, of the bytes as they came
	}
	return nil
}

// The way from a RateLimitRequest to the value of an entry: field numbers of rls.proto and ratelimit.proto.
const (
	fieldDescriptors protowire.Number = 2
	fieldEntries     protowire.Number = 1
	fieldValue       protowire.Number = 2
)

// blankValues puts NUL in place of each byte of an entry's value that is no UTF-8. No identifier, address or path holds a NUL, so
// such a fact is refused, or, where it does not matter (the query of a path), no hindrance. Lengths stay as they are.
func blankValues(request []byte) {
	within(request, fieldDescriptors, func(descriptor []byte) {
		within(descriptor, fieldEntries, func(entry []byte) {
			within(entry, fieldValue, func(value []byte) {
				for i := 0; i < len(value); {
					r, size := utf8.DecodeRune(value[i:])
					if r == utf8.RuneError && size == 1 {
						value[i] = 0
					}
					i += size
				}
			})
		})
	})
}

// within calls f with the bytes of each field of a message that has the number; they may be changed. It ends where the message
// is broken.
func within(message []byte, field protowire.Number, f func([]byte)) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		size := protowire.ConsumeFieldValue(number, kind, message[n:])
		if size < 0 {
			return
		}
		if number == field && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message[n:])
			f(value)
		}
		message = message[n+size:]
	}
}
