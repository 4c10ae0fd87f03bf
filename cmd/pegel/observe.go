package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/adminclient"
)

func auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", Short: "The audit log: who changed what, and who was refused",
		Example: "  pegel audit list\n  pegel audit export --format csv > audit.csv",
	}
	r := remoteFlags(cmd, false)
	group(cmd)
	cmd.AddCommand(auditList(r), auditExport(r))
	return cmd
}

func auditFilters(cmd *cobra.Command) *filters {
	f := &filters{}
	f.flag(cmd, "actor", "id or name of whoever made the change")
	f.flag(cmd, "action", "such as tenant.create")
	f.flag(cmd, "resource", "such as tenant")
	f.flag(cmd, "resource-id", "slug, name or public id")
	f.flag(cmd, "tenant", "slug: what concerns this tenant, its overrides, API keys and incidents, also when it is gone")
	f.flag(cmd, "from", "not before this time, such as 2026-11-30T00:00:00Z")
	f.flag(cmd, "to", "before this time")
	return f
}

func auditList(r *remote) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List entries, newest first",
		Example: "  pegel audit list --tenant school-17\n  pegel audit list --resource plan --resource-id light\n  pegel audit list --actor alice --from 2026-11-30T00:00:00Z --limit 0",
	}
	f := auditFilters(cmd)
	return listing[adminclient.AuditEntry]{
		cmd: cmd, path: func([]string) string { return "/admin/audit" }, query: f.query, most: 50,
		head: []string{"TIME", "ACTOR", "ACTION", "OBJECT", "CHANGES"},
		row: func(e *adminclient.AuditEntry) []string {
			fields := make([]string, len(e.Diff))
			for i := range e.Diff {
				fields[i] = e.Diff[i].Field
			}
			return []string{moment(&e.Time), e.Actor.Name, e.Action, orDash(e.ResourceId), orDash(strings.Join(fields, ", "))}
		},
	}.command(r)
}

func auditExport(r *remote) *cobra.Command {
	cmd := &cobra.Command{
		Use: "export", Short: "Print the whole log, or what filters leave of it", Args: exactly(),
		Example: "  pegel audit export > audit.ndjson\n  pegel audit export --format csv --from 2026-11-01T00:00:00Z > november.csv",
	}
	return r.export(cmd, "/admin/audit/export", auditFilters(cmd))
}

// export finishes a command that streams a log.
func (r *remote) export(cmd *cobra.Command, path string, f *filters) *cobra.Command {
	var format string
	oneForm(cmd)
	cmd.Flags().StringVar(&format, "format", "ndjson", "ndjson or csv")
	fixed(cmd, "format", "ndjson", "csv")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if format != "ndjson" && format != "csv" {
			return usagef("--format: %q is not ndjson or csv", format)
		}
		query, err := f.query()
		if err != nil {
			return err
		}
		query.Set("format", format)
		return r.stream(cmd, adminclient.Call{Path: path, Query: query})
	}
	return cmd
}

func usageCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "usage", Short: "Who is using how much", Example: "  pegel usage top\n  pegel usage top --top 20 -o json"}
	r := remoteFlags(cmd, false)
	group(cmd)
	cmd.AddCommand(usageTop(r), usageTenant(r))
	return cmd
}

func usageTop(r *remote) *cobra.Command {
	var top int
	cmd := &cobra.Command{
		Use: "top", Short: "The tenants with the highest utilization now, and what decides",
		Example: "  pegel usage top\n  watch -n 2 pegel usage top --top 20", Args: exactly(),
	}
	cmd.Flags().IntVar(&top, "top", 10, "how many tenants")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		answer, err := r.do(cmd, adminclient.Call{Path: "/admin/rate-limits", Query: url.Values{"top": {strconv.Itoa(top)}}})
		if err != nil {
			return err
		}
		return r.show(cmd, answer.Body, func(w io.Writer) error {
			limits, err := read[adminclient.RateLimits](answer.Body)
			if err != nil {
				return err
			}
			return topTables(w, &limits)
		})
	}
	return cmd
}

func topTables(w io.Writer, limits *adminclient.RateLimits) error {
	if err := tenantTable(limits).write(w); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(w)
	return replicaTable(limits).write(w)
}

