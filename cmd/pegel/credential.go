package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/adminclient"
)

const (
	servicesPath = "/admin/service-tokens"
	adminsPath   = "/admin/admin-tokens"
)

func keysPath(tenant string) string { return tenantsPath + adminclient.Path(tenant) + "/keys" }

func keyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "key", Short: "API keys: the credentials of tenants",
		Example: "  pegel key list school-17\n  pegel key create school-17 --name 'mobile app' --expires-in 8760h",
	}
	r := remoteFlags(cmd, false)
	group(cmd)
	cmd.AddCommand(keyList(r), keyCreate(r), keyRotate(r), keyRevoke(r))
	return cmd
}

func keyList(r *remote) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list TENANT", Short: "List a tenant's keys, never their secrets", Example: "  pegel key list school-17\n  pegel key list school-17 --status active",
		Args: exactly("TENANT"), ValidArgsFunction: r.complete(tenantsPath, "slug"),
	}
	f := lifeFilters(cmd)
	return listing[adminclient.ApiKey]{
		cmd: cmd, path: func(args []string) string { return keysPath(args[0]) }, query: f.query,
		head: []string{"ID", "NAME", "STATUS", "EXPIRES", "LAST USED"},
		row: func(k *adminclient.ApiKey) []string {
			return []string{k.Id, k.Name, alive(k.ExpiresAt, k.RevokedAt), expiry(k.ExpiresAt), moment(k.LastUsedAt)}
		},
	}.command(r)
}

// lifeFilters narrow every list of credentials.
func lifeFilters(cmd *cobra.Command) *filters {
	f := &filters{}
	f.flag(cmd, "search", "a part of the name, or the whole id")
	f.flag(cmd, "status", "active, expired or revoked")
	fixed(cmd, "status", "active", "expired", "revoked")
	return f
}

func alive(expires, revoked *time.Time) string {
	switch {
	case revoked != nil:
		return "revoked"
	case expires != nil && !expires.After(time.Now()):
		return "expired"
	}
	return "active"
}

func keyCreate(r *remote) *cobra.Command {
	var name string
	var l life
	cmd := &cobra.Command{
		Use: "create TENANT", Short: "Create an API key and print it, once",
		Example: "  pegel key create school-17 --name 'mobile app'\n  KEY=$(pegel key create school-17 --name ci --expires-in 24h)",
		Args:    exactly("TENANT"), ValidArgsFunction: r.complete(tenantsPath, "slug"),
	}
	cmd.Flags().StringVar(&name, "name", "", "what will use it (required)")
	l.flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		expires, err := l.moment()
		if err != nil {
			return err
		}
		return r.printSecret(cmd, adminclient.Call{
			Method: http.MethodPost, Path: keysPath(args[0]), Body: adminclient.KeyCreate{Name: name, ExpiresAt: expires},
		})
	}
	return cmd
}

// printSecret makes a credential: the secret alone goes to standard output, so that a script can keep it.
func (r *remote) printSecret(cmd *cobra.Command, call adminclient.Call) error {
	answer, err := r.do(cmd, call)
	if err != nil {
		return err
	}
	return r.show(cmd, answer.Body, func(w io.Writer) error {
		made, err := read[struct {
			ID        string     `json:"id"`
			Name      string     `json:"name"`
			Secret    string     `json:"secret"`
			ExpiresAt *time.Time `json:"expires_at"`
		}](answer.Body)
		if err != nil {
			return err
		}
		say(cmd, "created %s (%s), expires %s; the secret is shown this once:", made.ID, printable(made.Name), expiry(made.ExpiresAt))
		_, err = fmt.Fprintln(w, made.Secret)
		return err
	})
}

func keyRotate(r *remote) *cobra.Command {
	cmd := &cobra.Command{
		Use: "rotate TENANT ID", Short: "Replace an API key and print its successor, once",
		Example: "  pegel key rotate school-17 8FgT2kQ9 --overlap 48h", Args: exactly("TENANT", "ID"), ValidArgsFunction: r.complete(tenantsPath, "slug"),
	}
	return r.rotation(cmd, func(args []string) string { return keysPath(args[0]) + adminclient.Path(args[1]) })
}

// rotation finishes a command that replaces a credential.
func (r *remote) rotation(cmd *cobra.Command, path func(args []string) string) *cobra.Command {
	var overlap time.Duration
	var l life
	cmd.Long = cmd.Short + ". The old one lives on for --overlap, so that whoever uses it has time to change."
	cmd.Flags().DurationVar(&overlap, "overlap", 24*time.Hour, "how long the old one lives on: 0s to 720h")
	l.flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		expires, err := l.moment()
		if err != nil {
			return err
		}
		if overlap < 0 {
			return usagef("--overlap: must not be negative")
		}
		text := overlap.String()
		return r.printSecret(cmd, adminclient.Call{
			Method: http.MethodPost, Path: path(args) + "/rotate", Body: adminclient.Rotate{Overlap: &text, ExpiresAt: expires},
		})
	}
	return cmd
}

