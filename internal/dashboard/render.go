package dashboard

import (
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"math"
	"net/http"
	"path"
	"reflect"
	"strconv"
	"strings"
	"time"
)

//go:embed templates
var templateFiles embed.FS

//go:embed static
var staticFiles embed.FS

// pages holds a template set for each page: the layout, the parts all pages share, and the page itself.
type pages struct {
	byName map[string]*template.Template
}

func loadPages(now func() time.Time) (*pages, error) {
	shared, err := template.New("").Funcs(functions(now)).ParseFS(templateFiles, "templates/layout.html", "templates/parts*.html")
	if err != nil {
		return nil, fmt.Errorf("read the dashboard's layout: %w", err)
	}
	files, err := fs.Glob(templateFiles, "templates/pages/*.html")
	if err != nil {
		return nil, fmt.Errorf("list the dashboard's pages: %w", err)
	}
	p := &pages{byName: map[string]*template.Template{}}
	for _, file := range files {
		set, err := shared.Clone()
		if err != nil {
			return nil, fmt.Errorf("copy the dashboard's layout: %w", err)
		}
		if set, err = set.ParseFS(templateFiles, file); err != nil {
			return nil, fmt.Errorf("read the dashboard's page: %w", err)
		}
		p.byName[strings.TrimSuffix(path.Base(file), ".html")] = set
	}
	return p, nil
}

func (p *pages) write(w io.Writer, page, part string, v *view) error {
	set, ok := p.byName[page]
	if !ok {
		return fmt.Errorf("there is no page %q", page)
	}
	if err := set.ExecuteTemplate(w, part, v); err != nil {
		return fmt.Errorf("write %s of the page %s: %w", part, page, err)
	}
	return nil
}

// serveAssets serves styles, scripts and their licences. They change with the binary, so a browser asks each time.
func serveAssets() (http.Handler, error) {
	files, err := fs.Sub(staticFiles, "static")
	if err != nil {
		return nil, fmt.Errorf("read the dashboard's files: %w", err)
	}
	types := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8"}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/dashboard/static/")
		raw, err := fs.ReadFile(files, name)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", types[path.Ext(name)])
		w.Header().Set("Cache-Control", "no-cache")
		_, _ = w.Write(raw) //nolint:gosec // a file of our own; and nobody to tell
	}), nil
}

func functions(now func() time.Time) template.FuncMap {
	return template.FuncMap{
		"num": group, "rate": rateText, "percentOf": percentOf, "span": spanText, "shareOf": shareOf, "gauge": gaugeOf,
		"when": func(at any) moment { return momentOf(at, now()) },
		"live": func(expires, revoked *time.Time) string { return standing(expires, revoked, now()) },
		"past": func(at *time.Time) bool { return at != nil && !at.After(now()) },
		"json": jsonText, "path": segment, "once": onceKey, "lifetimes": func() any { return lifetimes },
		"dict": dict, "list": func(items ...string) []string { return items }, "text": text,
	}
}

// group writes a whole number so that it can be read: 12,400.
func group(n any) string {
	digits := fmt.Sprint(deref(n))
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return sign + digits
}

// percent never says 100 % of what is not full.
func percent(share float64) string {
	p := math.Floor(share*100 + 1e-9)
	if p < 1 && share > 0 {
		return "<1 %"
	}
	return strconv.Itoa(int(p)) + " %"
}

// shareOf is part of a whole, 0…1; of nothing all is used.
func shareOf(part, whole int64) float64 {
	if whole <= 0 {
		return 1
	}
	return float64(part) / float64(whole)
}

// percentOf is percent of any float.
func percentOf(share any) string {
	f := reflect.ValueOf(deref(share))
	if !f.CanFloat() {
		return ""
	}
	return percent(f.Float())
}

// rateText is hits per second, with a decimal where it says something.
func rateText(perSecond float64) string {
	if perSecond > 0 && perSecond < 10 {
		return strconv.FormatFloat(perSecond, 'f', 1, 64)
	}
	return group(int64(math.Round(perSecond)))
}

// spanText is a number of milliseconds as operators write it: 1m.
func spanText(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	for _, unit := range []struct {
		of   time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}} {
		if d >= unit.of && d%unit.of == 0 {
			return strconv.FormatInt(int64(d/unit.of), 10) + " " + unit.name
		}
	}
	return strconv.FormatInt(ms, 10) + " ms"
}

// gauge is a bar of 0…100 with what it means.
type gauge struct {
	Width string // in percent of the bar
	Level string // "calm", "high" from 80 %, "full" at 100 %
	Text  string
}

func gaugeOf(share float64) gauge {
	share = min(1, max(0, share))
	g := gauge{Width: strconv.FormatFloat(share*100, 'f', 1, 64), Level: "calm", Text: percent(share)}
	switch {
	case share >= 1:
		g.Level = "full"
	case share >= 0.8:
		g.Level = "high"
	}
	return g
}

// moment is a time as pages show it: exact, with its zone, and how far away.
type moment struct {
	Zero            bool
	Machine         string
	Exact, Relative string
}

func momentOf(at any, now time.Time) moment {
	t, ok := deref(at).(time.Time)
	if !ok || t.IsZero() {
		return moment{Zero: true}
	}
	t = t.UTC()
	return moment{Machine: t.Format(time.RFC3339), Exact: t.Format("2006-01-02 15:04 MST"), Relative: relative(now.Sub(t))}
}

// relative says how long ago, or in how long for what lies ahead.
func relative(ago time.Duration) string {
	d, unit, name := ago.Abs(), 24*time.Hour, "days"
	switch {
	case d < 10*time.Second:
		return "now"
	case d < time.Minute:
		unit, name = time.Second, "s"
	case d < time.Hour:
		unit, name = time.Minute, "min"
	case d < 48*time.Hour:
		unit, name = time.Hour, "h"
	}
	if ago < 0 { // what was set to end in 24 h says so, and not 23
		return fmt.Sprintf("in %d %s", d.Round(unit)/unit, name)
	}
	return fmt.Sprintf("%d %s ago", d/unit, name)
}

// standing of a credential: "active", "expired" or "revoked".
func standing(expires, revoked *time.Time, now time.Time) string {
	switch {
	case revoked != nil:
		return "revoked"
	case expires != nil && !expires.After(now):
		return "expired"
	}
	return "active"
}

// jsonText is a value as JSON, for people and for data attributes.
func jsonText(v any) (string, error) {
	raw, err := json.Marshal(v)
	return string(raw), err
}

// text is a value without its pointer; nothing for nil.
func text(v any) string {
	if v = deref(v); v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// dict hands several values to a part.
func dict(pairs ...any) (map[string]any, error) {
	if len(pairs)%2 != 0 {
		return nil, fmt.Errorf("dict: %d values are not pairs", len(pairs))
	}
	m := make(map[string]any, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("dict: %v is not a name", pairs[i])
		}
		m[name] = pairs[i+1]
	}
	return m, nil
}

// deref follows one pointer; a nil pointer is nil.
func deref(v any) any {
	r := reflect.ValueOf(v)
	if r.Kind() != reflect.Pointer {
		return v
	}
	if r.IsNil() {
		return nil
	}
	return r.Elem().Interface()
}
