package jwt

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	josejwt "github.com/go-jose/go-jose/v4/jwt"
)

// Config is what a Verifier needs.
type Config struct {
	// File or URL is where the key set is, one of them. A URL is https, or http on a loopback address.
	File, URL string
	// Issuer is what iss must be; required.
	Issuer string
	// Audience is what aud must hold; empty: it is not looked at.
	Audience string
	// TenantClaim and UserClaim name the claims that hold a tenant's slug and a user: a claim of that very name, else a path
	// into objects, separated by dots. Empty: "tenant" and "sub".
	TenantClaim, UserClaim string
	// Transport reaches the URL; nil: one that uses no proxy of the environment.
	Transport http.RoundTripper
	// Every is how often the set is read again, Pause the least time between two reads; 0: the defaults.
	Every, Pause time.Duration
	Log          *slog.Logger
}

const (
	// maxToken bounds what is parsed at all. Larger tokens do not fit through common servers' header limits either.
	maxToken = 8 << 10
	// leeway is how far the issuer's clock may be from ours.
	leeway = 30 * time.Second

	defaultTenantClaim = "tenant"
	defaultUserClaim   = "sub"
)

// algorithms are the signatures that count. None has a secret that a public key could be taken for, and "none" is none of them.
func algorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
	}
}

// Verifier verifies tokens. New makes one; it knows no key before Run or Load has read them.
type Verifier struct {
	cfg        Config
	algorithms []jose.SignatureAlgorithm
	client     *http.Client
	log        *slog.Logger

	keys     atomic.Pointer[keySet]
	tried    chan struct{} // closed when Run has read the set, or failed to, for the first time
	wake     chan struct{} // a token named a key that is not known
	verified cache
	failures failures
	counts   [results]atomic.Uint64
}

// New checks the configuration. It reads nothing.
func New(cfg Config) (*Verifier, error) {
	switch {
	case (cfg.File == "") == (cfg.URL == ""):
		return nil, errors.New("a key set has a file or a URL, one of them")
	case cfg.Issuer == "":
		return nil, errors.New("an issuer is required: without it any token of the key's owner would count")
	}
	if cfg.URL != "" {
		if err := CheckURL(cfg.URL); err != nil {
			return nil, err
		}
	}
	if cfg.TenantClaim == "" {
		cfg.TenantClaim = defaultTenantClaim
	}
	if cfg.UserClaim == "" {
		cfg.UserClaim = defaultUserClaim
	}
	if cfg.Pause <= 0 {
		cfg.Pause = pauseBetween
	}
	if cfg.Every <= 0 {
		cfg.Every = readEvery
		if cfg.File != "" { // which costs nothing
			cfg.Every = cfg.Pause
		}
	}
	if cfg.Transport == nil {
		cfg.Transport = &http.Transport{TLSHandshakeTimeout: readTimeout, MaxIdleConns: 1, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true}
	}
	v := &Verifier{cfg: cfg, algorithms: algorithms(), log: cfg.Log, tried: make(chan struct{}), wake: make(chan struct{}, 1)}
	v.client = &http.Client{Transport: cfg.Transport, Timeout: readTimeout, CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("the key set was redirected; name the URL it is at")
	}}
	if v.log == nil {
		v.log = slog.New(slog.DiscardHandler)
	}
	v.verified.init()
	v.failures.init()
	return v, nil
}

// Verify says whom a token names, when it is one that counts at now. Either name may be empty: the token says nothing of it.
// from is whom wrong signatures are counted against.
func (v *Verifier) Verify(token string, from netip.Prefix, now time.Time) (tenant, user string, ok bool) {
	keys := v.keys.Load()
	if keys == nil || len(token) > maxToken || strings.Count(token, ".") != 2 {
		return "", "", v.count(Refused)
	}
	id := sha256.Sum256([]byte(token))
	if known, found := v.verified.get(id); found && known.keys == keys.generation && now.Before(known.until) {
		return known.tenant, known.user, v.count(Cached)
	}
	known, result := v.verify(token, keys, from, now)
	if result == Verified {
		v.verified.put(id, known)
	}
	return known.tenant, known.user, v.count(result)
}

// verify looks at what costs little first. The signature is last; until it holds, nothing that a token says is acted on but
// which of our keys to try.
func (v *Verifier) verify(token string, keys *keySet, from netip.Prefix, now time.Time) (proof, Result) {
	parsed, err := josejwt.ParseSigned(token, v.algorithms)
	if err != nil || len(parsed.Headers) != 1 {
		return proof{}, Refused
	}
	var claims josejwt.Claims
	if err := parsed.UnsafeClaimsWithoutVerification(&claims); err != nil || claims.Expiry == nil {
		return proof{}, Refused // a token without an end would be one for ever
	}
	expected := josejwt.Expected{Issuer: v.cfg.Issuer, Time: now}
	if v.cfg.Audience != "" {
		expected.AnyAudience = josejwt.Audience{v.cfg.Audience}
	}
	if err := claims.ValidateWithLeeway(expected, leeway); err != nil {
		return proof{}, Refused
	}
	header := parsed.Headers[0]
	key, known := keys.find(header.KeyID)
	if !known {
		v.readAgain()
		return proof{}, Refused
	}
	if key.Algorithm != "" && key.Algorithm != header.Algorithm {
		return proof{}, Refused
	}
	if !v.failures.room(from, now) {
		return proof{}, Skipped
	}
	var all map[string]json.RawMessage
	if err := parsed.Claims(key.Key, &all); err != nil {
		v.failures.add(from, now)
		return proof{}, Refused
	}
	return proof{
		tenant: text(all, v.cfg.TenantClaim), user: text(all, v.cfg.UserClaim),
		keys: keys.generation, until: claims.Expiry.Time().Add(leeway),
	}, Verified
}

// text is the claim of that name, else the one that a path of dots leads to; empty when it is none or no text.
func text(claims map[string]json.RawMessage, name string) string {
	raw, found := claims[name]
	for !found {
		first, rest, more := strings.Cut(name, ".")
		inner, ok := claims[first]
		if !more || !ok {
			return ""
		}
		claims = nil
		if json.Unmarshal(inner, &claims) != nil {
			return ""
		}
		name = rest
		raw, found = claims[name]
	}
	var value string
	if json.Unmarshal(raw, &value) != nil {
		return ""
	}
	return value
}

// Result is what became of a token, for metrics.
type Result int

// The results.
const (
	Verified Result = iota // its signature was checked and holds
	Cached                 // it was verified before
	Refused                // it is none that counts
	Skipped                // its address has had too many wrong signatures within this second
	results
)

// String is the result's name in metrics.
func (r Result) String() string {
	return [...]string{"verified", "cached", "refused", "skipped"}[r]
}

// Results are all of them.
func Results() []Result { return []Result{Verified, Cached, Refused, Skipped} }

// Count is how many tokens had a result so far.
func (v *Verifier) Count(r Result) uint64 { return v.counts[r].Load() }

func (v *Verifier) count(r Result) (ok bool) {
	v.counts[r].Add(1)
	return r == Verified || r == Cached
}
