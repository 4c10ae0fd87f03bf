package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/adminclient"
	"github.com/pegel-dev/pegel/internal/configfile"
)

const plansPath = "/admin/plans"

func planCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "plan", Short: "Plans: named lists of limits", Example: "  pegel plan list\n  pegel plan get light"}
	r := remoteFlags(cmd, false)
	group(cmd)
	cmd.AddCommand(planList(r), planGet(r), planCreate(r), planSet(r), planDelete(r))
	return cmd
}

func planList(r *remote) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List plans by name", Example: "  pegel plan list\n  pegel plan list --search light -o json"}
	var f filters
	f.flag(cmd, "search", "a part of the name or the title")
	return listing[adminclient.Plan]{
		cmd: cmd, path: func([]string) string { return plansPath }, query: f.query,
		head: []string{"NAME", "TITLE", "LIMITS", "REQUEST LOG", "VERSION"},
		row: func(p *adminclient.Plan) []string {
			limits := make([]string, len(p.Limits))
			for i := range p.Limits {
				limits[i] = p.Limits[i].Name + " " + pace(&p.Limits[i])
			}
			return []string{p.Name, orDash(p.Title), orDash(strings.Join(limits, ", ")), string(p.RequestLog), strconv.FormatInt(p.Version, 10)}
		},
	}.command(r)
}

// pace is a limit's numbers, such as 2000/1m, or 60+30/1s of a bucket.
func pace(l *adminclient.Limit) string {
	if l.Refill != nil {
		return fmt.Sprintf("%d+%d/%s", l.Limit, l.Refill.Units, l.Refill.Every)
	}
	return fmt.Sprintf("%d/%s", l.Limit, value(l.Window))
}

func planGet(r *remote) *cobra.Command {
	return &cobra.Command{
		Use: "get PLAN", Short: "Show a plan", Example: "  pegel plan get light\n  pegel plan get light -o yaml > light.yaml",
		Args: exactly("PLAN"), ValidArgsFunction: r.complete(plansPath, "name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			answer, err := r.do(cmd, adminclient.Call{Path: plansPath + adminclient.Path(args[0])})
			if err != nil {
				return err
			}
			return r.showPlan(cmd, answer)
		},
	}
}

func (r *remote) showPlan(cmd *cobra.Command, answer *adminclient.Answer) error {
	return r.show(cmd, answer.Body, func(w io.Writer) error {
		p, err := read[adminclient.Plan](answer.Body)
		if err != nil {
			return err
		}
		err = facts(w, "name", p.Name, "title", orDash(p.Title), "alert", fmt.Sprintf("at %g%% for %s", p.Alert.At*100, p.Alert.For),
			"request log", string(p.RequestLog), "version", strconv.FormatInt(p.Version, 10), "updated", moment(&p.UpdatedAt))
		if err != nil || len(p.Limits) == 0 {
			return err
		}
		_, _ = fmt.Fprintln(w)
		return limitTable(p.Limits).write(w)
	})
}

func limitTable(limits []adminclient.Limit) *table {
	t := &table{head: []string{"LIMIT", "SCOPE", "ALGORITHM", "QUOTA", "SLOWDOWN", "ON FAIL", "MODE", "MATCH"}}
	for i := range limits {
		l := &limits[i]
		slowdown, match := "-", "all"
		if l.Slowdown != nil {
			slowdown = fmt.Sprintf("%g%%: %s", l.Slowdown.From*100, l.Slowdown.MaxDelay)
		}
		if l.Match != nil {
			var parts []string
			for _, list := range []*[]string{l.Match.Methods, l.Match.Paths} {
				if list != nil {
					parts = append(parts, *list...)
				}
			}
			match = strings.Join(parts, " ")
		}
		t.add(l.Name, value(l.Scope), value(l.Algorithm), pace(l), slowdown, value(l.OnStoreFailure), value(l.Mode), match)
	}
	return t
}

// planFlags are what create and set have in common.
type planFlags struct {
	title, file string
	limits      []string
}

func (f *planFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.title, "title", "", "title for people")
	cmd.Flags().StringArrayVar(&f.limits, "limit", nil, "NAME=QUOTA/WINDOW, such as requests-per-minute=2000/1m; repeat it for more")
	cmd.Flags().StringVarP(&f.file, "file", "f", "", "YAML or JSON file with the whole plan, as `plan get -o yaml` prints it; - for standard input")
	_ = cmd.Flags().SetAnnotation("file", cobra.BashCompFilenameExt, []string{"yaml", "yml", "json"}) // the flag exists
}

func planCreate(r *remote) *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use: "create PLAN", Short: "Create a plan",
		Long: "Create a plan. Limits given by --limit are sliding_window_log, counted per tenant; everything else takes a --file.",
		Example: "  pegel plan create school --title 'Schools' --limit requests-per-minute=2000/1m\n" +
			"  pegel plan create school --file school.yaml",
		Args: exactly("PLAN"),
	}
	f.flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.file != "" {
			return r.sendPlan(cmd, http.MethodPost, plansPath, args[0], "", &f)
		}
		plan := adminclient.PlanInput{Name: args[0], Limits: []adminclient.Limit{}}
		if err := f.change(cmd, &plan); err != nil {
			return err
		}
		answer, err := r.do(cmd, adminclient.Call{Method: http.MethodPost, Path: plansPath, Body: plan})
		if err != nil {
			return err
		}
		return r.showPlan(cmd, answer)
	}
	return cmd
}

