package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/adminclient"
	"github.com/pegel-dev/pegel/internal/configfile"
)

const configurationPath = "/admin/configuration"

func exportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "export", Short: "Print the whole configuration as a file for `pegel apply`",
		Long: "Print plans, tenants with their overrides, the address policy, networks and the mode as a file for `pegel apply`. It holds no\n" +
			"credential. An unchanged configuration gives the same file, so that it can be kept in version control.",
		Example: "  pegel export > pegel.yaml\n  pegel export -o json | jq '.plans[].name'", Args: exactly(),
	}
	r := remoteFlagsOf(cmd, false, "yaml", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		answer, err := r.do(cmd, adminclient.Call{Path: configurationPath})
		if err != nil {
			return err
		}
		conf, err := read[struct {
			Warnings []string `json:"warnings"`
		}](answer.Body)
		if err != nil {
			return err
		}
		for _, warning := range conf.Warnings {
			say(cmd, "warning: %s", printable(warning))
		}
		if r.output == "json" {
			return r.show(cmd, answer.Body, nil)
		}
		file, err := configfile.Write(answer.Body)
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write(file)
		return err
	}
	return cmd
}

func schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of that file, for editors",
		Example: "  pegel schema > pegel.schema.json", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			schema, err := configfile.Schema()
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(schema)
			return err
		},
	}
}

// applying is one run of `pegel apply`.
type applying struct {
	*remote

	path                         string
	dryRun, prune, yes, exitCode bool
}

func applyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "apply", Short: "Bring the configuration to what a file says",
		Long: `Bring the configuration to what a file says, in one transaction on the server: all of it or nothing. It prints what it changes,
field by field; a file that says what is there already changes nothing.

An object in the file is the whole object: what it leaves out has its default. A section the file leaves out stays as it
is. Nothing is deleted without --prune, which deletes what the sections of the file do not name, and asks before it does.
At most 1,000 plans, 20,000 tenants, 20,000 networks and 8 MiB; more goes in parts, without --prune.`,
		Example: "  pegel apply -f pegel.yaml --dry-run\n  pegel apply -f pegel.yaml\n  pegel apply -f pegel.yaml --prune --yes\n" +
			"  pegel apply -f pegel.yaml --dry-run --exit-code   # 3 when something would change",
		Args: exactly(),
	}
	a := &applying{remote: remoteFlags(cmd, false)}
	cmd.Flags().StringVarP(&a.path, "file", "f", "", "YAML or JSON file, as `pegel export` prints it; - for standard input (required)")
	cmd.Flags().BoolVar(&a.dryRun, "dry-run", false, "print what would change, and change nothing")
	cmd.Flags().BoolVar(&a.prune, "prune", false, "delete what the sections of the file do not name")
	cmd.Flags().BoolVar(&a.yes, "yes", false, "do not ask before deleting")
	cmd.Flags().BoolVar(&a.exitCode, "exit-code", false, "with --dry-run: exit status 3 when something would change")
	_ = cmd.Flags().SetAnnotation("file", cobra.BashCompFilenameExt, []string{"yaml", "yml", "json"}) // the flag exists
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return a.run(cmd) }
	return cmd
}

func (a *applying) run(cmd *cobra.Command) error {
	if a.path == "" {
		return usagef("--file is missing: `pegel apply -f pegel.yaml`")
	}
	if a.exitCode && !a.dryRun {
		return usagef("--exit-code goes with --dry-run")
	}
	if a.path == "-" && a.tokenFile == "-" {
		return usagef("--file and --token-file cannot both be standard input")
	}
	file, err := readConfigFile(cmd, a.path)
	if err != nil {
		return err
	}
	if a.dryRun {
		done, err := a.post(cmd, file, true, "")
		if err != nil {
			return err
		}
		say(cmd, "dry run: nothing was changed (%s)", summary(done, "to create", "to update", "to delete"))
		if a.exitCode && len(done.Changes) > 0 {
			return &statusError{status: exitDenied}
		}
		return nil
	}
	seen := ""
	if a.prune && !a.yes {
		if seen, err = a.askFirst(cmd, file); err != nil {
			return err
		}
	}
	done, err := a.post(cmd, file, false, seen)
	if err != nil {
		return err
	}
	if len(done.Changes) == 0 {
		say(cmd, "nothing to change")
		return nil
	}
	say(cmd, "applied: %s", summary(done, "created", "updated", "deleted"))
	return nil
}

