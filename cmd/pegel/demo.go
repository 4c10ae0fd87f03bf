package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// startDemoUpstream serves, on a free loopback port, an API that shows what it was sent.
func startDemoUpstream(ctx context.Context) (url string, stop func() error, err error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("start the demo upstream: %w", err)
	}
	server := &http.Server{Handler: http.HandlerFunc(demoUpstream), ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	stop = func() error {
		err := server.Close()
		if serveErr := <-ended; !errors.Is(serveErr, http.ErrServerClosed) {
			err = errors.Join(err, serveErr)
		}
		if err != nil {
			return fmt.Errorf("stop the demo upstream: %w", err)
		}
		return nil
	}
	return "http://" + l.Addr().String(), stop, nil
}

func demoUpstream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	// The connection's end is the only error there is.
	_ = json.NewEncoder(w).Encode(map[string]any{
		"upstream": "the demo upstream of pegel dev", "method": r.Method, "path": r.URL.RequestURI(), "headers": r.Header,
	})
}