func planSet(r *remote) *cobra.Command {
	var f planFlags
	var remove []string
	cmd := &cobra.Command{
		Use: "set PLAN", Short: "Change a plan",
		Long: "Change what the flags name, and nothing else; --file replaces the whole plan. Tenants on it are held to the new limits within\n" +
			"a second, and counters of limits that keep their scope, name, algorithm and window go on.",
		Example: "  pegel plan set light --limit requests-per-minute=3000\n" +
			"  pegel plan set light --limit exports=10/1h --remove-limit imports\n" +
			"  pegel plan get light -o yaml > light.yaml && pegel plan set light --file light.yaml",
		Args: exactly("PLAN"), ValidArgsFunction: r.complete(plansPath, "name"),
	}
	f.flags(cmd)
	cmd.Flags().StringArrayVar(&remove, "remove-limit", nil, "name of a limit to take away; repeat it for more")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path := plansPath + adminclient.Path(args[0])
		current, err := r.do(cmd, adminclient.Call{Path: path})
		if err != nil {
			return err
		}
		if f.file != "" {
			return r.sendPlan(cmd, http.MethodPut, path, args[0], current.ETag, &f)
		}
		plan, err := read[adminclient.PlanInput](current.Body)
		if err != nil {
			return err
		}
		if err := f.change(cmd, &plan); err != nil {
			return err
		}
		for _, name := range remove {
			i := slices.IndexFunc(plan.Limits, func(l adminclient.Limit) bool { return l.Name == name })
			if i < 0 {
				return fmt.Errorf("--remove-limit: plan %s has no limit %q", args[0], name)
			}
			plan.Limits = slices.Delete(plan.Limits, i, i+1)
		}
		answer, err := r.do(cmd, adminclient.Call{Method: http.MethodPut, Path: path, Body: plan, IfMatch: current.ETag})
		if err != nil {
			return err
		}
		return r.showPlan(cmd, answer)
	}
	return cmd
}

// change puts what the flags say into a plan.
func (f *planFlags) change(cmd *cobra.Command, plan *adminclient.PlanInput) error {
	if cmd.Flags().Changed("title") {
		plan.Title = &f.title
	}
	for _, text := range f.limits {
		if err := setLimit(plan, text); err != nil {
			return err
		}
	}
	return nil
}

// setLimit reads NAME=QUOTA or NAME=QUOTA/WINDOW into the limit of that name, or a new one.
func setLimit(plan *adminclient.PlanInput, text string) error {
	const form = "--limit: %q is not NAME=QUOTA or NAME=QUOTA/WINDOW, such as requests-per-minute=2000/1m"
	at := strings.LastIndex(text, "=") // names may hold one
	if at < 1 {
		return usagef(form, text)
	}
	name, numbers := text[:at], text[at+1:]
	quotaText, window, windowed := strings.Cut(numbers, "/")
	quota, err := strconv.ParseInt(quotaText, 10, 64)
	if err != nil || windowed && window == "" {
		return usagef(form, text)
	}
	i := slices.IndexFunc(plan.Limits, func(l adminclient.Limit) bool { return l.Name == name })
	if i < 0 {
		plan.Limits = append(plan.Limits, adminclient.Limit{Name: name})
		i = len(plan.Limits) - 1
	}
	plan.Limits[i].Limit = quota
	if windowed {
		plan.Limits[i].Window = &window
	}
	return nil
}

// sendPlan sends a file as it is; what the server refuses is shown by its lines.
func (r *remote) sendPlan(cmd *cobra.Command, method, path, name, etag string, f *planFlags) error {
	if len(f.limits) > 0 || cmd.Flags().Changed("title") {
		return usagef("--file describes the whole plan: leave out --title and --limit")
	}
	file, err := readConfigFile(cmd, f.file)
	if err != nil {
		return err
	}
	var head struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(file.parsed.JSON, &head) == nil && head.Name != name {
		return fmt.Errorf("%s: describes the plan %q, not %s", file.name, head.Name, name)
	}
	answer, err := r.do(cmd, adminclient.Call{Method: method, Path: path, Body: file.parsed.JSON, IfMatch: etag})
	if err != nil {
		return file.explain(cmd, err)
	}
	return r.showPlan(cmd, answer)
}

func planDelete(r *remote) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "delete PLAN", Short: "Delete a plan that no tenant has", Example: "  pegel plan delete school\n  pegel plan delete school --yes",
		Args: exactly("PLAN"), ValidArgsFunction: r.complete(plansPath, "name"),
	}
	oneForm(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return r.deleteTagged(cmd, plansPath+adminclient.Path(args[0]), "plan "+args[0], yes)
	}
	return cmd
}

// deleteTagged deletes an object of the version it has now, after asking.
func (r *remote) deleteTagged(cmd *cobra.Command, path, what string, yes bool) error {
	current, err := r.do(cmd, adminclient.Call{Path: path})
	if err != nil {
		return err
	}
	if err := confirm(cmd, yes, "Delete "+what+"?"); err != nil {
		return err
	}
	return r.ended(cmd, adminclient.Call{Method: http.MethodDelete, Path: path, IfMatch: current.ETag}, "deleted "+what)
}

// namedFile is a file that was read, with the name to call it by.
type namedFile struct {
	name   string
	parsed *configfile.File
}

func readConfigFile(cmd *cobra.Command, path string) (*namedFile, error) {
	name, in := path, cmd.InOrStdin()
	if path == "-" {
		name = "standard input"
	} else {
		f, err := os.Open(path)
		if err != nil {
			return nil, usagef("--file: %w", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, configfile.MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	parsed, err := configfile.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &namedFile{name, parsed}, nil
}
