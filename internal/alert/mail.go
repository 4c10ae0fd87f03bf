package alert

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/wneessen/go-mail"
)

const (
	// sendWithin bounds one attempt, from dialling to the server's last word; Lease is longer.
	sendWithin = 30 * time.Second
	// stepWithin bounds each of its parts: greeting and sign-in, then the message.
	stepWithin = 15 * time.Second
	// patientFor is how many attempts wait for a recipient that the server does not take now: some five minutes, the time
	// that greylisting takes. After them the others get the mail without it.
	patientFor = 5
)

// MailServer is where mails are handed in.
type MailServer struct {
	Host string
	Port int
	// User and Password are empty for none. They are only sent over TLS, or to this machine.
	User, Password string
	// Implicit: TLS from the first byte (smtps). Otherwise STARTTLS: required, used where offered, or (Plain) not at all.
	Implicit, Required, Plain bool
}

// ParseMailServer reads smtp://user:password@host:port and smtps://…; ports default to 587 and 465. With a password STARTTLS
// is required, without one it is used where offered; ?tls=required, opportunistic or none says otherwise. Errors hold
// nothing of the URL.
func ParseMailServer(raw string) (MailServer, error) {
	u, err := url.Parse(raw)
	if err != nil || (u.Scheme != "smtp" && u.Scheme != "smtps") || u.Hostname() == "" {
		return MailServer{}, errors.New("is not an smtp:// or smtps:// URL with a host (are the special characters of the password percent-encoded?)")
	}
	if (u.Path != "" && u.Path != "/") || u.Fragment != "" {
		return MailServer{}, errors.New("must end with the port")
	}
	s := MailServer{Host: u.Hostname(), Port: 587, Implicit: u.Scheme == "smtps"}
	if s.Implicit {
		s.Port = 465
	}
	if p := u.Port(); p != "" {
		if s.Port, err = strconv.Atoi(p); err != nil || s.Port < 1 || s.Port > 65535 {
			return MailServer{}, errors.New("has no port between 1 and 65535")
		}
	}
	if u.User != nil {
		s.User = u.User.Username()
		s.Password, _ = u.User.Password()
		s.Required = !s.Implicit && s.Password != ""
	}
	for name, values := range u.Query() {
		if name != "tls" || len(values) != 1 || s.Implicit {
			return MailServer{}, errors.New("has a parameter that is not known: only tls=required, tls=opportunistic or tls=none, with smtp://")
		}
		switch values[0] {
		case "required":
			s.Required = true
		case "opportunistic":
			s.Required = false
		case "none":
			s.Required, s.Plain = false, true
		default:
			return MailServer{}, errors.New("has a tls parameter that is none of required, opportunistic, none")
		}
	}
	return s, nil
}

// Mailer hands mails to a server. It is safe for concurrent use.
type Mailer struct {
	server MailServer
	from   string
	tls    *tls.Config
}

// NewMailer sends from an address. roots are further authorities to believe, in tests; nil: the system's.
func NewMailer(server MailServer, from string, roots *tls.Config) *Mailer {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if roots != nil {
		config = roots.Clone()
	}
	config.ServerName = server.Host
	return &Mailer{server: server, from: from, tls: config}
}

// Post is a mail on its way.
type Post struct {
	Letter

	To []string
	// MessageID is the same at every attempt. Date is when the message was written.
	MessageID string
	Date      time.Time
	// Attempt counts from 1.
	Attempt int
}

// Send hands a mail in and says what became of it. It ends within sendWithin, or when ctx does.
func (m *Mailer) Send(ctx context.Context, p *Post) Fate {
	ctx, cancel := context.WithTimeout(ctx, sendWithin)
	defer cancel()
	f := m.attempt(ctx, p, p.To)
	if (f.refused || f.postponed && p.Attempt > patientFor) && len(p.To) > 1 {
		return m.eachAlone(ctx, p)
	}
	return f
}

// eachAlone is for a server that refuses one of several recipients: that must not keep the mail from the others.
func (m *Mailer) eachAlone(ctx context.Context, p *Post) Fate {
	total := Fate{Known: true}
	for _, to := range p.To {
		f := m.attempt(ctx, p, []string{to})
		total.Sent, total.Done = total.Sent || f.Sent, total.Done || f.Sent
		total.Known = total.Known && (f.Known || f.Sent)
		if f.Error != "" {
			total.Error = f.Error
		}
	}
	return total
}

