package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/app"
)

const databaseSetting = "PEGEL_DATABASE_URL"

func migrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Change or show the version of the database schema",
		Long:  "Change or show the version of the database schema. `pegel serve` migrates up by itself at its start.",
		Example: `  pegel migrate status
  PEGEL_DATABASE_URL=postgres://pegel@db/pegel pegel migrate up
  pegel migrate down 1`,
	}
	group(cmd)
	cmd.AddCommand(migrateUpCommand(), migrateDownCommand(), migrateStatusCommand())
	return cmd
}

func migrateUpCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "up", Short: "Apply every pending step", Args: exactly(), Example: "  PEGEL_DATABASE_URL=postgres://pegel@db/pegel pegel migrate up",
		Long: "Apply every pending step. Any number may run at once; one does the work.",
	}
	settings := addSettings(cmd, named(databaseSetting))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		url, err := app.LoadDatabaseURL(settings.sources())
		if err != nil {
			return err
		}
		if err := app.MigrateUp(cmd.Context(), url, cmd.ErrOrStderr()); err != nil {
			return err
		}
		return printMigrationStatus(cmd, url)
	}
	return cmd
}

func migrateDownCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "down STEPS", Short: "Undo the last steps, with the data in them", Args: cobra.ArbitraryArgs,
		Example: "  pegel migrate down 1",
	}
	settings := addSettings(cmd, named(databaseSetting))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usagef("say how many steps to undo: `pegel migrate down 1`")
		}
		steps, err := strconv.Atoi(args[0])
		if err != nil || steps < 1 {
			return usagef("%q is not a number of steps of at least 1", args[0])
		}
		url, err := app.LoadDatabaseURL(settings.sources())
		if err != nil {
			return err
		}
		if err := app.MigrateDown(cmd.Context(), url, steps); err != nil {
			return err
		}
		return printMigrationStatus(cmd, url)
	}
	return cmd
}

func migrateStatusCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "Show the applied and the pending steps", Example: "  pegel migrate status", Args: exactly()}
	settings := addSettings(cmd, named(databaseSetting))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		url, err := app.LoadDatabaseURL(settings.sources())
		if err != nil {
			return err
		}
		return printMigrationStatus(cmd, url)
	}
	return cmd
}

func printMigrationStatus(cmd *cobra.Command, url app.Secret) error {
	status, err := app.MigrationStatus(cmd.Context(), url)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), status)
	return err
}
