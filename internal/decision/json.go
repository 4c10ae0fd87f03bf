package decision

import (
	"encoding/json"
	"strconv"

	"github.com/pegel-dev/pegel/internal/problem"
)

// Bodies are written by hand: reflection over some thirty members costs several times what deciding does, and a refusal
// must cost next to nothing. A test holds both forms equal. The struct tags say what is written and are what reads it.

// MarshalJSON is AppendJSON.
func (a Answer) MarshalJSON() ([]byte, error) { return a.AppendJSON(make([]byte, 0, bodySize)), nil }

// MarshalJSON is AppendJSON.
func (r Refusal) MarshalJSON() ([]byte, error) {
	return r.AppendJSON(make([]byte, 0, bodySize)), nil
}

// bodySize holds the answer about one limit.
const bodySize = 1024

// AppendJSON appends the body as compact JSON.
func (a *Answer) AppendJSON(b []byte) []byte {
	b = a.appendMembers(append(b, '{'))
	return append(b, '}')
}

// AppendJSON appends the body as compact JSON: the problem's members, the decision's, then its own.
func (r *Refusal) AppendJSON(b []byte) []byte {
	b = appendProblem(append(b, '{'), &r.Problem)
	b = r.appendMembers(append(b, ','))
	b = append(b, `,"window_seconds":`...)
	if r.WindowSeconds == nil {
		b = append(b, "null"...)
	} else {
		b = appendFloat(b, *r.WindowSeconds)
	}
	b = appendOptional(b, `,"retry_after_seconds":`, r.RetryAfterSeconds)
	if r.RetryAfterAt != "" {
		b = appendString(append(b, `,"retry_after_at":`...), r.RetryAfterAt)
	}
	return append(b, '}')
}

func appendProblem(b []byte, p *problem.Problem) []byte {
	b = appendString(append(b, `"type":`...), p.Type)
	b = appendString(append(b, `,"title":`...), p.Title)
	b = strconv.AppendInt(append(b, `,"status":`...), int64(p.Status), 10)
	b = appendString(append(b, `,"detail":`...), p.Detail)
	b = appendString(append(b, `,"error":`...), p.Error)
	return appendString(append(b, `,"request_id":`...), p.RequestID)
}

func (a *Answer) appendMembers(b []byte) []byte {
	b = appendString(append(b, `"decision":`...), string(a.Decision))
	b = strconv.AppendBool(append(b, `,"allowed":`...), a.Allowed)
	b = appendString(append(b, `,"decision_id":`...), a.DecisionID)
	b = appendText(append(b, `,"tenant":`...), a.Tenant)
	b = appendText(append(b, `,"plan":`...), a.Plan)
	b = appendString(append(b, `,"source":`...), string(a.Source))
	b = appendText(append(b, `,"limit_name":`...), a.LimitName)
	b = appendNumber(append(b, `,"limit":`...), a.Limit)
	b = appendNumber(append(b, `,"remaining":`...), a.Remaining)
	b = appendNumber(append(b, `,"used":`...), a.Used)
	b = append(b, `,"utilization":`...)
	if a.Utilization == nil {
		b = append(b, "null"...)
	} else {
		b = appendFloat(b, *a.Utilization)
	}
	b = strconv.AppendInt(append(b, `,"delay_ms":`...), a.DelayMS, 10)
	b = appendNumber(append(b, `,"reset_after_ms":`...), a.ResetAfterMS)
	b = appendOptional(b, `,"retry_after_ms":`, a.RetryAfterMS)
	b = append(b, `,"limits":[`...)
	for i := range a.Limits {
		if i > 0 {
			b = append(b, ',')
		}
		b = a.Limits[i].append(b)
	}
	return append(b, ']')
}

func (l *LimitBody) append(b []byte) []byte {
	b = appendString(append(b, `{"name":`...), l.Name)
	b = appendString(append(b, `,"scope":`...), string(l.Scope))
	b = appendString(append(b, `,"algorithm":`...), string(l.Algorithm))
	b = append(b, `,"effective_algorithm":`...)
	if l.EffectiveAlgorithm == nil {
		b = append(b, "null"...)
	} else {
		b = appendString(b, string(*l.EffectiveAlgorithm))
	}
	b = strconv.AppendInt(append(b, `,"window_ms":`...), l.WindowMS, 10)
	b = strconv.AppendInt(append(b, `,"limit":`...), l.Limit, 10)
	b = appendNumber(append(b, `,"used":`...), l.Used)
	b = appendNumber(append(b, `,"remaining":`...), l.Remaining)
	b = strconv.AppendInt(append(b, `,"delay_ms":`...), l.DelayMS, 10)
	b = appendNumber(append(b, `,"reset_after_ms":`...), l.ResetAfterMS)
	b = appendOptional(b, `,"retry_after_ms":`, l.RetryAfterMS)
	b = appendString(append(b, `,"mode":`...), string(l.Mode))
	return append(b, '}')
}

func appendNumber(b []byte, n Number) []byte {
	if n.state != numberSet {
		return append(b, "null"...)
	}
	return strconv.AppendInt(b, n.value, 10)
}

// appendOptional leaves an absent number out, name and all.
func appendOptional(b []byte, name string, n Number) []byte {
	if n.IsZero() {
		return b
	}
	return appendNumber(append(b, name...), n)
}

func appendText(b []byte, s *string) []byte {
	if s == nil {
		return append(b, "null"...)
	}
	return appendString(b, *s)
}

// appendString leaves everything but plain ASCII to encoding/json.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			quoted, _ := json.Marshal(s) // a string always marshals
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// appendFloat leaves what needs an exponent to encoding/json.
func appendFloat(b []byte, f float64) []byte {
	if f != 0 && (f < 1e-6 || f >= 1e21) {
		exponent, err := json.Marshal(f)
		if err != nil { // neither infinite nor NaN by construction
			return append(b, '0')
		}
		return append(b, exponent...)
	}
	return strconv.AppendFloat(b, f, 'f', -1, 64)
}

var (
	_ json.Marshaler = Number{}
	_ json.Marshaler = Answer{}
	_ json.Marshaler = Refusal{}
)
