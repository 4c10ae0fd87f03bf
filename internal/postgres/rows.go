package postgres

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// Rows as they may be found, not only as we write them: whoever has the database can put NULL, nonsense or a megabyte into
// a column, constraints or not. Every column is read into a type that holds anything, and judged afterwards.

// columnsOfLimit are shared by limits and address_limits. Long text is cut in the query so that a megabyte stays there.
const columnsOfLimit = `left(l.name, 100), l.algorithm, l.quota, l.window_ms, l.refill_units, l.refill_every_ms, l.cost,
	l.slowdown_from, l.slowdown_max_delay_ms, l.on_store_failure, l.mode, l.match_methods, l.match_paths`

type limitRow struct {
	Name, Algorithm            *string
	Quota, WindowMS            *int64
	RefillUnits, RefillEveryMS *int64
	Cost                       *int64
	SlowdownFrom               *float64
	SlowdownMaxDelayMS         *int64
	OnStoreFailure, Mode       *string
	Methods, Paths             []*string
}

var errNull = errors.New("a column that must have a value is NULL")

// rule is the limit in a row; errNull where it says too little. Values out of bounds are validation's to find.
func (r *limitRow) rule(scope ratelimit.Scope) (tenants.Rule, error) {
	if r.Name == nil || r.Algorithm == nil || r.Quota == nil || r.Cost == nil || r.OnStoreFailure == nil || r.Mode == nil {
		return tenants.Rule{}, errNull
	}
	methods, okMethods := texts(r.Methods)
	paths, okPaths := texts(r.Paths)
	if !okMethods || !okPaths {
		return tenants.Rule{}, errNull
	}
	rule := tenants.Rule{
		Limit: ratelimit.Limit{
			Name: *r.Name, Scope: scope, Algorithm: ratelimit.Algorithm(*r.Algorithm), Quota: *r.Quota,
			Window: millis(r.WindowMS), Refill: ratelimit.Rate{Units: orZero(r.RefillUnits), Every: millis(r.RefillEveryMS)},
			Cost: *r.Cost, OnStoreFailure: ratelimit.FailureMode(*r.OnStoreFailure), Mode: ratelimit.Mode(*r.Mode),
		},
		Match: tenants.Match{Methods: methods, Paths: paths},
	}
	if r.SlowdownFrom != nil || r.SlowdownMaxDelayMS != nil {
		if r.SlowdownFrom == nil || r.SlowdownMaxDelayMS == nil {
			return tenants.Rule{}, errNull
		}
		rule.Slowdown = &ratelimit.Slowdown{From: *r.SlowdownFrom, MaxDelay: millis(r.SlowdownMaxDelayMS)}
	}
	return rule, nil
}

// limitArgs are the values of a rule in the order of the columns after its place and scope.
func limitArgs(r *tenants.Rule) []any {
	var from *float64
	var maxDelay *int64
	if r.Slowdown != nil {
		from, maxDelay = &r.Slowdown.From, ptr(r.Slowdown.MaxDelay.Milliseconds())
	}
	var window, units, every *int64
	if r.Algorithm.Bucket() {
		units, every = &r.Refill.Units, ptr(r.Refill.Every.Milliseconds())
	} else {
		window = ptr(r.Window.Milliseconds())
	}
	return []any{
		r.Name, string(r.Algorithm), r.Quota, window, units, every, r.Cost, from, maxDelay,
		string(r.OnStoreFailure), string(r.Mode), noNil(r.Match.Methods), noNil(r.Match.Paths),
	}
}

// textOf is a text column's value; NULL is a finding.
func textOf(s *string, err *error) string {
	if s == nil {
		*err = together(*err, errNull)
		return ""
	}
	return *s
}

// moment reads a timestamp that must be there. Infinity is nobody's creation time; it is only shown, so it becomes zero, and
// so does a year that RFC 3339, and with it JSON, cannot write.
func moment(t pgtype.Timestamptz) time.Time {
	if !t.Valid || t.InfinityModifier != pgtype.Finite {
		return time.Time{}
	}
	if at := t.Time.UTC(); at.Year() >= 1 && at.Year() <= 9999 {
		return at
	}
	return time.Time{}
}

// end reads a moment after which something no longer holds: NULL, infinity and years beyond 9999 are never, which is the
// zero time; -infinity and everything up to the year 1, which has the zero time in it, are long past.
func end(t pgtype.Timestamptz) time.Time {
	if t.Valid && (t.InfinityModifier == pgtype.NegativeInfinity || t.InfinityModifier == pgtype.Finite && t.Time.UTC().Year() <= 1) {
		return time.Unix(0, 0).UTC()
	}
	return moment(t)
}

// nullable stores the zero time as NULL.
func nullable(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func metadataOf(raw *string) (map[string]string, error) {
	if raw == nil {
		return map[string]string{}, errNull
	}
	m := map[string]string{}
	if err := json.Unmarshal([]byte(*raw), &m); err != nil {
		return map[string]string{}, errors.New("metadata is not an object of strings")
	}
	return m, nil
}

func hashOf(raw []byte) (hash [32]byte, err error) {
	if len(raw) != len(hash) {
		return hash, errors.New("the hash does not have 32 bytes")
	}
	return [32]byte(raw), nil
}

// invalid is what validation found, as one error that repeats no value.
func invalid(found []tenants.FieldError) error {
	if len(found) == 0 {
		return nil
	}
	parts := make([]string, len(found))
	for i, f := range found {
		parts[i] = f.Pointer + " " + f.Message
	}
	return errors.New(strings.Join(parts, "; "))
}

// together is several findings about one row as one line; nil when there are none, each text once.
func together(errs ...error) error {
	var texts []string
	for _, err := range errs {
		if err != nil && !slices.Contains(texts, err.Error()) {
			texts = append(texts, err.Error())
		}
	}
	if len(texts) == 0 {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}

func broken(table, id string, err error) tenants.BrokenRow {
	return tenants.BrokenRow{Table: table, ID: id, Err: err}
}

// cut names a row in a log line, however long its name is.
func cut(id string) string {
	if len(id) > 100 {
		return fmt.Sprintf("%q…", id[:100])
	}
	return id
}

func texts(in []*string) ([]string, bool) {
	if len(in) == 0 {
		return nil, true
	}
	out := make([]string, len(in))
	for i, s := range in {
		if s == nil {
			return nil, false
		}
		out[i] = *s
	}
	return out, true
}

// maxMillis is the longest duration in milliseconds that Go can hold.
const maxMillis = int64(1<<63-1) / int64(time.Millisecond)

func millis(ms *int64) time.Duration {
	return time.Duration(min(max(orZero(ms), -maxMillis), maxMillis)) * time.Millisecond
}

func orZero[T any](v *T) (zero T) {
	if v == nil {
		return zero
	}
	return *v
}

func ptr[T any](v T) *T { return &v }

func noNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
