package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/adminclient"
	"github.com/pegel-dev/pegel/internal/configfile"
)

func decisionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "decision", Short: "Decisions: why one fell as it did", Example: "  pegel decision get 0192f3c8-7c1e-7a64-8f00-5b2c9a3d1e0f"}
	r := remoteFlags(cmd, false)
	group(cmd)
	cmd.AddCommand(&cobra.Command{
		Use: "get ID", Short: "Explain a decision: its limits, numbers, store and replica",
		Long: "Explain a decision of the last 24 hours: every slow and every refused one, and a sample of the others. ID is the\n" +
			"decision_id of an answer, or its header X-Pegel-Decision. It is found about half a second after it was made.",
		Example: "  pegel decision get 0192f3c8-7c1e-7a64-8f00-5b2c9a3d1e0f", Args: exactly("ID"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			answer, err := r.do(cmd, adminclient.Call{Path: "/admin/decisions" + adminclient.Path(args[0])})
			if err != nil {
				return err
			}
			return r.show(cmd, answer.Body, func(w io.Writer) error {
				d, err := read[adminclient.Explanation](answer.Body)
				if err != nil {
					return err
				}
				details, err := configfile.YAML(answer.Body)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(w, "%s\n\n%s", printable(d.Why), details)
				return err
			})
		},
	})
	return cmd
}

func requestCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "request", Short: "The request log: calls as the plans' request_log says",
		Example: "  pegel request list --tenant school-17 --decision deny\n  pegel request export --format csv > requests.csv",
	}
	r := remoteFlags(cmd, false)
	group(cmd)
	export := &cobra.Command{
		Use: "export", Short: "Print the whole log, or what filters leave of it", Args: exactly(),
		Example: "  pegel request export --tenant school-17 > school-17.ndjson\n  pegel request export --format csv --from 2026-11-01T00:00:00Z > november.csv",
	}
	cmd.AddCommand(requestList(r), r.export(export, "/admin/requests/export", requestFilters(export, r)))
	return cmd
}

func requestFilters(cmd *cobra.Command, r *remote) *filters {
	f := &filters{}
	f.flag(cmd, "tenant", "calls this tenant paid for")
	f.flag(cmd, "decision", "allow, slow or deny")
	f.flag(cmd, "address", "an address, or the group it is counted in, such as 2001:db8::/64")
	f.flag(cmd, "door", "which way they came in: check, ping, authz, proxy, envoy or admin")
	f.flag(cmd, "limit-name", "name of the tightest limit")
	f.flag(cmd, "decision-id", "calls that got this answer")
	f.flag(cmd, "from", "not before this time, such as 2026-11-30T00:00:00Z")
	f.flag(cmd, "to", "before this time")
	r.completeFlag(cmd, "tenant", tenantsPath, "slug")
	fixed(cmd, "decision", "allow", "slow", "deny")
	fixed(cmd, "door", "check", "ping", "authz", "proxy", "envoy", "admin")
	return f
}

func requestList(r *remote) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List calls, newest first",
		Example: "  pegel request list --tenant school-17 --decision deny\n  pegel request list --address 203.0.113.7 --limit 200 -o json",
	}
	f := requestFilters(cmd, r)
	return listing[adminclient.LoggedRequest]{
		cmd: cmd, path: func([]string) string { return "/admin/requests" }, query: f.query, most: 50,
		head: []string{"TIME", "TENANT", "DECISION", "COUNT", "LIMIT", "USER", "ADDRESS", "REQUEST"},
		row: func(q *adminclient.LoggedRequest) []string {
			return []string{
				moment(&q.Time), value(q.Tenant), string(q.Decision), number(q.Count), value(q.LimitName), value(q.User), value(q.Address),
				value(q.Method) + " " + value(q.Path),
			}
		},
	}.command(r)
}

func usageTenant(r *remote) *cobra.Command {
	cmd := &cobra.Command{
		Use: "tenant TENANT", Short: "What a tenant used: the last hour, or any time",
		Example: "  pegel usage tenant school-17\n  pegel usage tenant school-17 --from 2026-11-01T00:00:00Z --step 1d --by user",
		Args:    exactly("TENANT"), ValidArgsFunction: r.complete(tenantsPath, "slug"),
	}
	f := &filters{}
	f.flag(cmd, "from", "start, such as 2026-11-30T00:00:00Z (default: an hour before the end)")
	f.flag(cmd, "to", "end (default: now)")
	f.flag(cmd, "step", "1m, 5m, 1h or 1d (default: the finest that fits)")
	f.flag(cmd, "by", "split the numbers: limit, user or key")
	fixed(cmd, "step", "1m", "5m", "1h", "1d")
	fixed(cmd, "by", "limit", "user", "key")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		query, err := f.query()
		if err != nil {
			return err
		}
		answer, err := r.do(cmd, adminclient.Call{Path: tenantsPath + adminclient.Path(args[0]) + "/usage", Query: query})
		if err != nil {
			return err
		}
		return r.show(cmd, answer.Body, func(w io.Writer) error {
			history, err := read[adminclient.UsageHistory](answer.Body)
			if err != nil {
				return err
			}
			t := &table{head: []string{"FROM", "OF", "UNITS", "FULL SPEED", "SLOWED", "REFUSED", "HIGHEST"}}
			for _, series := range history.Series {
				for i := range series.Points {
					p := &series.Points[i]
					t.add(moment(&p.At), orDash(series.Name), number(p.Units), number(p.Allowed), number(p.Slowed), number(p.Refused), fmt.Sprintf("%.0f%%", p.Peak*100))
				}
			}
			if len(t.rows) == 0 {
				say(cmd, "none")
				return nil
			}
			return t.write(w)
		})
	}
	return cmd
}