func keyRevoke(r *remote) *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke TENANT ID", Short: "Revoke an API key for good", Example: "  pegel key revoke school-17 8FgT2kQ9",
		Args: exactly("TENANT", "ID"), ValidArgsFunction: r.complete(tenantsPath, "slug"),
	}
	return r.revocation(cmd, func(args []string) string { return keysPath(args[0]) + adminclient.Path(args[1]) })
}

// revocation finishes a command that ends a credential.
func (r *remote) revocation(cmd *cobra.Command, path func(args []string) string) *cobra.Command {
	var yes bool
	cmd.Long = cmd.Short + ", on all replicas within a second."
	oneForm(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id := args[len(args)-1]
		if err := confirm(cmd, yes, "Revoke "+id+" for good?"); err != nil {
			return err
		}
		return r.ended(cmd, adminclient.Call{Method: http.MethodDelete, Path: path(args)}, "revoked "+id)
	}
	return cmd
}

func serviceTokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "service-token", Short: "Service tokens: the credentials of your own services",
		Example: "  pegel service-token list\n  pegel service-token create --name edge --exempt-address --may check,status",
	}
	r := remoteFlags(cmd, false)
	group(cmd)
	of := func(args []string) string { return servicesPath + adminclient.Path(args[0]) }
	cmd.AddCommand(serviceTokenList(r), serviceTokenCreate(r),
		r.rotation(&cobra.Command{
			Use: "rotate ID", Short: "Replace a service token and print its successor, once", Example: "  pegel service-token rotate 8FgT2kQ9 --overlap 1h",
			Args: exactly("ID"), ValidArgsFunction: r.complete(servicesPath, "id"),
		}, of),
		r.revocation(&cobra.Command{
			Use: "revoke ID", Short: "Revoke a service token for good", Example: "  pegel service-token revoke 8FgT2kQ9",
			Args: exactly("ID"), ValidArgsFunction: r.complete(servicesPath, "id"),
		}, of))
	return cmd
}

func serviceTokenList(r *remote) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List service tokens, never their secrets", Example: "  pegel service-token list\n  pegel service-token list --status active"}
	f := lifeFilters(cmd)
	return listing[adminclient.ServiceToken]{
		cmd: cmd, path: func([]string) string { return servicesPath }, query: f.query,
		head: []string{"ID", "NAME", "MAY", "EXEMPT", "STATUS", "EXPIRES", "LAST USED"},
		row: func(t *adminclient.ServiceToken) []string {
			return []string{t.Id, t.Name, orDash(words(t.May)), orDash(words(t.Exempt)), alive(t.ExpiresAt, t.RevokedAt), expiry(t.ExpiresAt), moment(t.LastUsedAt)}
		},
	}.command(r)
}

func words[T ~string](list []T) string {
	texts := make([]string, len(list))
	for i, v := range list {
		texts[i] = string(v)
	}
	return strings.Join(texts, ",")
}

func serviceTokenCreate(r *remote) *cobra.Command {
	var name string
	var may []string
	var exempt bool
	var l life
	cmd := &cobra.Command{
		Use: "create", Short: "Create a service token and print it, once",
		Example: "  pegel service-token create --name edge --exempt-address --may check,status\n" +
			"  pegel service-token create --name jobs --may check,refund,identify --expires-in 8760h",
		Args: exactly(),
	}
	cmd.Flags().StringVar(&name, "name", "", "which service will use it (required)")
	cmd.Flags().StringSliceVar(&may, "may", nil, "what it may do: check, status, refund, identify")
	cmd.Flags().BoolVar(&exempt, "exempt-address", false, "exempt the service's own address from address limits")
	l.flags(cmd)
	fixed(cmd, "may", "check", "status", "refund", "identify")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		expires, err := l.moment()
		if err != nil {
			return err
		}
		body := adminclient.ServiceTokenCreate{Name: name, ExpiresAt: expires}
		permissions := make([]adminclient.Permission, len(may))
		for i, p := range may {
			permissions[i] = adminclient.Permission(p)
		}
		body.May = &permissions
		if exempt {
			body.Exempt = &[]adminclient.ServiceTokenCreateExempt{"address"}
		}
		return r.printSecret(cmd, adminclient.Call{Method: http.MethodPost, Path: servicesPath, Body: body})
	}
	return cmd
}
