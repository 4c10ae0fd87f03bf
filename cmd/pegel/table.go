package main

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
)

const (
	// tableWidth is what a table fits into, in characters.
	tableWidth = 100
	// lastLeast is how far the last column is cut before others are; narrowest is how far those are.
	lastLeast = 16
	narrowest = 8
	gap       = "  "
)

// table is rows under a head; the last column may hold whatever the others leave.
type table struct {
	head []string
	rows [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// write prints the lines.
func (t *table) write(w io.Writer) error {
	_, err := io.WriteString(w, strings.Join(t.lines(), "\n")+"\n")
	return err
}

// lines aligns the columns. The last, then the widest are cut until the table fits; json and yaml show everything.
func (t *table) lines() []string {
	widths := make([]int, len(t.head))
	all := make([][]string, 0, len(t.rows)+1)
	for _, row := range append([][]string{t.head}, t.rows...) {
		clean := make([]string, len(row))
		for i, cell := range row {
			clean[i] = printable(cell)
			widths[i] = max(widths[i], width(clean[i]))
		}
		all = append(all, clean)
	}
	shrink(widths)
	lines := make([]string, 0, len(all))
	for _, row := range all {
		var line strings.Builder
		for i, cell := range row {
			cell = shorten(cell, widths[i])
			line.WriteString(cell)
			line.WriteString(strings.Repeat(" ", widths[i]-width(cell)))
			line.WriteString(gap)
		}
		lines = append(lines, strings.TrimRight(line.String(), " "))
	}
	return lines
}

func shrink(widths []int) {
	sum, last := len(gap)*(len(widths)-1), len(widths)-1
	for _, n := range widths {
		sum += n
	}
	for ; sum > tableWidth && widths[last] > lastLeast; sum-- {
		widths[last]--
	}
	for ; sum > tableWidth; sum-- {
		widest := 0
		for i, n := range widths {
			if n > widths[widest] {
				widest = i
			}
		}
		if widths[widest] <= narrowest {
			return
		}
		widths[widest]--
	}
}

func width(s string) int { return len([]rune(s)) }

func shorten(s string, most int) string {
	if width(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}

// printable keeps what others wrote from steering a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '·'
	}, s)
}

// moment shows a time in UTC, to the second; none is a dash.
func moment(t *time.Time) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// expiry is moment for what may live for ever.
func expiry(t *time.Time) string {
	if t == nil || t.IsZero() {
		return "never"
	}
	return moment(t)
}

func value[T any](p *T) string {
	if p == nil {
		return "-"
	}
	return fmt.Sprint(*p)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
