package proxy

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pegel-dev/pegel/internal/decision"
)

// tunnels are the WebSockets that are open. Their handshakes were decided like any request; what flows through them afterwards is
// not, so their number and their age are bounded.
type tunnels struct {
	places   *decision.Holder // by tenant, else by address
	lifetime time.Duration

	mu     sync.Mutex
	ending bool
	open   map[*tunnel]struct{}
	empty  chan struct{} // closed when the last one has ended, once ending
}

// tunnel is one of them, from its handshake on.
type tunnel struct{ cut context.CancelFunc }

func newTunnels(places *decision.Holder, lifetime time.Duration) *tunnels {
	return &tunnels{places: places, lifetime: lifetime, open: make(map[*tunnel]struct{}), empty: make(chan struct{})}
}

// enter takes a place for a tunnel of whoever key names; the tunnel is cut when ctx ends. full: there is no place left. Otherwise
// leave must be called when the tunnel has ended.
func (t *tunnels) enter(parent context.Context, key string) (ctx context.Context, leave func(), full bool) {
	release, ok := t.places.Acquire(key)
	if !ok {
		return nil, nil, true
	}
	ctx, cut := context.WithTimeout(parent, t.lifetime)
	one := &tunnel{cut: cut}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ending {
		cut()
	}
	t.open[one] = struct{}{}
	return ctx, func() {
		cut()
		release()
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.open, one)
		t.closeIfEmpty()
	}, false
}

func (t *tunnels) closeIfEmpty() {
	if !t.ending || len(t.open) > 0 {
		return
	}
	select {
	case <-t.empty:
	default:
		close(t.empty)
	}
}

// shutdown cuts all of them and waits until they have ended, or ctx has.
func (t *tunnels) shutdown(ctx context.Context) error {
	t.mu.Lock()
	t.ending = true
	for one := range t.open {
		one.cut()
	}
	t.closeIfEmpty()
	t.mu.Unlock()
	select {
	case <-t.empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// isWebSocket reports whether a request asks for a WebSocket and for no other protocol.
func isWebSocket(h http.Header) bool {
	lines := h["Upgrade"]
	return len(lines) == 1 && strings.EqualFold(strings.TrimSpace(lines[0]), "websocket")
}

// dropUpgrade takes any other upgrade away: a tunnel to h2c, say, would carry requests that nobody decides.
func dropUpgrade(h http.Header) {
	delete(h, "Upgrade")
	delete(h, "Http2-Settings")
}
