package main

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/adminclient"
	"github.com/pegel-dev/pegel/internal/app"
)

func adminTokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "admin-token", Short: "Admin tokens: the credentials of administrators",
		Example: "  PEGEL_DATABASE_URL=postgres://pegel@db/pegel pegel admin-token create --name ops\n  pegel admin-token list",
	}
	r := remoteFlags(cmd, false)
	group(cmd)
	cmd.AddCommand(adminTokenList(r), adminTokenCreateCommand(r),
		r.revocation(&cobra.Command{
			Use: "revoke ID", Short: "Revoke an admin token for good", Example: "  pegel admin-token revoke 8FgT2kQ9",
			Args: exactly("ID"), ValidArgsFunction: r.complete(adminsPath, "id"),
		}, func(args []string) string { return adminsPath + adminclient.Path(args[0]) }))
	return cmd
}

func adminTokenList(r *remote) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List admin tokens, never their secrets", Example: "  pegel admin-token list\n  pegel admin-token list --status active"}
	f := lifeFilters(cmd)
	return listing[adminclient.AdminToken]{
		cmd: cmd, path: func([]string) string { return adminsPath }, query: f.query,
		head: []string{"ID", "NAME", "ROLE", "STATUS", "EXPIRES", "LAST USED"},
		row: func(t *adminclient.AdminToken) []string {
			return []string{t.Id, t.Name, string(t.Role), alive(t.ExpiresAt, t.RevokedAt), expiry(t.ExpiresAt), moment(t.LastUsedAt)}
		},
	}.command(r)
}

func adminTokenCreateCommand(r *remote) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create an admin token and print it, once",
		Long: `Create an admin token and print it, once. Every running replica accepts it within a second.

With PEGEL_DATABASE_URL it is written straight to the database, with the command line as actor in the audit log: that makes
the first token of an installation. Without, the server makes it, for an administrator who has a token already.`,
		Example: `  PEGEL_DATABASE_URL=postgres://pegel@db/pegel pegel admin-token create --name ops
  pegel admin-token create --name grafana --role viewer --expires-in 2160h`,
		Args: exactly(),
	}
	var name, role string
	var l life
	cmd.Flags().StringVar(&name, "name", "", "who or what will use it (required)")
	cmd.Flags().StringVar(&role, "role", "admin", "viewer, operator or admin")
	l.flags(cmd)
	fixed(cmd, "role", "viewer", "operator", "admin")
	settings := addSettings(cmd, named(databaseSetting))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		expires, err := l.moment()
		if err != nil {
			return err
		}
		url, err := app.LoadDatabaseURL(settings.sources())
		if errors.Is(err, app.ErrNoDatabaseURL) {
			return r.printSecret(cmd, adminclient.Call{
				Method: http.MethodPost, Path: adminsPath,
				Body: adminclient.AdminTokenCreate{Name: name, Role: adminclient.Role(role), ExpiresAt: expires},
			})
		}
		if err != nil {
			return err
		}
		request := app.AdminTokenRequest{Name: name, Role: role, Now: time.Now}
		if expires != nil {
			request.ExpiresAt = *expires
		}
		secret, err := app.CreateAdminToken(cmd.Context(), url, request)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), secret)
		return err
	}
	return cmd
}
