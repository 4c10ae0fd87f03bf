package main

import (
	"context"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pegel-dev/pegel/internal/adminclient"
	"github.com/pegel-dev/pegel/internal/app"
)

const (
	defaultInterval = 2 * time.Second
	leastInterval   = 500 * time.Millisecond
	mostTop         = 500
	// chartSteps is how many of the hour's steps of ten seconds the charts show.
	chartSteps = 60

	// What a terminal understands: another screen, without a cursor and without wrapping lines, and back; the top left corner; what is left of a line; and
	// of the screen.
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	toTop       = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

func topCommand() *cobra.Command {
	var top int
	var interval time.Duration
	var once bool
	cmd := &cobra.Command{
		Use: "top", Short: "Who is using how much, live, over all replicas",
		Long: `The tenants with the highest utilization, requests per second and what decides, over all replicas, refreshed in place until
Ctrl-C. With --once, or when the output is no terminal, it shows them once; -o json and -o yaml always do.`,
		Example: "  pegel top\n  pegel top --top 20 --interval 5s\n  pegel top --once -o json", Args: exactly(),
	}
	r := remoteFlags(cmd, false)
	cmd.Flags().IntVar(&top, "top", 10, "how many tenants")
	cmd.Flags().DurationVar(&interval, "interval", defaultInterval, "how often it is refreshed")
	cmd.Flags().BoolVar(&once, "once", false, "show it once and end")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case top < 1 || top > mostTop:
			return usagef("--top: must be from 1 to %d", mostTop)
		case interval < leastInterval:
			return usagef("--interval: must be at least %s", leastInterval)
		}
		client, err := r.client(cmd)
		if err != nil {
			return err
		}
		ask := func(ctx context.Context) (*adminclient.Answer, error) {
			call := adminclient.Call{Path: "/admin/rate-limits", Query: url.Values{"top": {strconv.Itoa(top)}, "series": {"true"}}}
			answer, err := client.Do(ctx, call)
			return answer, r.advise(err, call.Path)
		}
		out := cmd.OutOrStdout()
		if !once && r.output == "table" && app.IsTerminal(out) {
			return watchTop(cmd.Context(), out, terminalRows(out), interval, ask)
		}
		answer, err := ask(cmd.Context())
		if err != nil {
			return err
		}
		return r.show(cmd, answer.Body, func(w io.Writer) error {
			f, err := topFrame(answer)
			if err != nil {
				return err
			}
			_, err = io.WriteString(w, strings.Join(f.fit(0), "\n")+"\n")
			return err
		})
	}
	return cmd
}

// terminalRows tells how many lines a terminal has at the moment; 0: it does not say.
func terminalRows(out io.Writer) func() int {
	return func() int {
		f, ok := out.(interface{ Fd() uintptr })
		if !ok {
			return 0
		}
		_, rows, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 0
		}
		return rows
	}
}

// watchTop draws frame over frame until ctx ends, each as high as the terminal is then. A server that was there and is away is no
// reason to end: the last frame stays, and says so. One that never answered, or refuses the token, is.
func watchTop(ctx context.Context, out io.Writer, rows func() int, interval time.Duration, ask func(context.Context) (*adminclient.Answer, error)) error {
	answer, err := ask(ctx)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(out, enterScreen); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(out, leaveScreen) }()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	trouble := ""
	for {
		f, err := topFrame(answer)
		if err != nil {
			return err
		}
		if trouble != "" {
			f.notes = append(f.notes, "", "not refreshed: "+printable(trouble))
		}
		if err := draw(out, f.fit(rows())); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		fresh, err := ask(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			trouble = err.Error()
		default:
			answer, trouble = fresh, ""
		}
	}
}

// draw puts a frame over the one before, line by line, so that nothing flickers. The last line has no line break: it would scroll a full
// screen.
func draw(out io.Writer, lines []string) error {
	_, err := io.WriteString(out, toTop+strings.Join(lines, clearLine+"\n")+clearLine+clearBelow)
	return err
}
