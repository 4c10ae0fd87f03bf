package alert_test

import (
	"context"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-smtp"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/alert"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// mailer is one by the setting's text.
func mailer(t *testing.T, url string, server *testenv.MailServer) *alert.Mailer {
	t.Helper()
	s, err := alert.ParseMailServer(url)
	require.NoError(t, err)
	return alert.NewMailer(s, "pegel@example.org", server.Roots)
}

func post() *alert.Post {
	return &alert.Post{
		Letter: alert.Letter{Subject: "[Pegel] school-17 at 85 %", Text: ".\r\n.. two dots\r\n.", HTML: "<p>.</p>"},
		To:     []string{"ops@example.org", "oncall@example.org"}, MessageID: "0192", Date: noon(),
	}
}

func TestMailServersByTheirURL(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]alert.MailServer{
		"smtp://mail":                       {Host: "mail", Port: 587},
		"smtp://mail:25?tls=none":           {Host: "mail", Port: 25, Plain: true},
		"smtp://u%40x:p%3A%2F@mail":         {Host: "mail", Port: 587, User: "u@x", Password: "p:/", Required: true},
		"smtp://u:p@mail?tls=opportunistic": {Host: "mail", Port: 587, User: "u", Password: "p"},
		"smtp://mail?tls=required":          {Host: "mail", Port: 587, Required: true},
		"smtps://u:p@[2001:db8::1]:4465":    {Host: "2001:db8::1", Port: 4465, User: "u", Password: "p", Implicit: true},
		"smtps://mail":                      {Host: "mail", Port: 465, Implicit: true},
	} {
		got, err := alert.ParseMailServer(url)
		require.NoError(t, err, url)
		require.Equal(t, want, got, url)
	}
	for _, url := range []string{"", "mail:25", "http://mail", "smtp://", "smtp://mail/path", "smtp://mail?x=1", "smtp://mail?tls=yes", "smtps://mail?tls=none", "smtp://mail:0", "smtp://mail:99999", "smtp://u:can%ary@mail"} {
		_, err := alert.ParseMailServer(url)
		require.Error(t, err, url)
		require.NotContains(t, err.Error(), "can%ary")
	}
}

func TestMailArrives(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options testenv.MailOptions
		url     string // with the address in the place of %s
		secure  bool
		user    string
	}{
		"plain":          {url: "smtp://%s"},
		"STARTTLS":       {options: testenv.MailOptions{STARTTLS: true}, url: "smtp://%s", secure: true},
		"STARTTLS, auth": {options: testenv.MailOptions{STARTTLS: true, Password: "s3:cret/"}, url: "smtp://pegel:s3%%3Acret%%2F@%s", secure: true, user: "pegel"},
		"implicit, auth": {options: testenv.MailOptions{Implicit: true, Password: "secret"}, url: "smtps://pegel:secret@%s", secure: true, user: "pegel"},
		"TLS not wanted": {options: testenv.MailOptions{STARTTLS: true}, url: "smtp://%s?tls=none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.NewMailServer(t, c.options)
			p := post()
			fate := mailer(t, fmt.Sprintf(c.url, server.Addr), server).Send(t.Context(), p)
			require.Equal(t, alert.Fate{Done: true, Sent: true}, fate)
			mails := server.Mails()
			require.Len(t, mails, 1)
			require.Equal(t, "pegel@example.org", mails[0].From)
			require.Equal(t, p.To, mails[0].To)
			require.Equal(t, c.secure, mails[0].Secure)
			require.Equal(t, c.user, mails[0].User)
			got := read(t, mails[0])
			require.Equal(t, p.Subject, got.subject)
			require.Equal(t, "<pegel.0192@example.org>", got.header.Get("Message-Id"))
			require.Equal(t, p.Text, got.text, "dots and all")
			require.Equal(t, p.HTML, got.html)
			date, err := got.header.Date()
			require.NoError(t, err)
			require.True(t, date.Equal(noon()))
		})
	}
}

