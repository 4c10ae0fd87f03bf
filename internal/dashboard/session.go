package dashboard

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pegel-dev/pegel/internal/signin"
)

// A session is the administrator's token, sealed under a key that is derived from the token's stored hash:
//
//	v1.<token id>.<signed in, Unix seconds>.<nonce and AES-256-GCM of the token, base64url>
//
// Every replica has the hash in its Directory, so every replica opens every session and none keeps one. Whoever reads the
// database knows the hash but not the token, and can seal nothing; whoever reads the cookie knows neither. The token is
// verified anew at each request: revoked, expired or deleted, its sessions end with it.
const (
	sessionCookie  = "pegel_session"
	sessionVersion = "v1"
	// sessionLife is how long a session lasts at most: a working day.
	sessionLife = 12 * time.Hour
	// sessionSkew is how far the clock of the replica that signed somebody in may be ahead of ours.
	sessionSkew = 5 * time.Minute
	// maxCookie is what every browser keeps, in bytes.
	maxCookie = 4000
)

var errNoSession = errors.New("no session")

// session is a signed-in administrator.
type session struct {
	who   signin.Administrator
	token string
	// ends is when the administrator has to sign in again.
	ends time.Time
}

// seal makes the cookie's value.
func (d *Dashboard) seal(who *signin.Administrator, token string, at time.Time) (string, error) {
	hash, ok := d.SignIn.Hash(who.Actor.Kind, who.Actor.ID)
	if !ok {
		return "", errNoSession
	}
	head := sessionVersion + "." + sessionName(who) + "." + strconv.FormatInt(at.Unix(), 10)
	box, err := sessionBox(hash)
	if err != nil {
		return "", err
	}
	nonce := make([]byte, box.NonceSize())
	_, _ = rand.Read(nonce) // it never fails
	return head + "." + base64.RawURLEncoding.EncodeToString(box.Seal(nonce, nonce, []byte(token), []byte(head))), nil
}

// open is the session a cookie's value proves now.
func (d *Dashboard) open(value string) (*session, error) {
	if len(value) > maxCookie {
		return nil, errNoSession
	}
	parts := strings.Split(value, ".")
	if len(parts) != 4 || parts[0] != sessionVersion {
		return nil, errNoSession
	}
	issued, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil {
		return nil, errNoSession
	}
	now, begun := d.Now(), time.Unix(issued, 0)
	if now.Before(begun.Add(-sessionSkew)) || !now.Before(begun.Add(sessionLife)) {
		return nil, errNoSession
	}
	token, err := d.unseal(parts)
	if err != nil {
		return nil, errNoSession
	}
	who, expires, ok := d.SignIn.Verify(token)
	if !ok || sessionName(&who) != parts[1] {
		return nil, errNoSession
	}
	s := &session{who: who, token: token, ends: begun.Add(sessionLife)}
	if !expires.IsZero() && expires.Before(s.ends) {
		s.ends = expires
	}
	return s, nil
}

func (d *Dashboard) unseal(parts []string) (string, error) {
	kind := "admin_token"
	if parts[1] == signin.KindBootstrap {
		kind = signin.KindBootstrap
	}
	hash, ok := d.SignIn.Hash(kind, parts[1])
	if !ok {
		return "", errNoSession
	}
	sealed, err := base64.RawURLEncoding.DecodeString(parts[3])
	if err != nil {
		return "", errNoSession
	}
	box, err := sessionBox(hash)
	if err != nil {
		return "", err
	}
	if len(sealed) < box.NonceSize() {
		return "", errNoSession
	}
	nonce, sealed := sealed[:box.NonceSize()], sealed[box.NonceSize():]
	token, err := box.Open(nil, nonce, sealed, []byte(strings.Join(parts[:3], ".")))
	if err != nil {
		return "", errNoSession
	}
	return string(token), nil
}

// sessionName is the public id of the token; the bootstrap token has none, and no id is as short as its kind.
func sessionName(who *signin.Administrator) string {
	if who.Actor.Kind == signin.KindBootstrap {
		return signin.KindBootstrap
	}
	return who.Actor.ID
}

func sessionBox(hash [sha256.Size]byte) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, hash[:], nil, "pegel dashboard session "+sessionVersion, 32)
	if err != nil {
		return nil, fmt.Errorf("derive the key of a session: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("seal a session: %w", err)
	}
	return cipher.NewGCM(block)
}

// current is the request's session, nil without one.
func (d *Dashboard) current(r *http.Request) *session {
	for _, c := range r.CookiesNamed(sessionCookie) {
		if s, err := d.open(c.Value); err == nil {
			return s
		}
	}
	return nil
}

// cookie is how the session travels: out of reach of scripts, never from another site, and only over TLS where there is TLS.
func (d *Dashboard) cookie(r *http.Request, value string, age time.Duration) *http.Cookie {
	c := &http.Cookie{ //nolint:gosec // Secure where there is TLS
		Name: sessionCookie, Value: value, Path: "/dashboard", MaxAge: int(age.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: d.overTLS(r),
	}
	if age <= 0 {
		c.MaxAge = -1
	}
	return c
}

// overTLS: this connection is, or the browser's was, as a trusted proxy says.
func (d *Dashboard) overTLS(r *http.Request) bool {
	if r.TLS != nil {
		return true
	}
	_, trusted := d.Addresses.Resolve(r)
	return trusted && r.Header.Get("X-Forwarded-Proto") == "https"
}
