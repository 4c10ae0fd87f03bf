package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/app"
)

func alertCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "alert", Short: "Alerts: what has been wrong for long enough", Example: "  pegel alert list --status open\n  pegel alert ack 12\n  pegel alert test"}
	test := &cobra.Command{
		Use:   "test",
		Short: "Send a made-up alert to everybody who would get a real one",
		Long: "Send a made-up alert by mail and webhook, by the settings that `pegel serve` would use, and say what became of it.\n" +
			"Nothing is written down, no tenant is mailed, and no database is needed. Exit status 1 when one did not get through." + "\n" + settingsHelp(),
		Example: "  pegel alert test\n  pegel alert test --config /etc/pegel.yaml",
		Args:    exactly(),
	}
	settings := addSettings(test, app.AlertSetting)
	test.RunE = func(cmd *cobra.Command, _ []string) error {
		results, err := app.TestAlerts(cmd.Context(), settings.sources(), time.Now())
		if err != nil {
			return err
		}
		failed := false
		for _, r := range results {
			word := "sent"
			if r.Error != "" {
				word, failed = "not sent: "+r.Error, true
			}
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", r.Channel, word); err != nil {
				return fmt.Errorf("say what happened: %w", err)
			}
		}
		if failed {
			return errors.New("not everybody was reached")
		}
		return nil
	}
	group(cmd)
	cmd.AddCommand(alertList(), alertAck(), test)
	return cmd
}
