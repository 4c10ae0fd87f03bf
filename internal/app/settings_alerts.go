package app

import (
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/pegel-dev/pegel/internal/alert"
)

// Names of the alert settings that are checked against each other.
const (
	smtpSetting       = "PEGEL_SMTP_URL"
	fromSetting       = "PEGEL_MAIL_FROM"
	toSetting         = "PEGEL_ALERT_TO"
	hookSetting       = "PEGEL_ALERT_WEBHOOK_URL"
	hookSecretSetting = "PEGEL_ALERT_WEBHOOK_SECRET" //nolint:gosec // a name, no secret
	minReminder       = time.Minute
	maxReminder       = 30 * 24 * time.Hour
)

func alertSettings() []Setting {
	return []Setting{
		{
			Env: smtpSetting, Kind: "smtp(s)://user:password@host:port", Secret: true,
			Help:  "mail server for alerts; with a password STARTTLS is required, without one used where offered (?tls=required, opportunistic, none)",
			parse: func(c *Config, v string) error { return smtpURL(&c.SMTPURL, v) },
		},
		{
			Env: fromSetting, Kind: "mail address",
			Help:  "sender of alerts",
			parse: func(c *Config, v string) error { return mailAddresses(&c.MailFrom, v, 1) },
		},
		{
			Env: toSetting, Kind: "mail addresses, comma-separated",
			Help:  "the operators who get alerts",
			parse: func(c *Config, v string) error { return mailAddresses(&c.AlertTo, v, maxRecipients) },
		},
		{
			Env: "PEGEL_ALERT_TENANT_CONTACT", Default: "true", Kind: "true or false",
			Help:  "mail also the contact_email of the tenant that an alert is about, where there is one",
			parse: func(c *Config, v string) error { return boolean(&c.AlertTenantContact, v) },
		},
		{
			Env: "PEGEL_ALERT_REMINDER", Default: "4h", Kind: "duration, 1m…720h, or 0s",
			Help:  "how often an open incident that nobody acknowledged is told of again; 0s: never",
			parse: func(c *Config, v string) error { return reminder(&c.AlertReminder, v) },
		},
		{
			Env: hookSetting, Kind: "https URL", Secret: true,
			Help:  "where alerts are posted; http:// only to this machine, unless PEGEL_ALERT_WEBHOOK_ALLOW_HTTP",
			parse: func(c *Config, v string) error { return webhookURL(&c.AlertWebhookURL, v) },
		},
		{
			Env: hookSecretSetting, Kind: "whsec_ and base64 of 24…64 bytes", Secret: true,
			Help:  "key of the webhooks' signature (Standard Webhooks)",
			parse: func(c *Config, v string) error { return webhookSecret(&c.AlertWebhookSecret, v) },
		},
		{
			Env: "PEGEL_ALERT_WEBHOOK_ALLOW_HTTP", Default: "false", Kind: "true or false",
			Help:  "post alerts over http:// to another machine, readable on the way",
			parse: func(c *Config, v string) error { return boolean(&c.AlertWebhookAllowHTTP, v) },
		},
		{
			Env: "PEGEL_DASHBOARD_URL", Kind: "http(s) URL",
			Help:  "where people reach the dashboard, such as https://pegel.example.org/dashboard; alerts link to it",
			parse: func(c *Config, v string) error { return dashboardURL(&c.DashboardURL, v) },
		},
	}
}

func smtpURL(dst *Secret, v string) error {
	if _, err := alert.ParseMailServer(v); err != nil {
		return err
	}
	*dst = Secret(v)
	return nil
}

func reminder(dst *time.Duration, v string) error {
	if d, err := time.ParseDuration(v); err == nil && d == 0 {
		*dst = 0
		return nil
	}
	return duration(dst, v, minReminder, maxReminder)
}

func webhookURL(dst *Secret, v string) error {
	if err := alert.CheckHookURL(v, true); err != nil { // whether http is allowed is another setting's to say
		return err
	}
	*dst = Secret(v)
	return nil
}

func webhookSecret(dst *Secret, v string) error {
	if _, err := alert.ParseHookSecret(v); err != nil {
		return err
	}
	*dst = Secret(v)
	return nil
}

func dashboardURL(dst *string, v string) error {
	u, err := url.Parse(v)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("is not an http:// or https:// URL with a host and nothing after the path")
	}
	*dst = strings.TrimRight(v, "/")
	return nil
}

// checkAlerts finds what is half configured: alerts that nobody would get.
func (c *Config) checkAlerts() error {
	mail := []struct {
		name string
		set  bool
	}{{smtpSetting, c.SMTPURL != ""}, {fromSetting, len(c.MailFrom) > 0}, {toSetting, len(c.AlertTo) > 0}}
	for _, have := range mail {
		for _, need := range mail {
			if have.set && !need.set {
				return settingErrorf(need.name, "is required with %s", have.name)
			}
		}
	}
	switch {
	case c.AlertWebhookURL != "" && c.AlertWebhookSecret == "":
		return settingErrorf(hookSecretSetting, "is required with %s: receivers must be able to tell who sent it", hookSetting)
	case c.AlertWebhookURL == "" && c.AlertWebhookSecret != "":
		return settingErrorf(hookSetting, "is required with %s", hookSecretSetting)
	case c.AlertWebhookURL == "":
		return nil
	}
	if err := alert.CheckHookURL(string(c.AlertWebhookURL), c.AlertWebhookAllowHTTP); err != nil {
		return settingErrorf(hookSetting, "%v", err)
	}
	return nil
}
