package main

import (
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/adminclient"
)

const networksPath = "/admin/networks"

func networkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "network", Short: "Networks: who is refused by address, and who is carved out",
		Example: "  pegel network deny 203.0.113.0/24 --reason scan --expires-in 24h\n  pegel network list",
	}
	r := remoteFlags(cmd, false)
	group(cmd)
	cmd.AddCommand(networkList(r),
		networkAdd(r, "deny", "Refuse everybody from a network", "  pegel network deny 203.0.113.0/24 --reason scan --expires-in 24h"),
		networkAdd(r, "allow", "Carve a network out of a broader denied one", "  pegel network allow 203.0.113.7/32 --reason 'our office'"),
		networkDelete(r), networkExport(r))
	return cmd
}

func networkList(r *remote) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List networks, ended ones included", Example: "  pegel network list\n  pegel network list --action deny\n  pegel network list --address 203.0.113.7",
	}
	var f filters
	f.flag(cmd, "action", "deny or allow")
	f.flag(cmd, "address", "networks that hold this address")
	f.flag(cmd, "search", "a part of the reason")
	fixed(cmd, "action", "deny", "allow")
	return listing[adminclient.Network]{
		cmd: cmd, path: func([]string) string { return networksPath }, query: f.query,
		head: []string{"ID", "ACTION", "NETWORK", "EXPIRES", "REASON"},
		row: func(n *adminclient.Network) []string {
			return []string{strconv.FormatInt(n.Id, 10), string(n.Action), n.Cidr, expiry(n.ExpiresAt), orDash(n.Reason)}
		},
	}.command(r)
}

func networkAdd(r *remote, action, short, example string) *cobra.Command {
	var reason string
	var l life
	cmd := &cobra.Command{
		Use: action + " CIDR", Short: short, Example: example, Args: exactly("CIDR"), ValidArgsFunction: cobra.NoFileCompletions,
		Long: short + ", on every replica within a second. CIDR is a network such as 203.0.113.0/24, or one address.",
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for whoever finds it later")
	l.flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		expires, err := l.moment()
		if err != nil {
			return err
		}
		body := adminclient.NetworkCreate{Cidr: args[0], Action: adminclient.NetworkAction(action), Reason: &reason, ExpiresAt: expires}
		answer, err := r.do(cmd, adminclient.Call{Method: http.MethodPost, Path: networksPath, Body: body})
		if err != nil {
			return err
		}
		return r.show(cmd, answer.Body, func(w io.Writer) error {
			n, err := read[adminclient.Network](answer.Body)
			if err != nil {
				return err
			}
			return facts(w, "id", strconv.FormatInt(n.Id, 10), "action", string(n.Action), "network", n.Cidr, "expires", expiry(n.ExpiresAt), "reason", orDash(n.Reason))
		})
	}
	return cmd
}

func networkDelete(r *remote) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete ID", Short: "Take a network off its list", Example: "  pegel network list --address 203.0.113.7\n  pegel network delete 3",
		Args: exactly("ID"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := strconv.ParseInt(args[0], 10, 64); err != nil {
				return usagef("ID: %q is not a number; `pegel network list` shows it", args[0])
			}
			return r.ended(cmd, adminclient.Call{Method: http.MethodDelete, Path: networksPath + adminclient.Path(args[0])}, "deleted network "+args[0])
		},
	}
	oneForm(cmd)
	return cmd
}

func networkExport(r *remote) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "export", Short: "Print what is denied now, for an edge that refuses by itself",
		Example: "  pegel network export --format text\n  pegel network export --format nginx > /etc/nginx/pegel-deny.conf", Args: exactly(),
	}
	oneForm(cmd)
	cmd.Flags().StringVar(&format, "format", "text", "text: one denied network a line; nginx: allow and deny directives")
	fixed(cmd, "format", "text", "nginx")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if format != "text" && format != "nginx" {
			return usagef("--format: %q is not text or nginx", format)
		}
		return r.stream(cmd, adminclient.Call{Path: networksPath, Query: url.Values{"format": {format}}})
	}
	return cmd
}

// stream copies an answer to standard output as it comes, in the form that --format names.
func (r *remote) stream(cmd *cobra.Command, call adminclient.Call) error {
	if cmd.Flags().Changed("output") {
		return usagef("--output: `%s` has --format instead", cmd.CommandPath())
	}
	c, err := r.client(cmd)
	if err != nil {
		return err
	}
	return r.advise(c.Stream(cmd.Context(), call, cmd.OutOrStdout()), call.Path)
}
