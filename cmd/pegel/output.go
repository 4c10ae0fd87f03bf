package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/adminclient"
	"github.com/pegel-dev/pegel/internal/app"
	"github.com/pegel-dev/pegel/internal/configfile"
)

// show prints an answer: as the server gave it in json and yaml, else as table says.
func (r *remote) show(cmd *cobra.Command, raw json.RawMessage, table func(w io.Writer) error) error {
	out := cmd.OutOrStdout()
	switch r.output {
	case "json":
		var indented bytes.Buffer
		if err := json.Indent(&indented, raw, "", "  "); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		indented.WriteByte('\n')
		_, err := out.Write(indented.Bytes())
		return err
	case "yaml":
		text, err := configfile.YAML(raw)
		if err != nil {
			return err
		}
		_, err = out.Write(text)
		return err
	}
	return table(out)
}

// read is an answer's body as a type of the contract.
func read[T any](raw json.RawMessage) (v T, err error) {
	if err := json.Unmarshal(raw, &v); err != nil {
		return v, fmt.Errorf("read the answer (is the server of another version?): %w", err)
	}
	return v, nil
}

// say is for what is no answer: standard error, so that standard output stays what a script expects.
func say(cmd *cobra.Command, format string, args ...any) {
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) // nobody is left to tell
}

// listing is a command that lists objects.
type listing[T any] struct {
	cmd  *cobra.Command
	path func(args []string) string
	// query adds what flags ask for; nil: nothing.
	query func() (url.Values, error)
	head  []string
	row   func(*T) []string
	// most is the default of --limit; 0: all.
	most int
}

// command finishes it: --limit, the pages, the table.
func (l listing[T]) command(r *remote) *cobra.Command {
	most := 0
	help := "at most so many (0: all)"
	l.cmd.Flags().IntVar(&most, "limit", l.most, help)
	if l.cmd.Args == nil {
		l.cmd.Args = exactly()
	}
	l.cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if most < 0 {
			return usagef("--limit: must not be negative")
		}
		query := url.Values{}
		if l.query != nil {
			var err error
			if query, err = l.query(); err != nil {
				return err
			}
		}
		c, err := r.client(cmd)
		if err != nil {
			return err
		}
		items, err := c.List(cmd.Context(), l.path(args), query, most)
		if err != nil {
			return r.advise(err, l.path(args))
		}
		raw, err := json.Marshal(map[string]any{"items": items})
		if err != nil {
			return fmt.Errorf("put the pages together: %w", err)
		}
		return r.show(cmd, raw, func(w io.Writer) error { return l.table(cmd, w, items) })
	}
	return l.cmd
}

func (l listing[T]) table(cmd *cobra.Command, w io.Writer, items []json.RawMessage) error {
	if len(items) == 0 {
		say(cmd, "none")
		return nil
	}
	t := &table{head: l.head}
	for _, raw := range items {
		item, err := read[T](raw)
		if err != nil {
			return err
		}
		t.add(l.row(&item)...)
	}
	return t.write(w)
}

// filters are flags of a list that go into its query as they are.
type filters struct {
	names  []string
	values []*string
}

func (f *filters) flag(cmd *cobra.Command, name, help string) {
	f.names, f.values = append(f.names, name), append(f.values, cmd.Flags().String(name, "", help))
}

func (f *filters) query() (url.Values, error) {
	query := url.Values{}
	for i, name := range f.names {
		if *f.values[i] != "" {
			query.Set(strings.ReplaceAll(name, "-", "_"), *f.values[i])
		}
	}
	return query, nil
}

// facts shows one object, a line per field.
func facts(w io.Writer, pairs ...string) error {
	longest := 0
	for i := 0; i < len(pairs); i += 2 {
		longest = max(longest, len(pairs[i]))
	}
	var b strings.Builder
	for pair := range slices.Chunk(pairs, 2) {
		fmt.Fprintf(&b, "%-*s  %s\n", longest, pair[0], printable(pair[1]))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// life is the flag --expires-in or --expires-at of what may end.
type life struct {
	in time.Duration
	at string
}

func (l *life) flags(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&l.in, "expires-in", 0, "life time, such as 720h (default: it does not expire)")
	cmd.Flags().StringVar(&l.at, "expires-at", "", "moment it ends, such as 2027-01-31T00:00:00Z")
}

// moment is when it ends; nil: never.
func (l *life) moment() (*time.Time, error) {
	switch {
	case l.in != 0 && l.at != "":
		return nil, usagef("--expires-in and --expires-at: give one of them")
	case l.in < 0:
		return nil, usagef("--expires-in: %s is in the past", l.in)
	case l.in > 0:
		at := time.Now().Add(l.in).UTC()
		return &at, nil
	case l.at == "":
		return nil, nil
	}
	at, err := time.Parse(time.RFC3339, l.at)
	if err != nil {
		return nil, usagef("--expires-at: %q is not a time of RFC 3339, such as 2027-01-31T00:00:00Z", l.at)
	}
	return &at, nil
}

// confirm asks on a terminal, and wants --yes elsewhere.
func confirm(cmd *cobra.Command, yes bool, question string) error {
	if yes {
		return nil
	}
	if !app.IsTerminal(cmd.InOrStdin()) {
		return usagef("%s Nobody can be asked here: say --yes", question)
	}
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s [y/N] ", question)
	var reply string
	if _, err := fmt.Fscanln(cmd.InOrStdin(), &reply); errors.Is(err, errInterrupted) { // of other errors: no reply is no
		say(cmd, "")
		return err
	}
	if strings.EqualFold(reply, "y") || strings.EqualFold(reply, "yes") {
		return nil
	}
	return fmt.Errorf("left as it is")
}

// ended waits for the 204 of a deletion and says so.
func (r *remote) ended(cmd *cobra.Command, call adminclient.Call, done string) error {
	if _, err := r.do(cmd, call); err != nil {
		return err
	}
	say(cmd, "%s", done)
	return nil
}
