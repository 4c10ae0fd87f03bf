package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/app"
)

func adminTokenCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "admin-token", Short: "Administrators' credentials"}
	group(cmd)
	cmd.AddCommand(adminTokenCreateCommand())
	return cmd
}

func adminTokenCreateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create an admin token and print it, once",
		Long: `Create an admin token and print it, once. It needs only the database (PEGEL_DATABASE_URL), so it makes the first
token of an installation; every running replica accepts it within a second. The audit log names the command line as actor.`,
		Example: `  pegel admin-token create --name ops
  pegel admin-token create --name grafana --role viewer --expires-in 2160h`,
		Args: cobra.NoArgs,
	}
	var name, role string
	var expires time.Duration
	cmd.Flags().StringVar(&name, "name", "", "who or what will use it (required)")
	cmd.Flags().StringVar(&role, "role", "admin", "viewer, operator or admin")
	cmd.Flags().DurationVar(&expires, "expires-in", 0, "life time, such as 720h (default: it does not expire)")
	settings := addSettings(cmd, named(databaseSetting))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if expires < 0 {
			return fmt.Errorf("--expires-in: %s is in the past", expires)
		}
		url, err := app.LoadDatabaseURL(settings.sources())
		if err != nil {
			return err
		}
		secret, err := app.CreateAdminToken(cmd.Context(), url, app.AdminTokenRequest{
			Name: name, Role: role, ExpiresIn: expires, Now: time.Now,
		})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), secret)
		return err
	}
	return cmd
}
