package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/adminclient"
)

// subject are the flags that say whose budget it is about.
type subject struct{ tenant, user, key, address string }

func (s *subject) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.tenant, "tenant", "", "tenant (an API key asks for its own without it)")
	cmd.Flags().StringVar(&s.user, "user", "", "user of the tenant")
	cmd.Flags().StringVar(&s.key, "key", "", "key of the tenant")
	cmd.Flags().StringVar(&s.address, "address", "", "address of an end client")
}

func statusCommand() *cobra.Command {
	var s subject
	cmd := &cobra.Command{
		Use: "status", Short: "How much is left; asking costs nothing",
		Long: "How much is left, as a client sees it: it asks the public listener with an API key or a service token (PEGEL_KEY), and costs\n" +
			"nothing. Without a credential it answers for the address that asks.",
		Example: "  PEGEL_KEY=pgk_… pegel status\n  PEGEL_KEY=pgs_… pegel status --tenant school-17 --user u42\n  pegel status --address 203.0.113.7 -o json",
		Args:    exactly(),
	}
	r := remoteFlags(cmd, true)
	s.flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		query := url.Values{}
		for name, v := range map[string]string{"tenant": s.tenant, "user": s.user, "key": s.key, "address": s.address} {
			if v != "" {
				query.Set(name, v)
			}
		}
		answer, err := r.do(cmd, adminclient.Call{Path: "/v1/status", Query: query})
		if err != nil {
			return err
		}
		return r.show(cmd, answer.Body, func(w io.Writer) error { return showDecision(w, answer.Body) })
	}
	return cmd
}

func checkCommand() *cobra.Command {
	var s subject
	var method, path string
	var cost int64
	var peek, wait bool
	cmd := &cobra.Command{
		Use: "check", Short: "Decide on one request, as a service would ask",
		Long: "Decide on one request, as a service would ask: it charges --cost units unless --peek is given. Exit status 0 when the request\n" +
			"may pass (at once or slowed down), 3 when it is refused.",
		Example: "  PEGEL_KEY=pgs_… pegel check --tenant school-17 --cost 10\n" +
			"  PEGEL_KEY=pgs_… pegel check --tenant school-17 --method POST --path /v1/exports/7 --peek\n" +
			"  PEGEL_KEY=pgk_… pegel check && ./import.sh",
		Args: exactly(),
	}
	r := remoteFlags(cmd, true)
	s.flags(cmd)
	cmd.Flags().StringVar(&method, "method", "", "method of the request, for limits that match")
	cmd.Flags().StringVar(&path, "path", "", "path of the request, for limits that match")
	cmd.Flags().Int64Var(&cost, "cost", 1, "units it takes")
	cmd.Flags().BoolVar(&peek, "peek", false, "charge nothing")
	cmd.Flags().BoolVar(&wait, "wait", false, "hold the answer for its delay")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		given := func(v string) *string {
			if v == "" {
				return nil
			}
			return &v
		}
		answer, err := r.do(cmd, adminclient.Call{Method: http.MethodPost, Path: "/v1/check", Denied: true, Body: adminclient.CheckRequest{
			Tenant: given(s.tenant), User: given(s.user), Key: given(s.key), Address: given(s.address),
			Method: given(method), Path: given(path), Cost: &cost, Peek: &peek, Wait: &wait,
		}})
		if err != nil {
			return err
		}
		if err := r.show(cmd, answer.Body, func(w io.Writer) error { return showDecision(w, answer.Body) }); err != nil {
			return err
		}
		if answer.Status == http.StatusTooManyRequests {
			return &statusError{status: exitDenied}
		}
		return nil
	}
	return cmd
}

// showDecision is a verdict in one line, and every limit in a table.
func showDecision(w io.Writer, raw []byte) error {
	d, err := read[struct {
		adminclient.Decision

		Detail string `json:"detail"` // of a refusal
	}](raw)
	if err != nil {
		return err
	}
	line := []string{string(d.Decision.Decision)}
	if d.Detail != "" {
		line = append(line, d.Detail)
	}
	if d.DelayMs != nil && *d.DelayMs > 0 {
		line = append(line, "delayed by "+millis(d.DelayMs))
	}
	if d.Source != "" {
		line = append(line, "decided from "+string(d.Source))
	}
	if _, err := fmt.Fprintln(w, printable(strings.Join(line, "; "))); err != nil || len(d.Limits) == 0 {
		return err
	}
	_, _ = fmt.Fprintln(w)
	t := &table{head: []string{"LIMIT", "SCOPE", "USED", "OF", "LEFT", "WHOLE AGAIN IN", "NEXT FITS IN", "MODE"}}
	for i := range d.Limits {
		l := &d.Limits[i]
		t.add(l.Name, string(l.Scope), value(l.Used), number(l.Limit), value(l.Remaining), millis(l.ResetAfterMs), millis(l.RetryAfterMs), string(l.Mode))
	}
	return t.write(w)
}

func millis(ms *int64) string {
	if ms == nil {
		return "-"
	}
	return (time.Duration(*ms) * time.Millisecond).String()
}
