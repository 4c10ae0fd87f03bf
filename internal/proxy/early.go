package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// earlyBytes is how much of a body is read while its request is held.
const earlyBytes = 16 << 10

// earlyBody reads the start of a request's body while the request is held. net/http notices that a client has left only
// when it reads from the connection: after the body's end by itself, before it only because somebody reads the body. A client
// with more than earlyBytes to send is noticed when its delay is over.
//
// It is the request's body afterwards: what was read early comes first, then the rest straight from the connection.
type earlyBody struct {
	body   io.ReadCloser
	unlock func() // ends a Read that waits for the client
	done   chan struct{}

	mu       sync.Mutex
	arrived  *sync.Cond
	buffer   []byte
	err      error
	stopped  bool // the reader is done: nothing more comes into buffer
	released bool // the reader may end after what it is reading
}

// readEarly starts reading r's body and takes its place. left is called when the connection breaks. Without a body it does
// nothing.
func readEarly(w http.ResponseWriter, r *http.Request, left context.CancelFunc) *earlyBody {
	e := &earlyBody{body: r.Body, stopped: true}
	e.arrived = sync.NewCond(&e.mu)
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return e
	}
	e.unlock = func() {
		// A deadline long ago; writers without deadlines have bodies in memory.
		_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0))
	}
	e.stopped, e.done = false, make(chan struct{})
	r.Body = e
	go e.fill(left)
	return e
}

func (e *earlyBody) fill(left context.CancelFunc) {
	defer close(e.done)
	chunk := make([]byte, 4<<10)
	for read := 0; ; {
		n, err := e.body.Read(chunk[:min(len(chunk), earlyBytes-read)])
		read += n
		if err != nil && !errors.Is(err, io.EOF) {
			left()
		}
		e.mu.Lock()
		e.buffer = append(e.buffer, chunk[:n]...)
		e.err = err
		e.stopped = err != nil || e.released || read >= earlyBytes
		stopped := e.stopped
		e.arrived.Broadcast()
		e.mu.Unlock()
		if stopped {
			return
		}
	}
}

// Read gives what was read early, waits for what is being read, and then reads on itself.
func (e *earlyBody) Read(p []byte) (int, error) {
	e.mu.Lock()
	for len(e.buffer) == 0 && !e.stopped {
		e.arrived.Wait()
	}
	if len(e.buffer) > 0 {
		n := copy(p, e.buffer)
		e.buffer = e.buffer[n:]
		e.mu.Unlock()
		return n, nil
	}
	err := e.err
	e.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return e.body.Read(p)
}

// Close closes the body.
func (e *earlyBody) Close() error { return e.body.Close() }

// release says that the request is no longer held: the rest of the body is for whoever reads it.
func (e *earlyBody) release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.released = true
}

// stop waits for the reader, when the request is over. One that still waits for the client is ended.
func (e *earlyBody) stop() {
	if e.done == nil {
		return
	}
	select {
	case <-e.done:
		return
	default:
	}
	e.mu.Lock()
	waiting := !e.stopped
	e.mu.Unlock()
	if waiting {
		e.unlock()
	}
	<-e.done
}
