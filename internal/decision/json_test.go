package decision

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// plainAnswer and plainRefusal are the bodies without their methods: encoding/json writes them by their tags.
type plainAnswer Answer

type plainRefusal struct {
	problem.Problem
	plainAnswer

	WindowSeconds     *float64 `json:"window_seconds"`
	RetryAfterSeconds Number   `json:"retry_after_seconds,omitzero"`
	RetryAfterAt      string   `json:"retry_after_at,omitempty"`
}

func drawNumber(t *rapid.T, name string) Number {
	return Number{value: rapid.Int64().Draw(t, name), state: rapid.Uint8Range(0, 2).Draw(t, name+" state")}
}

func draw[E any](t *rapid.T, name string, g *rapid.Generator[E]) *E {
	return rapid.Ptr(g, true).Draw(t, name)
}

func TestBodiesWrittenByHandAreWhatTheirTagsSay(t *testing.T) {
	t.Parallel()
	text := rapid.OneOf(rapid.StringMatching(`[a-z-]{0,12}`), rapid.String())
	rapid.Check(t, func(t *rapid.T) {
		a := Answer{
			Decision: Verdict(text.Draw(t, "decision")), Allowed: rapid.Bool().Draw(t, "allowed"), DecisionID: text.Draw(t, "id"),
			Tenant: draw(t, "tenant", text), Plan: draw(t, "plan", text), Source: ratelimit.Source(text.Draw(t, "source")), LimitName: draw(t, "limit", text),
			Limit: drawNumber(t, "quota"), Remaining: drawNumber(t, "remaining"), Used: drawNumber(t, "used"),
			Utilization: draw(t, "utilization", rapid.Float64Range(0, 1)), DelayMS: rapid.Int64().Draw(t, "delay"),
			ResetAfterMS: drawNumber(t, "reset"), RetryAfterMS: drawNumber(t, "retry"), Limits: []LimitBody{},
		}
		for range rapid.IntRange(0, 3).Draw(t, "limits") {
			effective := ratelimit.Algorithm(text.Draw(t, "effective"))
			l := LimitBody{
				Name: text.Draw(t, "name"), Scope: ratelimit.Scope(text.Draw(t, "scope")), Algorithm: ratelimit.Algorithm(text.Draw(t, "algorithm")),
				WindowMS: rapid.Int64().Draw(t, "window"), Limit: rapid.Int64().Draw(t, "quota"), Used: drawNumber(t, "used"), Remaining: drawNumber(t, "remaining"),
				DelayMS: rapid.Int64().Draw(t, "delay"), ResetAfterMS: drawNumber(t, "reset"), RetryAfterMS: drawNumber(t, "retry"), Mode: ratelimit.Mode(text.Draw(t, "mode")),
			}
			if rapid.Bool().Draw(t, "decided") {
				l.EffectiveAlgorithm = &effective
			}
			a.Limits = append(a.Limits, l)
		}
		requireSame(t, plainAnswer(a), &a)

		r := Refusal{
			Problem: problem.New(problem.RateLimitExceeded, text.Draw(t, "detail"), text.Draw(t, "request")), Answer: a,
			WindowSeconds: draw(t, "seconds", rapid.Float64Range(0, 1e9)), RetryAfterSeconds: drawNumber(t, "wait"), RetryAfterAt: text.Draw(t, "at"),
		}
		requireSame(t, plainRefusal{r.Problem, plainAnswer(r.Answer), r.WindowSeconds, r.RetryAfterSeconds, r.RetryAfterAt}, &r)
	})
}

func requireSame(t *rapid.T, byTags, byHand any) {
	want, err := json.Marshal(byTags)
	require.NoError(t, err)
	got, err := json.Marshal(byHand)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}