func (m *Mailer) attempt(ctx context.Context, p *Post, to []string) Fate {
	message, err := m.compose(p, to)
	if err != nil {
		return Fate{Known: true, Done: true, Error: plainError(err)} // would fail again
	}
	client, err := m.client(ctx)
	if err != nil {
		return Fate{Known: true, Error: plainError(err)}
	}
	session, err := client.DialToSMTPClientWithContext(ctx)
	if err != nil {
		return Fate{Known: true, Error: plainError(err)}
	}
	err = client.SendWithSMTPClient(session, message)
	if message.IsDelivered() {
		_ = client.CloseWithSMTPClient(session) // it is delivered, whatever the goodbye says
		return Fate{Done: true, Sent: true}
	}
	_ = session.Close()
	if err == nil {
		err = errors.New("the server did not say that it took the message")
	}
	return failed(err)
}

// failed tells an error after which the message is certainly not delivered from one after which nobody knows: the
// connection ended between the last byte and the answer.
func failed(err error) Fate {
	f := Fate{Known: true, Error: plainError(err)}
	var sent *mail.SendError
	if errors.As(err, &sent) {
		f.Known = sent.Reason != mail.ErrSMTPDataClose && sent.Reason != mail.ErrAmbiguous || sent.ErrorCode() >= 400
		recipient := sent.Reason == mail.ErrSMTPRcptTo
		f.refused, f.postponed = recipient && sent.ErrorCode() >= 500, recipient && sent.ErrorCode() < 500
	}
	return f
}

func (m *Mailer) compose(p *Post, to []string) (*mail.Msg, error) {
	msg := mail.NewMsg(mail.WithNoDefaultUserAgent())
	if err := msg.FromFormat("Pegel", m.from); err != nil {
		return nil, fmt.Errorf("sender: %w", err)
	}
	if err := msg.To(to...); err != nil {
		return nil, errors.New("a recipient is not a mail address")
	}
	msg.Subject(p.Subject)
	_, domain, _ := strings.Cut(m.from, "@")
	msg.SetMessageIDWithValue("pegel." + p.MessageID + "@" + domain)
	msg.SetDateWithValue(p.Date)
	msg.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834: no vacation answers
	msg.SetBodyString(mail.TypeTextPlain, p.Text)
	msg.AddAlternativeString(mail.TypeTextHTML, p.HTML)
	return msg, nil
}

// client is made anew for each mail: go-mail changes its own state on the way. ctx bounds all that it does.
func (m *Mailer) client(ctx context.Context) (*mail.Client, error) {
	options := []mail.Option{
		mail.WithPort(m.server.Port), mail.WithTimeout(stepWithin), mail.WithTLSConfig(m.tls),
		mail.WithDialContextFunc(func(dialling context.Context, network, address string) (net.Conn, error) {
			return m.dial(ctx, dialling, network, address)
		}),
	}
	switch {
	case m.server.Implicit: // dial brings TLS
		options = append(options, mail.WithTLSPolicy(mail.NoTLS))
	case m.server.Required:
		options = append(options, mail.WithTLSPolicy(mail.TLSMandatory))
	case m.server.Plain:
		options = append(options, mail.WithTLSPolicy(mail.NoTLS))
	default:
		options = append(options, mail.WithTLSPolicy(mail.TLSOpportunistic))
	}
	if m.server.User != "" {
		options = append(options, mail.WithUsername(m.server.User), mail.WithPassword(m.server.Password),
			mail.WithOpportunisticSMTPAuth(mail.SMTPAuthSCRAMSHA256, mail.SMTPAuthPlain, mail.SMTPAuthLogin, mail.SMTPAuthCramMD5))
	}
	client, err := mail.NewClient(m.server.Host, options...)
	if err != nil {
		return nil, fmt.Errorf("mail server: %w", err)
	}
	return client, nil
}

// dial connects. The connection ends with ctx: go-mail would begin a new time limit with every part, and end with none.
func (m *Mailer) dial(ctx, dialling context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(dialling, network, address)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	until, _ := ctx.Deadline()
	bounded := &boundedConn{Conn: conn, until: until}
	if !m.server.Implicit {
		return bounded, nil
	}
	secure := tls.Client(bounded, m.tls)
	if err := secure.HandshakeContext(dialling); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return secure, nil
}

// boundedConn never waits beyond a moment, whatever it is told.
type boundedConn struct {
	net.Conn

	until time.Time
}

func (c *boundedConn) SetDeadline(t time.Time) error {
	if !c.until.IsZero() && (t.IsZero() || t.After(c.until)) {
		t = c.until
	}
	return c.Conn.SetDeadline(t)
}

// plainError is an error as a person may read it: one line, bounded, and nothing of an URL, which may hold a secret.
func plainError(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return clean(err.Error(), 200)
}
