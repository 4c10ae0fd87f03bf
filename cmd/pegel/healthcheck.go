package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/app"
)

// healthcheckLimit bounds the whole command.
const healthcheckLimit = 2500 * time.Millisecond

func healthcheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "Ask a replica on this machine whether it is healthy",
		Long: `Ask the replica on this machine for /healthz on its public listener (PEGEL_LISTEN; over TLS with
PEGEL_TLS_CERT_FILE). Exit status 0 when it is healthy. Made for containers that have no curl.`,
		Example: "  pegel healthcheck\n  pegel healthcheck --ready",
		Args:    exactly(),
	}
	ready := cmd.Flags().Bool("ready", false, "ask /readyz instead: does it take traffic?")
	settings := addSettings(cmd, named("PEGEL_LISTEN", "PEGEL_TLS_CERT_FILE"))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		listen, secure, err := app.LoadListen(settings.sources())
		if err != nil {
			return err
		}
		path := "/healthz"
		if *ready {
			path = "/readyz"
		}
		return askHealth(cmd.Context(), localURL(listen, secure)+path)
	}
	return cmd
}

// localURL is how this machine reaches a listen address.
func localURL(listen string, secure bool) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		host, port = listen, ""
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http://"
	if secure {
		scheme = "https://"
	}
	return scheme + net.JoinHostPort(host, port)
}

func askHealth(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, healthcheckLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("healthcheck: %w", err)
	}
	client := &http.Client{Transport: &http.Transport{
		Proxy: nil, // the replica is on this machine
		// The certificate is for the name clients use, not for this loopback address, and nothing secret is sent.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
	}}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("healthcheck: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("healthcheck: %s answered %s", url, res.Status)
	}
	return nil
}
