package alert_test

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/alert"
)

// example is the incident that docs/alerts.md shows.
func example() *alert.Notice {
	return &alert.Notice{
		Facts: alert.Facts{
			Tenant: "school-17", TenantName: "School 17", Plan: "light", Limit: "requests-per-minute", Quota: 2000, Window: time.Minute,
			Slowed: true, At: 0.8, Below: 0.7, For: 10 * time.Minute,
		},
		Kind: alert.TenantHigh, Occasion: alert.OnOpen, IncidentID: 42, Since: noon(), OpenedAt: noon().Add(10 * time.Minute),
		Made: noon().Add(10*time.Minute + 4*time.Second), Value: 0.855, Peak: 0.87,
	}
}

// The mail and the webhook in docs/alerts.md are what is sent.
func TestTheDocumentedMailAndWebhookAreReal(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/alerts.md")
	require.NoError(t, err)
	o, err := alert.NewOutlets(nil, nil, nil, "https://pegel.example.org/dashboard")
	require.NoError(t, err)
	p, err := o.Post([]alert.Message{{Channel: alert.Mail, Notice: *example()}})
	require.NoError(t, err)
	require.Contains(t, string(page), "```text\nSubject: "+p.Subject+"\n\n"+p.Text+"```\n")

	key, err := alert.ParseHookSecret(hookSecret)
	require.NoError(t, err)
	poster, err := alert.NewPoster("https://example.org", key, "https://pegel.example.org/dashboard", nil)
	require.NoError(t, err)
	body, err := poster.Body(example())
	require.NoError(t, err)
	var pretty bytes.Buffer
	require.NoError(t, json.Indent(&pretty, body, "", "  "))
	require.Contains(t, string(page), "```json\n"+pretty.String()+"\n```\n")
}

func TestWordsSayWhoWhatAndSinceWhen(t *testing.T) {
	t.Parallel()
	for on, want := range map[alert.Occasion]string{
		alert.OnOpen: "school-17 at 87 % of requests-per-minute for 10 min", alert.OnReminder: "still: school-17 at 87 % of requests-per-minute for 10 min",
		alert.OnResolve: "school-17 is below 70 % of requests-per-minute again", alert.OnTest: "test: school-17 at 87 % of requests-per-minute for 10 min",
	} {
		n := example()
		n.Occasion, n.ResolvedAt = on, noon().Add(90*time.Minute)
		require.Equal(t, want, alert.Tell(n, "").Headline)
	}
	for window, want := range map[time.Duration]string{
		time.Hour: "2,000 per hour", 24 * time.Hour: "2,000 per day", 90 * time.Second: "2,000 per 90 s", 36 * time.Hour: "2,000 per 36 h", 30 * time.Second: "2,000 per 30 s",
	} {
		n := example()
		n.Window = window
		require.Contains(t, alert.Tell(n, "").Lead, "("+want+")")
	}
	for _, k := range alert.Kinds() {
		for _, on := range []alert.Occasion{alert.OnOpen, alert.OnReminder, alert.OnResolve} {
			n := example()
			n.Kind, n.Occasion, n.Name, n.Replicas = k, on, "redis", []string{"pegel-1: down"}
			w := alert.Tell(n, "https://pegel.example.org/dashboard")
			require.NotEmpty(t, w.Headline)
			require.NotEmpty(t, w.Lead)
			require.NotEmpty(t, w.Meaning)
			require.NotEmpty(t, w.Facts)
			require.Contains(t, w.Link, "https://pegel.example.org/dashboard/")
			require.Equal(t, on == alert.OnResolve, w.Over)
		}
	}
}
