package testenv

import (
	"net"
	"sync"
	"testing"
)

// Silent accepts connections and never says anything.
type Silent struct {
	Addr string

	listener net.Listener
	done     chan struct{}

	mu    sync.Mutex
	conns []net.Conn
}

// SilentServer starts one, until Stop is called or the test ends.
func SilentServer(tb testing.TB) *Silent {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s := &Silent{Addr: listener.Addr().String(), listener: listener, done: make(chan struct{})}
	go s.accept()
	tb.Cleanup(s.Stop)
	return s
}

func (s *Silent) accept() {
	defer close(s.done)
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns = append(s.conns, c)
		s.mu.Unlock()
	}
}

// Accepted is how many connections there have been.
func (s *Silent) Accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Stop gives the address back and cuts the connections. It may be called more than once.
func (s *Silent) Stop() {
	_ = s.listener.Close()
	<-s.done
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		_ = c.Close()
	}
}
