package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Bounds of every HTTP connection. There is no bound on writing an answer: a held request and a proxied stream may take
// longer than any fixed time, and the caps on held requests and the drain bound them instead.
const (
	readHeaderTimeout = 10 * time.Second
	readTimeout       = 30 * time.Second  // of the small bodies of the API; the proxy has none
	idleTimeout       = 120 * time.Second // longer than the 60 s of common balancers, so that they close first
	maxHeaderBytes    = 64 << 10
)

// listener is one address we serve on.
type listener struct {
	name   string // "public", "admin", "proxy" or "rls"
	server server
	socket net.Listener
}

// server is an *http.Server or one that ends like it.
type server interface {
	Serve(socket net.Listener) error
	// Shutdown waits for what is in flight until ctx ends, and then returns ctx's error.
	Shutdown(ctx context.Context) error
	Close() error
}

// listeners serve until they are drained. The zero value is empty.
type listeners struct {
	log      *slog.Logger
	all      []*listener
	draining atomic.Bool
}

// listen binds an address; the handler comes with handle.
func (l *listeners) listen(ctx context.Context, name, setting, addr string, cert *certificate) (*listener, error) {
	socket, err := listenOn(ctx, addr)
	if err != nil {
		return nil, &SettingError{Name: setting, Reason: listenReason(addr, err)}
	}
	entry := &listener{name: name, socket: socket}
	if cert != nil {
		cfg := cert.config()
		cfg.NextProtos = []string{"h2", "http/1.1"}
		entry.socket = tls.NewListener(socket, cfg)
	}
	l.all = append(l.all, entry)
	return entry, nil
}

func listenReason(addr string, err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return addr + " is already in use by another process; choose another address"
	case errors.Is(err, syscall.EACCES):
		return "no permission to listen on " + addr
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return addr + " is not an address of this machine"
	}
	return fmt.Sprintf("cannot listen on %s: %v", addr, err)
}

// handle sets what the listener serves. bodies bounds reading a request; 0: no bound.
func (l *listeners) handle(entry *listener, h http.Handler, bodies time.Duration) *http.Server {
	s := &http.Server{
		Handler:           l.closeWhenDraining(h),
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       bodies,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(l.log.With(slog.String("listener", entry.name)).Handler(), slog.LevelDebug),
	}
	entry.server = s
	return s
}

// closeWhenDraining has each connection closed behind the answer it carries once draining has begun, so that clients
// with kept connections move on before the listener closes.
func (l *listeners) closeWhenDraining(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if l.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// serve runs all servers until they are shut down; the first failure of one comes back on the channel, which is closed
// when all have ended.
func (l *listeners) serve() <-chan error {
	failed := make(chan error, len(l.all))
	var running sync.WaitGroup
	for _, entry := range l.all {
		running.Go(func() {
			if err := entry.server.Serve(entry.socket); err != nil && !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serve %s: %w", entry.name, err)
			}
		})
	}
	go func() {
		running.Wait()
		close(failed)
	}()
	return failed
}

// shutdown stops accepting and waits for what is in flight, until ctx ends; then it cuts. The admin listener goes last:
// it tells how the drain is going.
func (l *listeners) shutdown(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, len(l.all))
	last := -1
	for i, entry := range l.all {
		if entry.name == adminListener {
			last = i
			continue
		}
		wg.Go(func() { errs[i] = entry.shutdown(ctx) })
	}
	wg.Wait()
	if last >= 0 {
		errs[last] = l.all[last].shutdown(ctx)
	}
	return errors.Join(errs...)
}

func (e *listener) shutdown(ctx context.Context) error {
	if err := e.server.Shutdown(ctx); err != nil {
		if closeErr := e.server.Close(); closeErr != nil {
			err = errors.Join(err, closeErr)
		}
		return fmt.Errorf("requests on the %s listener were cut: %w", e.name, err)
	}
	return nil
}

// tunnelling is the proxy's server: its WebSockets end with it.
type tunnelling struct {
	server

	tunnels interface {
		Shutdown(ctx context.Context) error
	}
}

// Shutdown cuts the WebSockets while requests in flight finish.
func (t tunnelling) Shutdown(ctx context.Context) error {
	var tunnels error
	var wg sync.WaitGroup
	wg.Go(func() { tunnels = t.tunnels.Shutdown(ctx) })
	err := t.server.Shutdown(ctx)
	wg.Wait()
	return errors.Join(err, tunnels)
}

// close gives the addresses back without serving.
func (l *listeners) close() {
	for _, entry := range l.all {
		_ = entry.socket.Close()
	}
}

// addr is where a listener really is: with port 0 the system chose.
func (l *listeners) addr(name string) string {
	for _, entry := range l.all {
		if entry.name == name {
			return entry.socket.Addr().String()
		}
	}
	return ""
}
