package dashboard

import (
	"math"
	"strconv"
	"strings"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// limitFields is one limit as its fieldset shows it: every value as text.
type limitFields struct {
	At      int
	Address bool // of the address policy: its scope is fixed, and it says whom it counts

	Name, Scope, Algorithm, Limit, Window, RefillUnits, RefillEvery, Cost string
	SlowFrom, SlowDelay, OnStoreFailure, Mode, Methods, Paths, AppliesTo  string
}

// limitValues are the fields' names behind "limits.<n>.", with where each is in the fieldset.
func (l *limitFields) fields() map[string]*string {
	return map[string]*string{
		"name": &l.Name, "scope": &l.Scope, "algorithm": &l.Algorithm, "limit": &l.Limit, "window": &l.Window, "refill_units": &l.RefillUnits,
		"refill_every": &l.RefillEvery, "cost": &l.Cost, "slow_from": &l.SlowFrom, "slow_delay": &l.SlowDelay,
		"on_store_failure": &l.OnStoreFailure, "mode": &l.Mode, "methods": &l.Methods, "paths": &l.Paths, "applies_to": &l.AppliesTo,
	}
}

// newLimit is the fieldset of a limit that is not there yet.
func newLimit(at int, address bool) limitFields {
	l := limitFields{At: at, Address: address, Scope: "tenant", Algorithm: "sliding_window_log", Window: "1m", Cost: "1", OnStoreFailure: "open", Mode: "enforce"}
	if address {
		l.Scope, l.AppliesTo = "address", "anonymous"
	}
	return l
}

func showLimits(limits []gen.Limit, address bool) []limitFields {
	out := make([]limitFields, len(limits))
	for i := range limits {
		out[i] = showLimit(i, &limits[i], address)
	}
	return out
}

func showLimit(at int, l *gen.Limit, address bool) limitFields {
	f := limitFields{
		At: at, Address: address, Name: l.Name, Scope: text(l.Scope), Algorithm: text(l.Algorithm), Limit: strconv.FormatInt(l.Limit, 10),
		Window: text(l.Window), Cost: text(l.Cost), OnStoreFailure: text(l.OnStoreFailure), Mode: text(l.Mode), AppliesTo: text(l.AppliesTo),
	}
	if l.Refill != nil {
		f.RefillUnits, f.RefillEvery = strconv.FormatInt(l.Refill.Units, 10), l.Refill.Every
	}
	if l.Slowdown != nil {
		f.SlowFrom, f.SlowDelay = strconv.FormatFloat(l.Slowdown.From*100, 'f', -1, 64), l.Slowdown.MaxDelay
	}
	if l.Match != nil {
		if l.Match.Methods != nil {
			f.Methods = strings.Join(*l.Match.Methods, " ")
		}
		if l.Match.Paths != nil {
			f.Paths = strings.Join(*l.Match.Paths, "\n")
		}
	}
	return f
}

// sentLimits reads the fieldsets back as they were sent. A limit that was taken out is left out, and one that was asked for
// is added; moved says that either happened, so that the form is shown again and nothing is saved.
func sentLimits(f *form, address bool) (limits []limitFields, moved bool) {
	n, err := strconv.Atoi(f.text("limits"))
	if err != nil || n < 0 {
		n = 0
	}
	for i := range min(n, tenants.MaxLimits) {
		prefix := "limits." + strconv.Itoa(i) + "."
		if f.Values.Get("remove") == strconv.Itoa(i) {
			moved = true
			continue
		}
		l := limitFields{At: len(limits), Address: address}
		for name, into := range l.fields() {
			*into = f.Values.Get(prefix + name)
		}
		limits = append(limits, l)
	}
	if f.Values.Get("add") != "" && len(limits) < tenants.MaxLimits {
		return append(limits, newLimit(len(limits), address)), true
	}
	return limits, moved
}

// readLimits is what the API is asked to store. What is empty is left out; what is not a number is noted in the form.
func readLimits(f *form, fields []limitFields) []map[string]any {
	limits := make([]map[string]any, len(fields))
	for i := range fields {
		limits[i] = fields[i].read(f)
	}
	return limits
}

func (l *limitFields) read(f *form) map[string]any {
	at := "/limits/" + strconv.Itoa(l.At)
	body := map[string]any{"name": strings.TrimSpace(l.Name), "limit": whole(f, l.Limit, at+"/limit")}
	for name, value := range map[string]string{
		"scope": l.Scope, "algorithm": l.Algorithm, "on_store_failure": l.OnStoreFailure, "mode": l.Mode, "applies_to": l.AppliesTo,
	} {
		if value != "" {
			body[name] = value
		}
	}
	if strings.TrimSpace(l.Cost) != "" {
		body["cost"] = whole(f, l.Cost, at+"/cost")
	}
	if l.Algorithm == "token_bucket" || l.Algorithm == "leaky_bucket" {
		body["refill"] = map[string]any{"units": whole(f, l.RefillUnits, at+"/refill/units"), "every": strings.TrimSpace(l.RefillEvery)}
	} else {
		body["window"] = strings.TrimSpace(l.Window)
	}
	if from := strings.TrimSpace(l.SlowFrom); from != "" {
		body["slowdown"] = map[string]any{"from": share(f, from, at+"/slowdown/from"), "max_delay": strings.TrimSpace(l.SlowDelay)}
	}
	match := map[string]any{}
	if methods := words(l.Methods); len(methods) > 0 {
		match["methods"] = methods
	}
	if paths := words(l.Paths); len(paths) > 0 {
		match["paths"] = paths
	}
	if len(match) > 0 {
		body["match"] = match
	}
	return body
}

func whole(f *form, value, pointer string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
	if err != nil {
		f.wrong(pointer, "must be a whole number, without separators")
	}
	return n
}

// share reads a number of percent, with or without its sign, as a part of 1.
func share(f *form, value, pointer string) float64 {
	percent, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "%")), 64)
	if err != nil || math.IsNaN(percent) || math.IsInf(percent, 0) {
		f.wrong(pointer, "must be a number of percent, such as 80")
		return 0
	}
	return percent / 100
}

// words splits at spaces, commas and line ends.
func words(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || r == ',' || r == '\n' || r == '\r' || r == '\t' })
}
