package main

import (
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/adminclient"
)

func alertAck() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ack ID", Short: "Say that you know: ends the reminders of an open alert", Example: "  pegel alert ack 12",
		Args: exactly("ID"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	r := remoteFlags(cmd, false)
	_ = cmd.PersistentFlags().MarkHidden("output") // the answer has one form, and the flag exists
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := strconv.ParseInt(args[0], 10, 64); err != nil {
			return usagef("ID: %q is not a number; `pegel alert list` shows it", args[0])
		}
		return r.ended(cmd, adminclient.Call{Method: http.MethodPost, Path: "/admin/alerts" + adminclient.Path(args[0]) + "/ack"}, "acknowledged alert "+args[0])
	}
	return cmd
}

func alertList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List alerts, newest first", Example: "  pegel alert list --status open\n  pegel alert list --tenant school-17 --limit 0"}
	r := remoteFlags(cmd, false)
	var f filters
	f.flag(cmd, "status", "open, acknowledged or resolved; open includes acknowledged ones")
	f.flag(cmd, "kind", "such as tenant_high or store_down")
	f.flag(cmd, "tenant", "alerts of this tenant")
	f.flag(cmd, "from", "opened not before this time, such as 2026-11-30T00:00:00Z")
	f.flag(cmd, "to", "opened before this time")
	r.completeFlag(cmd, "tenant", tenantsPath, "slug")
	return listing[adminclient.Incident]{
		cmd: cmd, path: func([]string) string { return "/admin/alerts" }, query: f.query, most: 50,
		head: []string{"ID", "STATUS", "SINCE", "RESOLVED", "WHAT"},
		row: func(i *adminclient.Incident) []string {
			return []string{strconv.FormatInt(i.Id, 10), string(i.Status), moment(&i.Since), moment(i.ResolvedAt), i.Summary}
		},
	}.command(r)
}
