package app

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// certificateCheck is how often the certificate files are looked at, at most.
const certificateCheck = 10 * time.Second

// certificate serves a key pair from files and follows their renewal without a restart. A renewal that cannot be read
// (half written, say) leaves the old pair in service.
type certificate struct {
	certFile, keyFile string
	now               func() time.Time
	log               *slog.Logger

	mu      sync.Mutex
	pair    *tls.Certificate
	changed time.Time // the newer of the files' times when pair was read
	checked time.Time
}

func newCertificate(certFile, keyFile string, now func() time.Time, log *slog.Logger) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, now: now, log: log}
	changed, err := c.filesChanged()
	if err != nil {
		return nil, err
	}
	if err := c.read(changed); err != nil {
		return nil, err
	}
	c.checked = now()
	return c, nil
}

// config is the TLS configuration of every listener.
func (c *certificate) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}
}

// get is tls.Config.GetCertificate.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); now.Sub(c.checked) >= certificateCheck {
		c.checked = now
		changed, err := c.filesChanged()
		if err == nil && !changed.Equal(c.changed) {
			if err = c.read(changed); err == nil {
				c.log.Info("certificate renewed", slog.String("file", c.certFile))
			}
		}
		if err != nil {
			c.log.Error("certificate cannot be renewed; the old one stays in service", slog.Any("error", err))
		}
	}
	return c.pair, nil
}

func (c *certificate) filesChanged() (time.Time, error) {
	var newest time.Time
	for _, path := range []string{c.certFile, c.keyFile} {
		st, err := os.Stat(path)
		if err != nil {
			return time.Time{}, fmt.Errorf("read the TLS files: %w", err)
		}
		if st.ModTime().After(newest) {
			newest = st.ModTime()
		}
	}
	return newest, nil
}

func (c *certificate) read(changed time.Time) error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("read the TLS files: %w", err)
	}
	c.pair, c.changed = &pair, changed
	return nil
}
