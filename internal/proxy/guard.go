package proxy

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/pegel-dev/pegel/internal/problem"
)

// Guard refuses, on the connections of socket, the requests whose framing could be read in more than one way: with 400, before
// anything of them is decided or forwarded, and the connection is closed. Requests before such a one are answered.
//
// server is the one that will serve it: its hooks ConnState and ConnContext are set. A TLS connection must have finished its
// handshake when it is accepted; one that speaks HTTP/2, which frames in one way only, is left alone.
func Guard(socket net.Listener, server *http.Server) net.Listener {
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		if c := guardedOf(conn); c != nil {
			c.state.Store(int64(state))
		}
	}
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if c := guardedOf(conn); c != nil {
			return context.WithValue(ctx, guardedKey{}, c)
		}
		return ctx
	}
	return guard{socket}
}

type guard struct{ net.Listener }

// Accept waits for the next connection.
func (g guard) Accept() (net.Conn, error) {
	conn, err := g.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // the server looks at a listener's own errors
	}
	secure, ok := conn.(*tls.Conn)
	switch {
	case !ok:
		return &guarded{Conn: conn}, nil
	case secure.ConnectionState().NegotiatedProtocol == "h2":
		return conn, nil
	}
	return &guardedTLS{guarded{Conn: conn}, secure.ConnectionState()}, nil
}

// guarded is a connection whose requests each have one framing.
type guarded struct {
	net.Conn

	state    atomic.Int64 // an http.ConnState
	framing  framing
	refused  atomic.Pointer[error]
	kept     []byte // the last byte before what was refused
	answered atomic.Bool
}

// guardedTLS is one that net/http knows to be TLS.
type guardedTLS struct {
	guarded

	tls tls.ConnectionState
}

// ConnectionState is the TLS state of the requests.
func (c *guardedTLS) ConnectionState() tls.ConnectionState { return c.tls }

func guardedOf(conn net.Conn) *guarded {
	switch c := conn.(type) {
	case *guarded:
		return c
	case *guardedTLS:
		return &c.guarded
	}
	return nil
}

type guardedKey struct{}

// ambiguity is what was refused on a request's connection, nil when nothing was.
func ambiguity(ctx context.Context) error {
	if c, ok := ctx.Value(guardedKey{}).(*guarded); ok {
		if refused := c.refused.Load(); refused != nil {
			return *refused
		}
	}
	return nil
}

// Read reads up to the first ambiguous request and then fails.
//
// net/http looks one byte ahead while a request is handled, and gives that request up when it cannot. A byte of the refused head is
// kept back for it, so that a request that came in one packet with a refused one is answered.
func (c *guarded) Read(p []byte) (int, error) {
	if http.ConnState(c.state.Load()) == http.StateHijacked {
		return c.Conn.Read(p) //nolint:wrapcheck // a connection's errors are its own
	}
	if c.refused.Load() == nil {
		n, err := c.Conn.Read(p)
		good, refused := c.framing.scan(p[:n])
		if refused == nil {
			return n, err //nolint:wrapcheck // likewise
		}
		c.refused.Store(&refused)
		if good > 0 {
			c.kept = []byte{p[good-1]}
		}
		if good > 1 {
			return good - 1, nil
		}
	}
	if len(p) > 0 && len(c.kept) > 0 {
		n := copy(p, c.kept)
		c.kept = nil
		return n, nil
	}
	return 0, c.refuse(*c.refused.Load())
}

// refuse answers, unless a handler is at work: then the body that it reads is at fault, and the answer is the handler's.
func (c *guarded) refuse(ambiguity error) error {
	if http.ConnState(c.state.Load()) == http.StateActive {
		return ambiguity
	}
	id := newRequestID()
	body, err := json.Marshal(problem.New(problem.Validation, ambiguity.Error(), id))
	if err == nil && !c.answered.Load() { // our own structs always marshal
		_, _ = fmt.Fprintf(c.Conn, "HTTP/1.1 400 Bad Request\r\nContent-Type: %s\r\nContent-Length: %d\r\nCache-Control: no-store\r\n"+
			"X-Request-Id: %s\r\nConnection: close\r\n\r\n%s", problem.ContentType, len(body), id, body)
	}
	c.answered.Store(true)
	return io.EOF
}

// Write sends an answer. One that net/http makes of the refused request's remains is dropped: that one is answered.
func (c *guarded) Write(p []byte) (int, error) {
	if c.answered.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p) //nolint:wrapcheck // a connection's errors are its own
}

// CloseWrite ends what is sent, so that the client gets all of it before the connection is closed.
func (c *guarded) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite() //nolint:wrapcheck // a connection's errors are its own
	}
	return nil
}
