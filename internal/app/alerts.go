package app

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pegel-dev/pegel/internal/alert"
	"github.com/pegel-dev/pegel/internal/postgres"
)

// newOutlets are the ways alerts go out by the settings.
func newOutlets(c *Config) (*alert.Outlets, error) {
	var mailer *alert.Mailer
	if c.SMTPURL != "" {
		server, err := alert.ParseMailServer(string(c.SMTPURL))
		if err != nil {
			return nil, settingErrorf(smtpSetting, "%v", err)
		}
		mailer = alert.NewMailer(server, c.MailFrom[0], nil)
	}
	var poster *alert.Poster
	if c.AlertWebhookURL != "" {
		key, err := alert.ParseHookSecret(string(c.AlertWebhookSecret))
		if err != nil {
			return nil, settingErrorf(hookSecretSetting, "%v", err)
		}
		if poster, err = alert.NewPoster(string(c.AlertWebhookURL), key, c.DashboardURL, nil); err != nil {
			return nil, settingErrorf(hookSetting, "%v", err)
		}
	}
	return alert.NewOutlets(mailer, c.AlertTo, poster, c.DashboardURL)
}

// openAlerts prepares alerts; work starts them.
func (a *App) openAlerts() error {
	outlets, err := newOutlets(a.cfg)
	if err != nil {
		return err
	}
	instance := uuid.NewString()
	a.alerts = alert.New(alert.Config{
		Ledger: postgres.NewAlerts(a.repository, nil), Directory: a.directory, Usage: a.reporter,
		Self: func() alert.Replica {
			return alert.Replica{
				Name: a.name, Instance: instance, Source: string(a.health.source()), Redis: a.health.redis(), Postgres: a.health.postgres(),
			}
		},
		Lost:    func() int64 { return a.journal.Stats().DroppedRequests },
		Outlets: outlets, Policy: alert.Policy{Contact: a.cfg.AlertTenantContact, Reminder: a.cfg.AlertReminder},
		Now: a.now, Log: a.log, Counted: countMessages(a.metrics),
	})
	a.observeAlerts()
	return nil
}

// countMessages counts what became of attempts to send, by channel.
func countMessages(r prometheus.Registerer) func(alert.Channel, string) {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pegel_alert_messages_total", Help: "Attempts to send messages of alerts, by what became of them.",
	}, []string{"channel", "result"})
	r.MustRegister(vec)
	return func(channel alert.Channel, result string) { vec.WithLabelValues(string(channel), result).Inc() }
}

func (a *App) observeAlerts() {
	a.metrics.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "pegel_alerts_open", Help: "Open incidents, over all replicas."},
			func() float64 { return float64(a.alerts.Stats().Open) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "pegel_alert_messages_waiting", Help: "Messages of alerts that are not sent yet, over all replicas."},
			func() float64 { return float64(a.alerts.Stats().Waiting) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "pegel_alert_subjects_refused_total", Help: "Times that a tenant could not be followed for alerts because too many are high at once.",
		}, func() float64 { return float64(a.alerts.Stats().Refused) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pegel_alert_judgement_age_seconds", Help: "Time since this replica last judged whether something is wrong; 0 before the first time.",
		}, func() float64 {
			at := a.alerts.Stats().JudgedAt
			if at.IsZero() {
				return 0
			}
			return a.now().Sub(at).Seconds()
		}),
	)
}

// AlertTest is what became of a test message on one channel.
type AlertTest struct {
	Channel string // "mail" or "webhook"
	// Error is why it did not get through; empty: it did.
	Error string
}

// AlertSetting reports whether a setting is one of those that TestAlerts reads.
func AlertSetting(s Setting) bool {
	return slices.ContainsFunc(alertSettings(), func(other Setting) bool { return other.Env == s.Env })
}

// TestAlerts sends a made-up incident on every channel that the settings name. It needs no database.
func TestAlerts(ctx context.Context, src Sources, now time.Time) ([]AlertTest, error) {
	cfg, err := read(src, func(s *Setting) bool { return AlertSetting(*s) })
	if err != nil {
		return nil, err
	}
	if err := cfg.checkAlerts(); err != nil {
		return nil, err
	}
	outlets, err := newOutlets(cfg)
	if err != nil {
		return nil, err
	}
	fates, err := outlets.Test(ctx, now, uuid.NewString())
	if err != nil {
		return nil, fmt.Errorf("test alerts: %w", err)
	}
	var results []AlertTest
	for _, channel := range []alert.Channel{alert.Mail, alert.Hook} {
		if fate, sent := fates[channel]; sent {
			results = append(results, AlertTest{Channel: string(channel), Error: fate.Error})
		}
	}
	return results, nil
}