// askFirst shows what applying would do when it deletes something, and asks. It returns the version that was shown, so that
// nothing else is applied than what was agreed to; empty: nothing was shown.
func (a *applying) askFirst(cmd *cobra.Command, file *namedFile) (seen string, err error) {
	call := a.call(file, true, "")
	answer, err := a.do(cmd, call)
	if err != nil {
		return "", file.explain(cmd, err)
	}
	would, err := read[adminclient.AppliedConfiguration](answer.Body)
	if err != nil {
		return "", err
	}
	deleted := count(&would, "delete")
	if deleted == 0 {
		return "", nil
	}
	warn(cmd, &would)
	if err := printChanges(cmd.ErrOrStderr(), &would); err != nil {
		return "", err
	}
	return answer.ETag, confirm(cmd, false, fmt.Sprintf("This deletes %d object(s). Apply?", deleted))
}

func (a *applying) call(file *namedFile, dryRun bool, seen string) adminclient.Call {
	query := url.Values{}
	if dryRun {
		query.Set("dry_run", "true")
	}
	if a.prune {
		query.Set("prune", "true")
	}
	return adminclient.Call{Method: http.MethodPost, Path: configurationPath, Query: query, Body: file.parsed.JSON, IfMatch: seen}
}

// post applies, or tries to, and prints the changes.
func (a *applying) post(cmd *cobra.Command, file *namedFile, dryRun bool, seen string) (*adminclient.AppliedConfiguration, error) {
	answer, err := a.do(cmd, a.call(file, dryRun, seen))
	if err != nil {
		return nil, file.explain(cmd, err)
	}
	done, err := read[adminclient.AppliedConfiguration](answer.Body)
	if err != nil {
		return nil, err
	}
	if seen == "" { // otherwise they have been read already
		warn(cmd, &done)
	}
	return &done, a.show(cmd, answer.Body, func(w io.Writer) error { return printChanges(w, &done) })
}

func warn(cmd *cobra.Command, done *adminclient.AppliedConfiguration) {
	for _, warning := range done.Warnings {
		say(cmd, "warning: %s", printable(warning))
	}
}

// explain says where in the file the server's findings are, one line each.
func (f *namedFile) explain(cmd *cobra.Command, err error) error {
	var refused *adminclient.RefusedError
	if !errors.As(err, &refused) || len(refused.Errors) == 0 {
		return err
	}
	type place struct {
		line int
		text string
	}
	var places []place
	for _, found := range refused.Errors {
		if strings.HasPrefix(found.Pointer, "/header/") || strings.HasPrefix(found.Pointer, "/query/") {
			continue
		}
		text := strings.TrimSpace(strings.TrimPrefix(found.Pointer, "/") + " " + found.Message)
		places = append(places, place{f.parsed.Line(found.Pointer), printable(text)})
	}
	if len(places) == 0 {
		return err
	}
	slices.SortStableFunc(places, func(a, b place) int { return a.line - b.line })
	for _, p := range places {
		say(cmd, "%s:%d: %s", f.name, p.line, p.text)
	}
	return fmt.Errorf("%s is not valid in %d place(s); nothing was changed", f.name, len(places))
}

// printChanges is the difference, an object a paragraph.
func printChanges(w io.Writer, done *adminclient.AppliedConfiguration) error {
	signs := map[adminclient.ConfigurationChangeAction]string{"create": "+", "update": "~", "delete": "-"}
	var b strings.Builder
	for i := range done.Changes {
		c := &done.Changes[i]
		fmt.Fprintf(&b, "%s %s", signs[c.Action], strings.ReplaceAll(string(c.Resource), "_", " "))
		if c.Resource != "mode" && c.Resource != "address_policy" {
			b.WriteString(" " + printable(c.Name))
		}
		b.WriteString("\n")
		if c.Action == "delete" {
			continue
		}
		for _, field := range c.Diff {
			switch {
			case c.Action == "create" || field.From == nil:
				fmt.Fprintf(&b, "    %s: %s\n", field.Field, shown(field.To))
			case field.To == nil:
				fmt.Fprintf(&b, "    %s: %s -> (none)\n", field.Field, shown(field.From))
			default:
				fmt.Fprintf(&b, "    %s: %s -> %s\n", field.Field, shown(field.From), shown(field.To))
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// shown is a value of a difference as JSON has it, without what could steer a terminal.
func shown(v any) string {
	if v == nil {
		return "(none)"
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return "?"
	}
	return printable(string(raw))
}

func count(done *adminclient.AppliedConfiguration, action adminclient.ConfigurationChangeAction) (n int) {
	for i := range done.Changes {
		if done.Changes[i].Action == action {
			n++
		}
	}
	return n
}

func summary(done *adminclient.AppliedConfiguration, created, updated, deleted string) string {
	return fmt.Sprintf("%d %s, %d %s, %d %s", count(done, "create"), created, count(done, "update"), updated, count(done, "delete"), deleted)
}
