package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/pegel-dev/pegel/internal/adminclient"
)

// frame is the picture of `pegel top`, in lines, by what goes first when a terminal is too low for it: tenants from the lowest utilization on,
// then the tables below them. The heading and the notes stay.
type frame struct {
	heading, tenants, below, notes []string
}

// topFrame is the whole picture.
func topFrame(answer *adminclient.Answer) (*frame, error) {
	limits, err := read[adminclient.RateLimits](answer.Body)
	if err != nil {
		return nil, err
	}
	f := &frame{heading: []string{fmt.Sprintf("%s   %d tenants active   last minute: %d allowed, %d slowed, %d refused, %d wrong credentials",
		limits.GeneratedAt.UTC().Format(time.TimeOnly), limits.ActiveTenants, limits.Total.Allowed, limits.Total.Slowed, limits.Total.Refused,
		limits.WrongCredentials)}}
	allowed, refused := make([]float64, 0, chartSteps), make([]float64, 0, chartSteps)
	var series []adminclient.TrafficPoint
	if limits.Series != nil {
		series = *limits.Series
	}
	for _, p := range series[max(0, len(series)-chartSteps):] {
		allowed, refused = append(allowed, p.Allowed+p.Slowed), append(refused, p.Refused)
	}
	f.heading = append(f.heading, "let through "+chart(allowed)+" "+perSecond(allowed), "refused     "+chart(refused)+" "+perSecond(refused), "")
	f.tenants = tenantTable(&limits).lines()
	f.below = append([]string{""}, replicaTable(&limits).lines()...)
	if len(limits.RefusedServiceTokens) > 0 {
		t := &table{head: []string{"REFUSED SERVICE TOKEN", "TIMES"}}
		for _, s := range limits.RefusedServiceTokens {
			t.add(s.Name, number(s.Refused))
		}
		f.below = append(append(f.below, ""), t.lines()...)
	}
	if len(limits.Missing) > 0 {
		f.notes = append(f.notes, "", fmt.Sprintf("other replicas may be missing: %s cannot be asked", printable(strings.Join(limits.Missing, ", "))))
	}
	return f, nil
}

// fit is the picture in at most so many lines; 0: in as many as it has. What is left out is counted.
func (f *frame) fit(rows int) []string {
	whole := len(f.heading) + len(f.tenants) + len(f.below) + len(f.notes)
	over := whole - rows
	if rows <= 0 || over <= 0 {
		over = 0
	}
	const tableHead = 1 // line that stays above the tenants
	tenants := cut(f.tenants, tableHead, "more tenants: --top asks for fewer", &over)
	below := cut(f.below, 0, "more lines", &over)
	lines := make([]string, 0, whole)
	lines = append(append(append(lines, f.heading...), tenants...), below...)
	if over > 0 { // a terminal of a few lines: the heading comes first
		lines = lines[:max(min(rows, len(f.heading)), len(lines)-over)]
	}
	lines = append(lines, f.notes...)
	if rows > 0 {
		lines = lines[:min(len(lines), rows)]
	}
	return lines
}

// cut drops lines from the end until nothing is over, or as many as are to be kept are left; a line says how many.
func cut(lines []string, keep int, what string, over *int) []string {
	drop := min(*over+1, len(lines)-keep)
	if *over == 0 || drop < 2 {
		return lines
	}
	*over -= drop - 1
	left := lines[: len(lines)-drop : len(lines)-drop]
	return append(left, fmt.Sprintf("… %d %s", drop, what))
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
