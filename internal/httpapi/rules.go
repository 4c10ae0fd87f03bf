package httpapi

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// durations reads the durations of a body and keeps what is wrong with them.
type durations struct{ wrong []problem.FieldError }

// read reads a duration such as 500ms, 1m or 24h; the contract's pattern held already, so only its size can be wrong.
func (d *durations) read(pointer, text string) time.Duration {
	v, err := time.ParseDuration(text)
	if err != nil {
		d.wrong = append(d.wrong, problem.FieldError{Pointer: pointer, Message: "must be a duration such as 500ms, 1m or 24h, and not so long"})
	}
	return v
}

func (d *durations) err() error {
	if len(d.wrong) == 0 {
		return nil
	}
	return invalidFields(d.wrong)
}

// formatDuration writes a duration as operators do: 1m and not 1m0s.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// readRules turns the limits of a body into rules; at is the pointer of the list. What is left out stays empty: SetDefaults
// knows what it means.
func readRules(d *durations, at string, limits []gen.Limit) []tenants.Rule {
	rules := make([]tenants.Rule, len(limits))
	for i := range limits {
		rules[i] = readRule(d, at+"/"+strconv.Itoa(i), &limits[i])
	}
	return rules
}

func readRule(d *durations, at string, in *gen.Limit) tenants.Rule {
	r := tenants.Rule{AppliesTo: tenants.AppliesTo(orZero(in.AppliesTo)), Limit: ratelimit.Limit{
		Name: in.Name, Scope: ratelimit.Scope(orZero(in.Scope)), Algorithm: ratelimit.Algorithm(orZero(in.Algorithm)),
		Quota: in.Limit, Cost: orZero(in.Cost),
		OnStoreFailure: ratelimit.FailureMode(orZero(in.OnStoreFailure)), Mode: ratelimit.Mode(orZero(in.Mode)),
	}}
	if in.Window != nil {
		r.Window = d.read(at+"/window", *in.Window)
	}
	if in.Refill != nil {
		r.Refill = ratelimit.Rate{Units: in.Refill.Units, Every: d.read(at+"/refill/every", in.Refill.Every)}
	}
	if in.Slowdown != nil {
		r.Slowdown = &ratelimit.Slowdown{From: in.Slowdown.From, MaxDelay: d.read(at+"/slowdown/max_delay", in.Slowdown.MaxDelay)}
	}
	if in.Match != nil {
		r.Match = tenants.Match{Methods: orZero(in.Match.Methods), Paths: orZero(in.Match.Paths)}
	}
	return r
}

func showRules(rules []tenants.Rule) []gen.Limit {
	limits := make([]gen.Limit, len(rules))
	for i := range rules {
		limits[i] = showRule(&rules[i])
	}
	return limits
}

// showRule writes every setting out, defaults included, and leaves out what the algorithm does not have.
func showRule(r *tenants.Rule) gen.Limit {
	l := gen.Limit{
		Name: r.Name, Scope: pointer(gen.Scope(r.Scope)), Algorithm: pointer(gen.Algorithm(r.Algorithm)), Limit: r.Quota, Cost: pointer(r.Cost),
		OnStoreFailure: pointer(gen.FailureMode(r.OnStoreFailure)), Mode: pointer(gen.Mode(r.Mode)),
	}
	if r.Algorithm.Bucket() {
		l.Refill = &gen.Refill{Units: r.Refill.Units, Every: formatDuration(r.Refill.Every)}
	} else {
		l.Window = pointer(formatDuration(r.Window))
	}
	if r.Slowdown != nil {
		l.Slowdown = &gen.Slowdown{From: r.Slowdown.From, MaxDelay: formatDuration(r.Slowdown.MaxDelay)}
	}
	if !r.Match.Empty() {
		l.Match = &gen.Match{Methods: listOrNil(r.Match.Methods), Paths: listOrNil(r.Match.Paths)}
	}
	if r.AppliesTo != "" {
		l.AppliesTo = pointer(gen.LimitAppliesTo(r.AppliesTo))
	}
	return l
}

func listOrNil(list []string) *[]string {
	if len(list) == 0 {
		return nil
	}
	return &list
}

func pointer[T any](v T) *T { return &v }

func orZero[T any](v *T) T {
	if v == nil {
		var zero T
		return zero
	}
	return *v
}

// readEnd is an end in a body as the database keeps it, so that comparing with what is stored finds it the same; zero without one.
// The zero moment is a moment: an end long ago, and not none at all.
func readEnd(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	if end := t.Truncate(time.Microsecond); !end.IsZero() {
		return end
	}
	return time.Time{}.Add(time.Microsecond)
}

// timeOrNull is a moment in UTC, null for never.
func timeOrNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return pointer(t.UTC())
}

// unmarshalPointer is where encoding/json stumbled over a number. It tells the names on the way and no element numbers: those are
// looked for in the body.
func unmarshalPointer(raw []byte, err error) string {
	var wrongType *json.UnmarshalTypeError
	if !errors.As(err, &wrongType) || wrongType.Field == "" {
		return ""
	}
	names := strings.Split(wrongType.Field, ".")
	if body, err := parseJSON(raw); err == nil {
		if pointer, ok := oddNumber(body, names); ok {
			return pointer
		}
	}
	return "/" + strings.Join(names, "/")
}

// oddNumber finds the first number below some names that is no integer of 64 bits.
func oddNumber(value any, names []string) (pointer string, ok bool) {
	switch v := value.(type) {
	case json.Number:
		_, err := strconv.ParseInt(v.String(), 10, 64)
		return "", err != nil && len(names) == 0
	case map[string]any:
		if len(names) > 0 {
			pointer, ok = oddNumber(v[names[0]], names[1:])
			return "/" + names[0] + pointer, ok
		}
	case []any:
		for i := range v {
			if pointer, ok = oddNumber(v[i], names); ok {
				return "/" + strconv.Itoa(i) + pointer, true
			}
		}
	}
	return "", false
}
