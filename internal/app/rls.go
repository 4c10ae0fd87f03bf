package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/envoyrls"
)

// openRLS builds the front door for Envoy.
func (a *App) openRLS(ctx context.Context, engine *decision.Engine, cert *certificate) error {
	if a.cfg.RLSListen == "" {
		return nil
	}
	l, err := a.listeners.listen(ctx, rlsListener, rlsSetting, a.cfg.RLSListen, cert)
	if err != nil {
		return err
	}
	a.rls, err = envoyrls.New(envoyrls.Config{
		Engine: engine, Directory: a.directory, Domain: a.cfg.RLSDomain, Local: local(l.socket.Addr()), Metrics: a.metrics, Tracing: a.tracing, Log: a.log,
	})
	if err != nil {
		return fmt.Errorf("build the Envoy front door: %w", err)
	}
	l.server = a.rls
	return nil
}

// local reports whether only this machine reaches an address.
func local(addr net.Addr) bool {
	if tcp, ok := addr.(*net.TCPAddr); ok {
		return tcp.IP.IsLoopback()
	}
	return addr.Network() == unixNetwork
}

const (
	unixNetwork = "unix"
	unixPrefix  = "unix:"
	// maxSocketPath is what the kernels of Linux and macOS both take, in bytes.
	maxSocketPath = 103
)

// listenOn binds host:port, or unix:/path. A socket that a process left behind which is gone is taken over.
func listenOn(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	path, isUnix := strings.CutPrefix(addr, unixPrefix)
	if !isUnix {
		return lc.Listen(ctx, "tcp", addr) //nolint:wrapcheck // listenReason says it
	}
	l, err := lc.Listen(ctx, unixNetwork, path)
	if errors.Is(err, syscall.EADDRINUSE) && abandoned(ctx, path) {
		if err = os.Remove(path); err == nil {
			l, err = lc.Listen(ctx, unixNetwork, path)
		}
	}
	if err != nil {
		return nil, err //nolint:wrapcheck // listenReason says it
	}
	// Who may ask is who may open the socket: the owner and the group.
	if err := os.Chmod(path, 0o660); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// abandoned reports whether path is a socket that nobody listens on.
func abandoned(ctx context.Context, path string) bool {
	if st, err := os.Lstat(path); err != nil || st.Mode()&os.ModeSocket == 0 {
		return false
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, unixNetwork, path)
	if err == nil {
		_ = c.Close()
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// listenAddressOrSocket reads host:port or unix:/path.
func listenAddressOrSocket(dst *string, v string) error {
	path, isUnix := strings.CutPrefix(v, unixPrefix)
	if !isUnix {
		return listenAddress(dst, v)
	}
	if !filepath.IsAbs(path) || len(path) > maxSocketPath || strings.IndexByte(path, 0) >= 0 {
		return fmt.Errorf("is not unix: and an absolute path of at most %d bytes", maxSocketPath)
	}
	*dst = v
	return nil
}

// rlsDomain reads the domain of Envoy's rate-limit filter.
func rlsDomain(dst *string, v string) error {
	if len(v) > 255 || strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return errors.New("must be at most 255 printable ASCII characters without spaces")
	}
	*dst = v
	return nil
}
