package main

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/adminclient"
)

const tenantsPath = "/admin/tenants"

func tenantCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "tenant", Short: "Tenants: organisations that share one budget",
		Example: "  pegel tenant list --plan light\n  pegel tenant create school-17 --name 'School 17' --plan light",
	}
	r := remoteFlags(cmd, false)
	group(cmd)
	cmd.AddCommand(tenantList(r), tenantGet(r), tenantCreate(r), tenantSet(r), tenantDelete(r), tenantReset(r))
	return cmd
}

func tenantList(r *remote) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List tenants by slug",
		Example: "  pegel tenant list\n  pegel tenant list --search school --status suspended\n  pegel tenant list --plan light -o json",
	}
	var f filters
	f.flag(cmd, "search", "a part of the slug or the name")
	f.flag(cmd, "plan", "tenants on this plan")
	f.flag(cmd, "status", "active or suspended")
	r.completeFlag(cmd, "plan", plansPath, "name")
	fixed(cmd, "status", "active", "suspended")
	return listing[adminclient.Tenant]{
		cmd: cmd, path: func([]string) string { return tenantsPath }, query: f.query,
		head: []string{"SLUG", "NAME", "PLAN", "STATUS", "CONTACT", "CREATED"},
		row: func(t *adminclient.Tenant) []string {
			return []string{t.Slug, t.Name, orDash(t.Plan), string(t.Status), orDash(t.ContactEmail), moment(&t.CreatedAt)}
		},
	}.command(r)
}

func tenantGet(r *remote) *cobra.Command {
	return &cobra.Command{
		Use: "get TENANT", Short: "Show a tenant", Example: "  pegel tenant get school-17\n  pegel tenant get school-17 -o yaml",
		Args: exactly("TENANT"), ValidArgsFunction: r.complete(tenantsPath, "slug"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.callTenant(cmd, adminclient.Call{Path: tenantsPath + adminclient.Path(args[0])})
		},
	}
}

// callTenant makes a call that answers with a tenant, and shows it.
func (r *remote) callTenant(cmd *cobra.Command, call adminclient.Call) error {
	answer, err := r.do(cmd, call)
	if err != nil {
		return err
	}
	return r.show(cmd, answer.Body, func(w io.Writer) error {
		t, err := read[adminclient.Tenant](answer.Body)
		if err != nil {
			return err
		}
		pairs := []string{
			"slug", t.Slug, "name", t.Name, "plan", orDash(t.Plan), "status", string(t.Status), "contact", orDash(t.ContactEmail),
			"version", strconv.FormatInt(t.Version, 10), "created", moment(&t.CreatedAt), "updated", moment(&t.UpdatedAt),
		}
		for _, key := range slices.Sorted(maps.Keys(t.Metadata)) {
			pairs = append(pairs, "metadata."+key, t.Metadata[key])
		}
		return facts(w, pairs...)
	})
}

// tenantFlags are the fields of a tenant.
type tenantFlags struct {
	name, plan, status, email string
	metadata                  []string
}

func (f *tenantFlags) flags(cmd *cobra.Command, r *remote) {
	cmd.Flags().StringVar(&f.name, "name", "", "name for people")
	cmd.Flags().StringVar(&f.plan, "plan", "", "plan")
	cmd.Flags().StringVar(&f.status, "status", "", "active or suspended")
	cmd.Flags().StringVar(&f.email, "contact-email", "", "who hears of sustained load")
	cmd.Flags().StringArrayVar(&f.metadata, "metadata", nil, "KEY=VALUE; repeat it for more; KEY= takes one away")
	r.completeFlag(cmd, "plan", plansPath, "name")
	fixed(cmd, "status", "active", "suspended")
}

