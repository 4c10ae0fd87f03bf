package main

import (
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/app"
)

func serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run one replica",
		Long: `Run one replica until SIGTERM or Ctrl-C; a second signal ends it at once.

It migrates the database when needed (any number of replicas may start at once), waits for Postgres while it is down, and
starts without Redis.` + "\n" + settingsHelp(),
		Example: `  PEGEL_DATABASE_URL=postgres://pegel@db/pegel PEGEL_REDIS_URL=redis://cache:6379 pegel serve
  pegel serve --config /etc/pegel.yaml --listen :8080
  pegel serve --proxy-listen :8082 --proxy-upstream http://api:3000`,
		Args: exactly(),
	}
	settings := addSettings(cmd, everySetting)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		relaxGC()
		cfg, err := app.Load(settings.sources())
		if err != nil {
			return err
		}
		log := app.NewLogger(cfg, cmd.ErrOrStderr())
		slog.SetDefault(log) // for libraries
		a, err := app.New(cmd.Context(), cfg, app.Options{Log: log, Now: time.Now, Version: version})
		if err != nil {
			return err
		}
		return a.Run(cmd.Context())
	}
	return cmd
}
