package main

import (
	"io"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/adminclient"
)

func overridesPath(tenant string) string {
	return tenantsPath + adminclient.Path(tenant) + "/overrides"
}

func overrideCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "override", Short: "Overrides: a tenant's exceptions to single limits",
		Example: "  pegel override list school-17\n  pegel override set school-17 requests-per-minute 5000 --reason 'exam week' --expires-in 168h",
	}
	r := remoteFlags(cmd, false)
	group(cmd)
	cmd.AddCommand(overrideList(r), overrideSet(r), overrideDelete(r))
	return cmd
}

func overrideList(r *remote) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list TENANT", Short: "List a tenant's overrides, ended ones included", Example: "  pegel override list school-17\n  pegel override list school-17 -o json",
		Args: exactly("TENANT"), ValidArgsFunction: r.complete(tenantsPath, "slug"),
	}
	var f filters
	f.flag(cmd, "search", "a part of the limit's name or the reason")
	return listing[adminclient.Override]{
		cmd: cmd, path: func(args []string) string { return overridesPath(args[0]) }, query: f.query,
		head: []string{"LIMIT", "QUOTA", "IN FORCE", "EXPIRES", "LAST USED", "REASON"},
		row: func(o *adminclient.Override) []string {
			return []string{o.LimitName, strconv.FormatInt(o.Limit, 10), yesNo(o.InForce), expiry(o.ExpiresAt), moment(o.LastUsedAt), o.Reason}
		},
	}.command(r)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func overrideSet(r *remote) *cobra.Command {
	var reason string
	var l life
	cmd := &cobra.Command{
		Use: "set TENANT LIMIT QUOTA", Short: "Give a tenant another quota for one limit",
		Long: "Give a tenant another quota for one limit of its plan. It acts on the live counter within a second; 0 refuses always.",
		Example: "  pegel override set school-17 requests-per-minute 5000 --reason 'exam week' --expires-in 168h\n" +
			"  pegel override set school-17 requests-per-minute 100 --reason 'workflow in a loop' --expires-at 2027-01-31T00:00:00Z",
		Args: exactly("TENANT", "LIMIT", "QUOTA"), ValidArgsFunction: r.complete(tenantsPath, "slug"),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for whoever finds it later (required)")
	l.flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		quota, err := strconv.ParseInt(args[2], 10, 64)
		if err != nil {
			return usagef("QUOTA: %q is not a whole number", args[2])
		}
		if reason == "" {
			return usagef("--reason is missing")
		}
		expires, err := l.moment()
		if err != nil {
			return err
		}
		answer, err := r.do(cmd, adminclient.Call{
			Method: http.MethodPut, Path: overridesPath(args[0]) + adminclient.Path(args[1]),
			Body: adminclient.OverridePut{Limit: quota, Reason: reason, ExpiresAt: expires},
		})
		if err != nil {
			return err
		}
		return r.show(cmd, answer.Body, func(w io.Writer) error {
			o, err := read[adminclient.Override](answer.Body)
			if err != nil {
				return err
			}
			if !o.InForce {
				say(cmd, "not in force: the plan of %s has no limit of this name, or the override has ended", args[0])
			}
			return facts(w, "limit", o.LimitName, "quota", strconv.FormatInt(o.Limit, 10), "in force", yesNo(o.InForce), "expires", expiry(o.ExpiresAt), "reason", o.Reason)
		})
	}
	return cmd
}

func overrideDelete(r *remote) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete TENANT LIMIT", Short: "End an override: the plan's limit holds again", Example: "  pegel override delete school-17 requests-per-minute",
		Args: exactly("TENANT", "LIMIT"), ValidArgsFunction: r.complete(tenantsPath, "slug"),
		RunE: func(cmd *cobra.Command, args []string) error {
			call := adminclient.Call{Method: http.MethodDelete, Path: overridesPath(args[0]) + adminclient.Path(args[1])}
			return r.ended(cmd, call, "deleted override "+args[0]+"/"+args[1])
		},
	}
	oneForm(cmd)
	return cmd
}
