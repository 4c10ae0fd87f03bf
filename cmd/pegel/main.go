// Command pegel is the whole platform: the service, its database migrations and its small helpers.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/pegel-dev/pegel/internal/app"
)

// version is set when a release is built (-ldflags "-X main.version=…").
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() {
		<-ctx.Done()
		stop() // from now on a second signal ends the process at once
	}()
	err := realMain(ctx, os.Args[1:])
	status, speak := exitStatus(err)
	if speak {
		fmt.Fprintln(os.Stderr, "pegel:", app.OneLine(err))
	}
	if status != 0 {
		os.Exit(status)
	}
}

// realMain runs one command until it is done or ctx ends.
func realMain(ctx context.Context, args []string) error {
	root := rootCommand() //nolint:contextcheck // commands get the context from cobra
	root.SetArgs(args)
	root.SetIn(&stdin{os.Stdin, ctx})
	return root.ExecuteContext(ctx)
}