// patch holds the flags that were given; before is the metadata there is.
func (f *tenantFlags) patch(cmd *cobra.Command, before map[string]string) (p adminclient.TenantPatch, err error) {
	given := cmd.Flags().Changed
	if given("name") {
		p.Name = &f.name
	}
	if given("plan") {
		p.Plan = &f.plan
	}
	if given("status") {
		status := adminclient.TenantStatus(f.status)
		p.Status = &status
	}
	if given("contact-email") {
		p.ContactEmail = &f.email
	}
	if len(f.metadata) == 0 {
		return p, nil
	}
	metadata := adminclient.Metadata{}
	maps.Copy(metadata, before)
	for _, pair := range f.metadata {
		key, text, found := strings.Cut(pair, "=")
		switch {
		case !found || key == "":
			return p, usagef("--metadata: %q is not KEY=VALUE", pair)
		case text == "":
			delete(metadata, key)
		default:
			metadata[key] = text
		}
	}
	p.Metadata = &metadata
	return p, nil
}

func tenantCreate(r *remote) *cobra.Command {
	var f tenantFlags
	cmd := &cobra.Command{
		Use: "create TENANT", Short: "Create a tenant",
		Example: "  pegel tenant create school-17 --name 'School 17' --plan light\n" +
			"  pegel tenant create school-18 --name 'School 18' --plan pro --contact-email office@example.org --metadata students=412",
		Args: exactly("TENANT"),
	}
	f.flags(cmd, r)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.plan == "" {
			return usagef("--plan is missing")
		}
		p, err := f.patch(cmd, nil)
		if err != nil {
			return err
		}
		body := adminclient.TenantCreate{
			Slug: args[0], Name: f.name, Plan: f.plan, Status: p.Status, ContactEmail: p.ContactEmail, Metadata: p.Metadata,
		}
		if body.Name == "" {
			body.Name = args[0]
		}
		return r.callTenant(cmd, adminclient.Call{Method: http.MethodPost, Path: tenantsPath, Body: body})
	}
	return cmd
}

func tenantSet(r *remote) *cobra.Command {
	var f tenantFlags
	cmd := &cobra.Command{
		Use: "set TENANT", Short: "Change what the flags name, and nothing else",
		Example: "  pegel tenant set school-17 --plan pro\n  pegel tenant set school-17 --status suspended\n  pegel tenant set school-17 --metadata students=430",
		Args:    exactly("TENANT"), ValidArgsFunction: r.complete(tenantsPath, "slug"),
	}
	f.flags(cmd, r)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path := tenantsPath + adminclient.Path(args[0])
		current, err := r.do(cmd, adminclient.Call{Path: path})
		if err != nil {
			return err
		}
		t, err := read[adminclient.Tenant](current.Body)
		if err != nil {
			return err
		}
		p, err := f.patch(cmd, t.Metadata)
		if err != nil {
			return err
		}
		if p == (adminclient.TenantPatch{}) {
			return usagef("nothing to change: give --name, --plan, --status, --contact-email or --metadata")
		}
		return r.callTenant(cmd, adminclient.Call{Method: http.MethodPatch, Path: path, Body: p, IfMatch: current.ETag})
	}
	return cmd
}

func tenantDelete(r *remote) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "delete TENANT", Short: "Delete a tenant with its API keys and overrides",
		Example: "  pegel tenant delete school-17\n  pegel tenant delete school-17 --yes",
		Args:    exactly("TENANT"), ValidArgsFunction: r.complete(tenantsPath, "slug"),
	}
	oneForm(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return r.deleteTagged(cmd, tenantsPath+adminclient.Path(args[0]), fmt.Sprintf("tenant %s with its API keys and overrides", args[0]), yes)
	}
	return cmd
}

func tenantReset(r *remote) *cobra.Command {
	return &cobra.Command{
		Use: "reset TENANT", Short: "Start all of a tenant's counters anew",
		Long: "Start all of a tenant's counters anew, on every replica and store within a second.", Example: "  pegel tenant reset school-17",
		Args: exactly("TENANT"), ValidArgsFunction: r.complete(tenantsPath, "slug"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.callTenant(cmd, adminclient.Call{Method: http.MethodPost, Path: tenantsPath + adminclient.Path(args[0]) + "/reset"})
		},
	}
}