func TestMailThatCannotBeSentSaysWhy(t *testing.T) {
	t.Parallel()
	server := testenv.NewMailServer(t, testenv.MailOptions{STARTTLS: true, Password: "right"})
	plain := testenv.NewMailServer(t, testenv.MailOptions{})
	for url, why := range map[string]string{
		"smtp://pegel:canary-1@" + server.Addr: "AUTH failed",
		"smtp://pegel:canary-1@" + plain.Addr:  "does not support STARTTLS",
		"smtp://127.0.0.1:1":                   "refused",
		"smtps://" + plain.Addr:                "TLS",
	} {
		fate := mailer(t, url, server).Send(t.Context(), post())
		require.False(t, fate.Sent, url)
		require.False(t, fate.Done, "it may be mended within the day")
		require.True(t, fate.Known, url)
		require.Contains(t, fate.Error, why, url)
		require.NotContains(t, fate.Error, "canary")
	}
	stranger, err := alert.ParseMailServer("smtp://" + server.Addr)
	require.NoError(t, err)
	fate := alert.NewMailer(stranger, "pegel@example.org", nil).Send(t.Context(), post())
	require.Contains(t, fate.Error, "certificate", "nobody it trusts signed it")

	server.Fail(&smtp.SMTPError{Code: 554, Message: "no\r\nthanks"})
	fate = mailer(t, "smtp://pegel:right@"+server.Addr, server).Send(t.Context(), post())
	require.True(t, fate.Known, "it was answered")
	require.NotContains(t, fate.Error, "\n")
	require.Empty(t, server.Mails())
}

// One recipient that does not exist keeps the mail from nobody else.
func TestOneBadRecipientStopsNobodyElse(t *testing.T) {
	t.Parallel()
	server := testenv.NewMailServer(t, testenv.MailOptions{})
	server.Refuse("ops@example.org")
	fate := mailer(t, "smtp://"+server.Addr, server).Send(t.Context(), post())
	require.True(t, fate.Sent)
	require.Contains(t, fate.Error, "550")
	require.Len(t, server.Mails(), 1)
	require.Equal(t, []string{"oncall@example.org"}, server.Mails()[0].To)
}

// One whose mailbox is full, say, keeps the mail from the others for the first attempts only: greylisting is over by then.
func TestOneBusyRecipientStopsNobodyForLong(t *testing.T) {
	t.Parallel()
	server := testenv.NewMailServer(t, testenv.MailOptions{})
	server.Postpone("ops@example.org")
	p := post()
	for p.Attempt = 1; p.Attempt < 6; p.Attempt++ {
		fate := mailer(t, "smtp://"+server.Addr, server).Send(t.Context(), p)
		require.False(t, fate.Done, "attempt %d", p.Attempt)
		require.True(t, fate.Known)
		require.Contains(t, fate.Error, "452")
	}
	fate := mailer(t, "smtp://"+server.Addr, server).Send(t.Context(), p)
	require.True(t, fate.Sent)
	require.Contains(t, fate.Error, "452", "who did not get it is said")
	require.Len(t, server.Mails(), 1)
	require.Equal(t, []string{"oncall@example.org"}, server.Mails()[0].To)

	server.Postpone("ops@example.org", "oncall@example.org")
	fate = mailer(t, "smtp://"+server.Addr, server).Send(t.Context(), p)
	require.False(t, fate.Done, "nobody got it: it is tried again")
	require.True(t, fate.Known)
}

// A server that takes the connection and is silent ends with ctx, and nothing was sent then.
func TestSilentMailServerIsLeft(t *testing.T) {
	t.Parallel()
	addr := testenv.SilentServer(t).Addr
	for _, scheme := range []string{"smtp://", "smtps://"} {
		server, err := alert.ParseMailServer(scheme + addr)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		fate := alert.NewMailer(server, "pegel@example.org", nil).Send(ctx, post())
		cancel()
		require.False(t, fate.Sent)
		require.True(t, fate.Known)
		require.NotEmpty(t, fate.Error)
	}
}

