package app

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
)

// handshakes is a TLS listener whose connections have finished their handshake when they are accepted, so that it is known which
// protocol they speak. A slow handshake keeps nobody else waiting; it is given up after readHeaderTimeout, as net/http does it.
type handshakes struct {
	net.Listener

	log     *slog.Logger
	ready   chan accepted
	ctx     context.Context //nolint:containedctx // it ends with the listener
	cancel  context.CancelFunc
	running sync.WaitGroup
}

type accepted struct {
	conn net.Conn
	err  error
}

// newHandshakes accepts on a TLS listener until it is closed.
func newHandshakes(socket net.Listener, log *slog.Logger) *handshakes {
	ctx, cancel := context.WithCancel(context.Background())
	h := &handshakes{Listener: socket, log: log, ready: make(chan accepted), ctx: ctx, cancel: cancel}
	h.running.Go(h.run)
	return h
}

// Accept waits for the next connection that has shaken hands.
func (h *handshakes) Accept() (net.Conn, error) {
	select {
	case a := <-h.ready:
		return a.conn, a.err
	case <-h.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close ends accepting, and handshakes under way.
func (h *handshakes) Close() error {
	h.cancel()
	err := h.Listener.Close()
	h.running.Wait()
	return err //nolint:wrapcheck // a listener's errors are its own
}

func (h *handshakes) run() {
	for {
		conn, err := h.Listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			h.hand(accepted{err: err}) // the server knows which ones pass
		default:
			h.running.Go(func() { h.greet(conn.(*tls.Conn)) }) //nolint:forcetypeassert,errcheck // the listener is a TLS one
		}
	}
}

func (h *handshakes) greet(conn *tls.Conn) {
	ctx, cancel := context.WithTimeout(h.ctx, readHeaderTimeout)
	defer cancel()
	err := conn.HandshakeContext(ctx)
	if err == nil {
		if !h.hand(accepted{conn: conn}) {
			_ = conn.Close()
		}
		return
	}
	h.log.LogAttrs(ctx, slog.LevelDebug, "TLS handshake failed", slog.String("client", conn.RemoteAddr().String()), slog.String("error", err.Error()))
	var record tls.RecordHeaderError
	if errors.As(err, &record) && record.Conn != nil {
		_, _ = io.WriteString(record.Conn, "HTTP/1.0 400 Bad Request\r\n\r\nThis address speaks TLS: use https.\n")
	}
	_ = conn.Close()
}

// hand gives the server what it waits for, unless the listener is closed before.
func (h *handshakes) hand(a accepted) bool {
	select {
	case h.ready <- a:
		return true
	case <-h.ctx.Done():
		return false
	}
}
