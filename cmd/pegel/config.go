package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/app"
)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Look at the settings", Example: "  pegel config check"}
	check := &cobra.Command{
		Use:   "check",
		Short: "Check every setting and show what holds, secrets hidden",
		Long: "Check every setting as `pegel serve` would, without starting anything, and show each value with where it comes\n" +
			"from. Exit status 1 and one line that names the setting when one is wrong." + "\n" + settingsHelp(),
		Example: "  pegel config check\n  pegel config check --config /etc/pegel.yaml",
		Args:    exactly(),
	}
	settings := addSettings(check, everySetting)
	check.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := app.Load(settings.sources())
		if err != nil {
			return err
		}
		if err := cfg.Describe(cmd.OutOrStdout()); err != nil {
			return fmt.Errorf("show the settings: %w", err)
		}
		return nil
	}
	group(cmd)
	cmd.AddCommand(check)
	return cmd
}