func tenantTable(limits *adminclient.RateLimits) *table {
	t := &table{head: []string{"TENANT", "PLAN", "LIMIT", "USED", "OF", "UTIL", "SLOWED", "REFUSED", "HIGH SINCE"}}
	for i := range limits.Tenants {
		u := &limits.Tenants[i]
		t.add(u.Tenant, u.Plan, orDash(u.LimitName), number(u.Used), number(u.Limit), fmt.Sprintf("%.0f%%", u.Utilization*100),
			number(u.Slowed), number(u.Refused), moment(u.HighSince))
	}
	return t
}

func replicaTable(limits *adminclient.RateLimits) *table {
	t := &table{head: []string{"REPLICA", "DECIDES FROM", "REDIS", "POSTGRES", "SINCE"}}
	for i := range limits.Replicas {
		s := &limits.Replicas[i]
		t.add(s.Replica, string(s.Source), string(s.Redis), string(s.Postgres), moment(s.Since))
	}
	return t
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func modeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "mode", Short: "The mode of the whole service: enforce, or shadow",
		Long:    "The mode of the whole service. shadow decides and records everything, and refuses and delays nothing: the kill switch.",
		Example: "  pegel mode get\n  pegel mode set shadow",
	}
	r := remoteFlags(cmd, false)
	group(cmd)
	call := func(cmd *cobra.Command, request adminclient.Call) error {
		answer, err := r.do(cmd, request)
		if err != nil {
			return err
		}
		return r.show(cmd, answer.Body, func(w io.Writer) error {
			body, err := read[adminclient.ModeBody](answer.Body)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(w, body.Mode)
			return err
		})
	}
	cmd.AddCommand(
		&cobra.Command{
			Use: "get", Short: "Print the mode that holds", Example: "  pegel mode get", Args: exactly(),
			RunE: func(cmd *cobra.Command, _ []string) error { return call(cmd, adminclient.Call{Path: "/admin/mode"}) },
		},
		&cobra.Command{
			Use: "set MODE", Short: "Set the mode, on all replicas within a second", Example: "  pegel mode set shadow\n  pegel mode set enforce",
			Args: exactly("MODE"), ValidArgs: []string{"enforce", "shadow"},
			RunE: func(cmd *cobra.Command, args []string) error {
				body := adminclient.ModeBody{Mode: adminclient.Mode(args[0])}
				return call(cmd, adminclient.Call{Method: http.MethodPut, Path: "/admin/mode", Body: body})
			},
		})
	return cmd
}

func addressPolicyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "address-policy", Short: "The address policy: limits for callers nobody vouches for",
		Example: "  pegel address-policy get\n  pegel address-policy get -o yaml > policy.yaml && pegel address-policy set --file policy.yaml",
	}
	r := remoteFlags(cmd, false)
	group(cmd)
	const path = "/admin/address-policy"
	show := func(cmd *cobra.Command, answer *adminclient.Answer) error {
		return r.show(cmd, answer.Body, func(w io.Writer) error {
			p, err := read[adminclient.AddressPolicy](answer.Body)
			if err != nil {
				return err
			}
			return limitTable(p.Limits).write(w)
		})
	}
	get := &cobra.Command{Use: "get", Short: "Show the address policy", Example: "  pegel address-policy get\n  pegel address-policy get -o yaml", Args: exactly()}
	get.RunE = func(cmd *cobra.Command, _ []string) error {
		answer, err := r.do(cmd, adminclient.Call{Path: path})
		if err != nil {
			return err
		}
		return show(cmd, answer)
	}
	var from string
	set := &cobra.Command{Use: "set", Short: "Replace the address policy by a file", Example: "  pegel address-policy set --file policy.yaml", Args: exactly()}
	set.Flags().StringVarP(&from, "file", "f", "", "YAML or JSON file, as `address-policy get -o yaml` prints it; - for standard input (required)")
	set.RunE = func(cmd *cobra.Command, _ []string) error {
		if from == "" {
			return usagef("--file is missing")
		}
		file, err := readConfigFile(cmd, from)
		if err != nil {
			return err
		}
		current, err := r.do(cmd, adminclient.Call{Path: path})
		if err != nil {
			return err
		}
		answer, err := r.do(cmd, adminclient.Call{Method: http.MethodPut, Path: path, Body: file.parsed.JSON, IfMatch: current.ETag})
		if err != nil {
			return file.explain(cmd, err)
		}
		return show(cmd, answer)
	}
	cmd.AddCommand(get, set)
	return cmd
}
