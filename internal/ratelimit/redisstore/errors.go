package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/redis/go-redis/v9"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// statusError says why the script could not settle a charge.
func statusError(status int64) error {
	switch status {
	case statusWrongType:
		return fmt.Errorf("%w: its key holds another type of value", ratelimit.ErrCounter)
	case statusDamaged:
		return fmt.Errorf("%w: its key holds something that is no counter", ratelimit.ErrCounter)
	case statusHalfWritten:
		return fmt.Errorf("%w: Redis stopped taking writes half way through a batch", ratelimit.ErrCounter)
	}
	return fmt.Errorf("%w: unknown status %d", ratelimit.ErrCounter, status)
}

// errReply is a reply that the script does not give: something else answers on that address.
var errReply = errors.New("unexpected reply")

// unavailable wraps what a call failed with. The caller's own cancellation is not the store's failure; a deadline is,
// whoever set it: Redis did not answer in the time there was.
func unavailable(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("redis: %w", ctx.Err())
	}
	return fmt.Errorf("%w: redis: %s: %w", ratelimit.ErrUnavailable, reason(err), err)
}

// reason says in operators' words what kind of failure an error is.
func reason(err error) string {
	var network net.Error
	switch {
	case redis.IsOOMError(err):
		return "out of memory"
	case redis.IsReadOnlyError(err):
		return "read-only"
	case redis.IsLoadingError(err):
		return "still loading"
	case redis.IsAuthError(err) || redis.IsPermissionError(err):
		return "access denied"
	case movedByStandalone(err):
		return "a cluster node (list the cluster's addresses, separated by commas)"
	case redis.IsClusterDownError(err) || redis.IsTryAgainError(err) || redis.HasErrorPrefix(err, "CROSSSLOT"):
		return "cluster cannot serve the slot"
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return "no free connection"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return "timeout"
	case errors.Is(err, redis.ErrClosed):
		return "closed"
	case errors.Is(err, errReply):
		return "not ours"
	case isReply(err):
		return "refused"
	}
	return "connection failed"
}

func movedByStandalone(err error) bool {
	if _, moved := redis.IsMovedError(err); moved {
		return true
	}
	_, ask := redis.IsAskError(err)
	return ask
}

// isReply reports whether the server said it, rather than the network.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// noScript reports whether the server does not know the script, and so has not run it.
func noScript(err error) bool {
	return redis.HasErrorPrefix(err, "NOSCRIPT")
}