// received is a mail as its reader sees it.
type received struct {
	header              mail.Header
	subject, text, html string
}

func read(t *testing.T, m testenv.Mail) (r received) {
	t.Helper()
	msg, err := mail.ReadMessage(strings.NewReader(string(m.Raw)))
	require.NoError(t, err)
	r.header = msg.Header
	require.Len(t, msg.Header["Subject"], 1)
	r.subject, err = new(mime.WordDecoder).DecodeHeader(msg.Header.Get("Subject"))
	require.NoError(t, err)
	kind, params, err := mime.ParseMediaType(msg.Header.Get("Content-Type"))
	require.NoError(t, err)
	require.Equal(t, "multipart/alternative", kind)
	parts := multipart.NewReader(msg.Body, params["boundary"])
	for {
		part, err := parts.NextRawPart()
		if err != nil {
			return r
		}
		require.Equal(t, "quoted-printable", part.Header.Get("Content-Transfer-Encoding"))
		body, err := io.ReadAll(quotedprintable.NewReader(part))
		require.NoError(t, err)
		if strings.HasPrefix(part.Header.Get("Content-Type"), "text/html") {
			r.html = string(body)
		} else {
			r.text = string(body)
		}
	}
}

// B072: whatever a tenant, a limit or a token is called, it is text: one Subject, no further header or recipient, no
// markup.
func TestHostileNamesAreText(t *testing.T) {
	t.Parallel()
	server := testenv.NewMailServer(t, testenv.MailOptions{})
	m := mailer(t, "smtp://"+server.Addr, server)
	outlets, err := alert.NewOutlets(m, []string{"ops@example.org"}, nil, "https://pegel.example.org/dashboard")
	require.NoError(t, err)
	names := []string{
		"x\r\nBcc: evil@example.org", "x\nBcc: evil@example.org\n\n<script>alert(1)</script>", strings.Repeat("long ", 400), "😀 Grüße =?utf-8?q?x?=",
		"\u202egnp.exe", `<img src=x onerror=alert(1)>`, `'"></script>`, "{{7*7}}", "a\x00b\xff", "\r\n.\r\nMAIL FROM:<evil@example.org>",
	}
	for i, name := range names {
		for _, kind := range alert.Kinds() {
			for _, channel := range []alert.Channel{alert.Mail, alert.Contact} {
				if channel == alert.Contact && kind != alert.TenantHigh {
					continue
				}
				p, err := outlets.Post([]alert.Message{{
					Channel: channel, To: "contact@example.org", MessageID: fmt.Sprintf("%d-%s-%s", i, kind, channel),
					Notice: alert.Notice{
						Kind: kind, Occasion: alert.OnOpen, Since: noon(), OpenedAt: noon(), Made: noon(), IncidentID: 1, Peak: 0.9,
						Facts: alert.Facts{Tenant: "school-17", TenantName: name, Limit: name, Name: name, Replicas: []string{name + ": up"}, Plan: "light", At: 0.8, For: time.Minute, Window: time.Minute},
					},
				}})
				require.NoError(t, err)
				require.True(t, m.Send(t.Context(), p).Sent, "%q %s", name, kind)
			}
		}
	}
	mails := server.Mails()
	require.Len(t, mails, len(names)*(len(alert.Kinds())+1))
	for _, got := range mails {
		require.Len(t, got.To, 1)
		require.NotContains(t, got.To[0], "evil")
		r := read(t, got)
		require.Less(t, len([]rune(r.subject)), 220)
		require.NotContains(t, r.subject, "\u202e")
		for name := range r.header {
			require.Contains(t, []string{"Auto-Submitted", "Content-Type", "Date", "From", "Message-Id", "Mime-Version", "Subject", "To"}, name)
		}
		require.NotContains(t, r.html, "<script")
		require.NotContains(t, r.html, "<img")
		require.NotContains(t, r.html, "\u202e")
		require.Contains(t, r.text, "--")
	}
}
