package alert

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const (
	// postWithin bounds one attempt.
	postWithin = 15 * time.Second
	// maxAnswer is how much of an answer is read; what a receiver has to say after that stays unread.
	maxAnswer = 64 << 10
	// minSecret and maxSecret are what the signature's key may have, in bytes (Standard Webhooks asks for 24 to 64).
	minSecret, maxSecret = 24, 64
)

// CheckHookURL says whether webhooks may go to an address: https, http to this machine, and other http only when allowed.
func CheckHookURL(raw string, allowHTTP bool) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "":
		return errors.New("is not an http:// or https:// URL with a host")
	case u.User != nil:
		return errors.New("must not have a user or password")
	case u.Scheme == "https" || allowHTTP || isLoopback(u.Hostname()):
		return nil
	}
	return errors.New("is http:// to another machine: use https://, or say PEGEL_ALERT_WEBHOOK_ALLOW_HTTP=true")
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// ParseHookSecret reads a key as the libraries of Standard Webhooks do: base64 of 24 to 64 bytes, with or without whsec_ in
// front. Text that is no base64 is taken as it is, unless it says that it were.
func ParseHookSecret(s string) ([]byte, error) {
	rest, marked := strings.CutPrefix(s, "whsec_")
	key, err := base64.StdEncoding.DecodeString(rest)
	switch {
	case err != nil && marked:
		return nil, errors.New("begins with whsec_ and is not base64 after it")
	case err != nil:
		key = []byte(s)
	}
	if len(key) < minSecret || len(key) > maxSecret {
		return nil, fmt.Errorf("has %d bytes; must have %d to %d (echo whsec_$(openssl rand -base64 32) makes one)", len(key), minSecret, maxSecret)
	}
	return key, nil
}

// Poster sends webhooks. It is safe for concurrent use.
type Poster struct {
	url     string
	signer  *standardwebhooks.Webhook
	letters *letters
	client  *http.Client
}

// NewPoster sends to an address that CheckHookURL let through, signed with a key from ParseHookSecret. roots are further
// authorities to believe, in tests; nil: the system's.
func NewPoster(target string, key []byte, dashboard string, roots *tls.Config) (*Poster, error) {
	signer, err := standardwebhooks.NewWebhookRaw(key)
	if err != nil {
		return nil, fmt.Errorf("webhook secret: %w", err)
	}
	return &Poster{
		url: target, signer: signer, letters: &letters{dashboard: dashboard},
		client: &http.Client{
			Timeout: postWithin,
			// A redirect would take the signed message to somebody nobody named.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: &http.Transport{
				Proxy: http.ProxyFromEnvironment, TLSClientConfig: roots, DisableKeepAlives: true, MaxResponseHeaderBytes: maxAnswer,
				TLSHandshakeTimeout: postWithin, ForceAttemptHTTP2: true,
			},
		},
	}, nil
}

// payload is the body of a webhook: Standard Webhooks' type, timestamp and data.
type payload struct {
	Type      string      `json:"type"` // alert.opened, alert.reminder, alert.resolved, alert.test
	Timestamp time.Time   `json:"timestamp"`
	Data      payloadData `json:"data"`
}

type payloadData struct {
	ID      int64  `json:"id"`
	Kind    Kind   `json:"kind"`
	Summary string `json:"summary"`
	Detail  string `json:"detail"`
	Meaning string `json:"meaning"`
	URL     string `json:"url,omitempty"`

	Tenant     string `json:"tenant,omitempty"`
	TenantName string `json:"tenant_name,omitempty"`
	Plan       string `json:"plan,omitempty"`
	LimitName  string `json:"limit_name,omitempty"`
	Limit      int64  `json:"limit,omitempty"`
	WindowMS   int64  `json:"window_ms,omitempty"`

	Threshold       float64 `json:"threshold,omitempty"`
	Utilization     float64 `json:"utilization"`
	PeakUtilization float64 `json:"peak_utilization"`

	Name     string   `json:"name,omitempty"`
	Count    int64    `json:"count,omitempty"`
	Replicas []string `json:"replicas,omitempty"`

	Since      time.Time `json:"since"`
	OpenedAt   time.Time `json:"opened_at"`
	ResolvedAt time.Time `json:"resolved_at,omitzero"`
}

// Body is what is posted for a notice.
func (p *Poster) Body(n *Notice) ([]byte, error) {
	w := Tell(n, p.letters.dashboard)
	body, err := json.Marshal(payload{
		Type: "alert." + string(n.Occasion), Timestamp: n.Made,
		Data: payloadData{
			ID: n.IncidentID, Kind: n.Kind, Summary: w.Headline, Detail: w.Lead, Meaning: w.Meaning, URL: w.Link,
			Tenant: n.Tenant, TenantName: n.TenantName, Plan: n.Plan, LimitName: n.Limit, Limit: n.Quota, WindowMS: n.Window.Milliseconds(),
			Threshold: n.At, Utilization: n.Value, PeakUtilization: n.Peak, Name: n.Name, Count: n.Count, Replicas: n.Replicas,
			Since: n.Since, OpenedAt: n.OpenedAt, ResolvedAt: n.ResolvedAt,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("write a webhook: %w", err)
	}
	return body, nil
}

// Send posts one message and says what became of it. sentAt is now: receivers refuse old signatures.
func (p *Poster) Send(ctx context.Context, m *Message, sentAt time.Time) Fate {
	body, err := p.Body(&m.Notice)
	if err != nil {
		return Fate{Known: true, Done: true, Error: plainError(err)}
	}
	id := "msg_" + strings.ReplaceAll(m.MessageID, "-", "")
	signature, err := p.signer.Sign(id, sentAt, body)
	if err != nil {
		return Fate{Known: true, Done: true, Error: plainError(err)}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return Fate{Known: true, Done: true, Error: plainError(err)}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "Pegel")
	req.Header.Set(standardwebhooks.HeaderWebhookID, id)
	req.Header.Set(standardwebhooks.HeaderWebhookTimestamp, fmt.Sprint(sentAt.Unix()))
	req.Header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	// Before there is a connection, TLS and a proxy's word included, nobody got anything. What fails later may have arrived.
	connected := false
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }}
	res, err := p.client.Do(req.WithContext(httptrace.WithClientTrace(ctx, trace)))
	if err != nil {
		return Fate{Known: !connected, Error: plainError(err)}
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswer))
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		return Fate{Done: true, Sent: true}
	}
	f := Fate{Known: true, Error: fmt.Sprintf("the receiver answered %d", res.StatusCode)}
	if res.StatusCode >= 300 && res.StatusCode < 400 {
		f.Error += "; redirects are not followed"
	}
	f.Done = res.StatusCode == http.StatusGone // Standard Webhooks: do not try again
	return f
}
