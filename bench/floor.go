package main

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// floorCommand makes this program the server with a fixed answer: what an HTTP service in Go costs that decides nothing.
const floorCommand = "serve-floor"

// floorAnswer has the size of a decision about one limit.
const floorAnswer = `{"decision":"allow","allowed":true,"decision_id":"019273f2-5f3e-7d3c-9a41-2f6f3a3d8f55","tenant":"bench-1",` +
	`"plan":"bench","source":"redis","limit_name":"requests-per-minute","limit":2000,"remaining":1999,"used":1,"utilization":0.0005,` +
	`"delay_ms":0,"reset_after_ms":60000,"retry_after_ms":0,"limits":[{"name":"requests-per-minute","scope":"tenant",` +
	`"algorithm":"sliding_window_log","effective_algorithm":"sliding_window_log","window_ms":60000,"limit":2000,"used":1,` +
	`"remaining":1999,"delay_ms":0,"reset_after_ms":60000,"retry_after_ms":0,"mode":"enforce"}]}`

func serveFloor(ctx context.Context, address string) error {
	server := &http.Server{Addr: address, ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(floorAnswer)) // the caller is gone
		})}
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		err := server.Close()
		<-ended
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return err
	}
}
