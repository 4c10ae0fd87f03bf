package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

// Mail is a mail that a MailServer has taken.
type Mail struct {
	From string
	To   []string
	Raw  []byte // as it came, without the dots that SMTP adds
	// Secure: it came over TLS. User is who signed in; empty: nobody.
	Secure bool
	User   string
}

// MailServer is a real SMTP server for one test.
type MailServer struct {
	// Addr is where it listens. Roots believe its certificate, which is for 127.0.0.1 and localhost.
	Addr  string
	Roots *tls.Config

	password string
	server   *smtp.Server

	mu      sync.Mutex
	mails   []Mail
	refused []string // recipients it does not know
	busy    []string // recipients whose mailbox is full now
	failing error
	hangUp  bool
}

// MailOptions say how a MailServer is.
type MailOptions struct {
	// STARTTLS is offered; Implicit: TLS from the first byte.
	STARTTLS, Implicit bool
	// Password of the user "pegel", who must sign in; empty: nobody has to.
	Password string
	// Addr to listen on; empty: any port of 127.0.0.1.
	Addr string
}

// NewMailServer starts one, to be stopped at the end of the test.
func NewMailServer(tb testing.TB, o MailOptions) *MailServer {
	tb.Helper()
	cert, roots, err := certificate()
	if err != nil {
		tb.Fatal(err)
	}
	m := &MailServer{Roots: roots, password: o.Password}
	m.server = smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) { return &mailSession{server: m, conn: c}, nil }))
	m.server.Domain, m.server.ReadTimeout, m.server.WriteTimeout = "mail.test", time.Minute, time.Minute
	m.server.ErrorLog = quietMail{}
	config := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	if o.STARTTLS {
		m.server.TLSConfig = config
	}
	if o.Addr == "" {
		o.Addr = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", o.Addr)
	if err != nil {
		tb.Fatal(err)
	}
	m.Addr = listener.Addr().String()
	if o.Implicit {
		listener = tls.NewListener(listener, config)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = m.server.Serve(listener)
	}()
	tb.Cleanup(func() {
		_ = m.server.Close()
		<-done
	})
	return m
}

// Mails are those that have come, oldest first.
func (m *MailServer) Mails() []Mail {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.mails)
}

// Refuse makes the server know no such recipients.
func (m *MailServer) Refuse(recipients ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused = recipients
}

// Postpone makes it take nothing for these recipients now.
func (m *MailServer) Postpone(recipients ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy = recipients
}

// Fail makes it answer every mail with an error, after its last byte; nil: it takes mails again.
func (m *MailServer) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failing = err
}

// HangUp makes it take every mail and break the connection before it says so.
func (m *MailServer) HangUp() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hangUp = true
}

// mailSession is one connection.
type mailSession struct {
	server *MailServer
	conn   *smtp.Conn
	mail   Mail
	user   string
}

func (s *mailSession) AuthMechanisms() []string { return []string{sasl.Plain} }

func (s *mailSession) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, username, password string) error {
		if username != "pegel" || password != s.server.password {
			return smtp.ErrAuthFailed
		}
		s.user = username
		return nil
	}), nil
}

func (s *mailSession) Mail(from string, _ *smtp.MailOptions) error {
	if s.server.password != "" && s.user == "" {
		return smtp.ErrAuthRequired
	}
	_, secure := s.conn.TLSConnectionState()
	s.mail = Mail{From: from, Secure: secure, User: s.user}
	return nil
}

func (s *mailSession) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	if slices.Contains(s.server.refused, to) {
		return &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: "no such user"}
	}
	if slices.Contains(s.server.busy, to) {
		return &smtp.SMTPError{Code: 452, EnhancedCode: smtp.EnhancedCode{4, 2, 2}, Message: "mailbox full"}
	}
	s.mail.To = append(s.mail.To, to)
	return nil
}

func (s *mailSession) Data(r io.Reader) error {
	raw, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	if s.server.failing != nil {
		return s.server.failing
	}
	s.mail.Raw = raw
	s.server.mails = append(s.server.mails, s.mail)
	if s.server.hangUp {
		return s.conn.Conn().Close()
	}
	return nil
}

func (s *mailSession) Reset()        { s.mail = Mail{} }
func (s *mailSession) Logout() error { return nil }

// quietMail keeps broken connections, which tests make on purpose, out of the output.
type quietMail struct{}

func (quietMail) Printf(string, ...any) {}
func (quietMail) Println(...any)        {}

// certificate is one for this machine, and who believes it.
func certificate() (tls.Certificate, *tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mail.test"}, DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}
