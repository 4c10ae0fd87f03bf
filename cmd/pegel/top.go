package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

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
			return watchTop(cmd.Context(), out, interval, ask)
		}
		answer, err := ask(cmd.Context())
		if err != nil {
			return err
		}
		return r.show(cmd, answer.Body, func(w io.Writer) error { return topFrame(w, answer) })
	}
	return cmd
}

// watchTop draws frame over frame until ctx ends. A server that was there and is away is no reason to end: the last frame stays, and
// says so. One that never answered, or refuses the token, is.
func watchTop(ctx context.Context, out io.Writer, interval time.Duration, ask func(context.Context) (*adminclient.Answer, error)) error {
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
		var frame bytes.Buffer
		if err := topFrame(&frame, answer); err != nil {
			return err
		}
		if trouble != "" {
			_, _ = fmt.Fprintf(&frame, "\nnot refreshed: %s\n", printable(trouble))
		}
		if err := draw(out, frame.String()); err != nil {
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

// draw puts a frame over the one before, line by line, so that nothing flickers.
func draw(out io.Writer, frame string) error {
	_, err := io.WriteString(out, toTop+strings.ReplaceAll(frame, "\n", clearLine+"\n")+clearBelow)
	return err
}

// topFrame is the whole picture.
func topFrame(w io.Writer, answer *adminclient.Answer) error {
	limits, err := read[adminclient.RateLimits](answer.Body)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(w, "%s   %d tenants active   last minute: %d allowed, %d slowed, %d refused, %d wrong credentials\n",
		limits.GeneratedAt.UTC().Format(time.TimeOnly), limits.ActiveTenants, limits.Total.Allowed, limits.Total.Slowed, limits.Total.Refused,
		limits.WrongCredentials)
	allowed, refused := make([]float64, 0, chartSteps), make([]float64, 0, chartSteps)
	var series []adminclient.TrafficPoint
	if limits.Series != nil {
		series = *limits.Series
	}
	for _, p := range series[max(0, len(series)-chartSteps):] {
		allowed, refused = append(allowed, p.Allowed+p.Slowed), append(refused, p.Refused)
	}
	_, _ = fmt.Fprintf(w, "let through %s %s\nrefused     %s %s\n\n", chart(allowed), perSecond(allowed), chart(refused), perSecond(refused))
	if err := topTables(w, &limits); err != nil {
		return err
	}
	if len(limits.RefusedServiceTokens) > 0 {
		_, _ = fmt.Fprintln(w)
		t := &table{head: []string{"REFUSED SERVICE TOKEN", "TIMES"}}
		for _, s := range limits.RefusedServiceTokens {
			t.add(s.Name, number(s.Refused))
		}
		if err := t.write(w); err != nil {
			return err
		}
	}
	if len(limits.Missing) > 0 {
		_, _ = fmt.Fprintf(w, "\nother replicas may be missing: %s cannot be asked\n", printable(strings.Join(limits.Missing, ", ")))
	}
	return nil
}

// chart is one character for each number, as high as it is beside the highest.
func chart(values []float64) string {
	const bars = "▁▂▃▄▅▆▇█"
	levels := []rune(bars)
	highest := 0.0
	for _, v := range values {
		highest = max(highest, v)
	}
	var b strings.Builder
	for _, v := range values {
		level := 0
		if v > 0 && highest > 0 {
			level = min(len(levels)-1, 1+int(v/highest*float64(len(levels)-1)))
		}
		b.WriteRune(levels[level])
	}
	return b.String()
}

func perSecond(values []float64) string {
	if len(values) == 0 {
		return "0/s"
	}
	return fmt.Sprintf("%.1f/s", values[len(values)-1])
}
