package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// printTable writes one table: a row per peer and number of callers. CPU time is in µs, or in ns for what takes less.
func printTable(out io.Writer, title string, columns []string, nanoseconds bool, peers []*peer, callers []int, results map[*peer]map[int]*result) {
	fmt.Fprintf(out, "\n%s\n\n", title)
	unit, scale := "µs", 1e3
	if nanoseconds {
		unit, scale = "ns/op", 1
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer t.Flush()
	fmt.Fprintf(t, "callers\tdecisions/s\tp50\tp99\t%s\tratio\t\n", strings.Join(columns, " "+unit+"\t")+" "+unit)
	for _, n := range callers {
		var reference *result
		for _, p := range peers {
			if p.reference {
				reference = results[p][n]
			}
		}
		for _, p := range peers {
			r := results[p][n]
			fmt.Fprintf(t, "%d\t%s\t%s\t%s\t", n, grouped(r.rate()), short(r.percentile(0.5)), short(r.percentile(0.99)))
			for _, column := range columns {
				fmt.Fprintf(t, "%s\t", perDecision(r, column, scale))
			}
			ratio := "-"
			if reference != nil {
				ratio = fmt.Sprintf("%.2f", r.against(reference))
			}
			fmt.Fprintf(t, "%s\t  %s\n", ratio, p.name)
		}
	}
}

// perDecision is a column's CPU time per decision in units of scale nanoseconds, or "-" when the peer has no such process.
func perDecision(r *result, column string, scale float64) string {
	used, ok := r.cpu[column]
	if !ok || r.decisions == 0 {
		return "-"
	}
	each := float64(used.Nanoseconds()) / scale / float64(r.decisions)
	if each < 1 {
		return fmt.Sprintf("%.3f", each)
	}
	return fmt.Sprintf("%.1f", each)
}

// short is a duration with two or three digits.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Microsecond:
		return fmt.Sprintf("%.2f µs", float64(d.Nanoseconds())/1e3)
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	default:
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1e3)
	}
}

// grouped is a whole number with commas.
func grouped(x float64) string {
	digits := fmt.Sprintf("%.0f", x)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}
