package jwt_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/jwt"
)

const issuer = "https://login.example.org"

var (
	noon     = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	somebody = netip.MustParsePrefix("203.0.113.7/32")
)

type claims map[string]any

// good are the claims of a token that counts.
func good(change claims) claims {
	c := claims{
		"iss": issuer, "aud": []string{"api", "other"}, "sub": "u42", "tenant": "school-17",
		"iat": noon.Add(-time.Minute).Unix(), "nbf": noon.Add(-time.Minute).Unix(), "exp": noon.Add(time.Hour).Unix(),
	}
	for name, value := range change {
		if c[name] = value; value == nil {
			delete(c, name)
		}
	}
	return c
}

func sign(tb testing.TB, alg jose.SignatureAlgorithm, key any, kid string, c claims) string {
	tb.Helper()
	payload, err := json.Marshal(c)
	require.NoError(tb, err)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: kid}}, nil)
	require.NoError(tb, err)
	signed, err := signer.Sign(payload)
	require.NoError(tb, err)
	text, err := signed.CompactSerialize()
	require.NoError(tb, err)
	return text
}

func rsaKey(tb testing.TB, bits int) *rsa.PrivateKey {
	tb.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	require.NoError(tb, err)
	return key
}

func ecKey(tb testing.TB, curve elliptic.Curve) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	require.NoError(tb, err)
	return key
}

func set(tb testing.TB, keys ...jose.JSONWebKey) []byte {
	tb.Helper()
	raw, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	require.NoError(tb, err)
	return raw
}

func public(key crypto.Signer, kid string) jose.JSONWebKey {
	return jose.JSONWebKey{Key: key.Public(), KeyID: kid}
}

// fromFile is a verifier that has read a key set from a file.
func fromFile(tb testing.TB, raw []byte, change func(*jwt.Config)) *jwt.Verifier {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "keys.json")
	require.NoError(tb, os.WriteFile(path, raw, 0o600))
	cfg := jwt.Config{File: path, Issuer: issuer, Audience: "api"}
	if change != nil {
		change(&cfg)
	}
	v, err := jwt.New(cfg)
	require.NoError(tb, err)
	require.NoError(tb, v.Load(context.Background()))
	return v
}

func TestEveryAlgorithmThatCounts(t *testing.T) {
	t.Parallel()
	rsaPrivate, p256, p384, p521 := rsaKey(t, 2048), ecKey(t, elliptic.P256()), ecKey(t, elliptic.P384()), ecKey(t, elliptic.P521())
	_, edPrivate, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	v := fromFile(t, set(t, public(rsaPrivate, "rsa"), public(p256, "p256"), public(p384, "p384"), public(p521, "p521"), public(edPrivate, "ed")), nil)
	for _, c := range []struct {
		alg jose.SignatureAlgorithm
		kid string
		key crypto.Signer
	}{
		{jose.RS256, "rsa", rsaPrivate},
		{jose.RS512, "rsa", rsaPrivate},
		{jose.PS256, "rsa", rsaPrivate},
		{jose.ES256, "p256", p256},
		{jose.ES384, "p384", p384},
		{jose.ES512, "p521", p521},
		{jose.EdDSA, "ed", edPrivate},
	} {
		token := sign(t, c.alg, c.key, c.kid, good(nil))
		for range 2 { // verified, then remembered
			tenant, user, ok := v.Verify(token, somebody, noon)
			require.True(t, ok, c.alg)
			require.Equal(t, "school-17", tenant)
			require.Equal(t, "u42", user)
		}
	}
	require.EqualValues(t, 7, v.Count(jwt.Verified))
	require.EqualValues(t, 7, v.Count(jwt.Cached))
}

// What must never count, whoever signed it.
func TestTokensThatDoNotCount(t *testing.T) {
	t.Parallel()
	key, other := ecKey(t, elliptic.P256()), ecKey(t, elliptic.P256())
	rsaPrivate := rsaKey(t, 2048)
	pinned := public(rsaPrivate, "pinned")
	pinned.Algorithm = "RS256"
	encrypts := public(other, "encrypts")
	encrypts.Use = "enc"
	v := fromFile(t, set(t, public(key, "k1"), pinned, encrypts), nil)
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	payload, err := json.Marshal(good(nil))
	require.NoError(t, err)
	valid := sign(t, jose.ES256, key, "k1", good(nil))
	parts := strings.Split(valid, ".")
	modulus := rsaPrivate.N.Bytes() // a public value: whoever takes it for a shared secret is fooled

	for name, token := range map[string]string{
		"no algorithm":                  part(`{"alg":"none","kid":"k1"}`) + "." + part(string(payload)) + ".",
		"no algorithm, in capitals":     part(`{"alg":"NONE","kid":"k1"}`) + "." + part(string(payload)) + ".",
		"a public key as shared secret": sign(t, jose.HS256, modulus, "pinned", good(nil)),
		"another algorithm of the key":  sign(t, jose.PS256, rsaPrivate, "pinned", good(nil)),
		"another key's algorithm":       sign(t, jose.RS256, rsaPrivate, "k1", good(nil)),
		"somebody else's key":           sign(t, jose.ES256, other, "k1", good(nil)),
		"a key for encryption":          sign(t, jose.ES256, other, "encrypts", good(nil)),
		"an unknown key":                sign(t, jose.ES256, key, "k9", good(nil)),
		"no key named, several there":   sign(t, jose.ES256, key, "", good(nil)),
		"another payload":               parts[0] + "." + part(strings.Replace(string(payload), "school-17", "school-18", 1)) + "." + parts[2],
		"no signature":                  parts[0] + "." + parts[1] + ".",
		"cut":                           valid[:len(valid)-2],
		"two dots":                      "..",
		"five parts":                    valid + ".a.b",
		"expired":                       sign(t, jose.ES256, key, "k1", good(claims{"exp": noon.Add(-31 * time.Second).Unix()})),
		"without an end":                sign(t, jose.ES256, key, "k1", good(claims{"exp": nil})),
		"an end that is no number":      sign(t, jose.ES256, key, "k1", good(claims{"exp": "never"})),
		"an end beyond time":            sign(t, jose.ES256, key, "k1", good(claims{"exp": 1e300})),
		"not valid yet":                 sign(t, jose.ES256, key, "k1", good(claims{"nbf": noon.Add(31 * time.Second).Unix()})),
		"issued in the future":          sign(t, jose.ES256, key, "k1", good(claims{"iat": noon.Add(31 * time.Second).Unix()})),
		"another issuer":                sign(t, jose.ES256, key, "k1", good(claims{"iss": issuer + "/"})),
		"no issuer":                     sign(t, jose.ES256, key, "k1", good(claims{"iss": nil})),
		"another audience":              sign(t, jose.ES256, key, "k1", good(claims{"aud": "apis"})),
		"no audience":                   sign(t, jose.ES256, key, "k1", good(claims{"aud": nil})),
		"too long":                      sign(t, jose.ES256, key, "k1", good(claims{"x": strings.Repeat("x", 8<<10)})),
	} {
		tenant, user, ok := v.Verify(token, somebody, noon)
		require.False(t, ok, name)
		require.Empty(t, tenant+user, name)
	}
	_, _, ok := v.Verify(valid, somebody, noon)
	require.True(t, ok)
}

func TestClocksMayDifferByHalfAMinute(t *testing.T) {
	t.Parallel()
	key := ecKey(t, elliptic.P256())
	v := fromFile(t, set(t, public(key, "")), nil)
	token := sign(t, jose.ES256, key, "", good(claims{"exp": noon.Unix()}))
	for _, c := range []struct {
		after time.Duration
		ok    bool
	}{{29 * time.Second, true}, {31 * time.Second, false}, {-time.Second, true}} {
		_, _, ok := v.Verify(token, somebody, noon.Add(c.after))
		require.Equal(t, c.ok, ok, c.after)
	}
	require.EqualValues(t, 1, v.Count(jwt.Cached), "what is remembered ends when the token does")
}

func TestClaims(t *testing.T) {
	t.Parallel()
	key := ecKey(t, elliptic.P256())
	raw := set(t, public(key, ""))
	for _, c := range []struct {
		claim  string
		claims claims
		want   string
	}{
		{"", nil, "school-17"},
		{"org", claims{"org": "a"}, "a"},
		{"https://example.org/tenant", claims{"https://example.org/tenant": "b"}, "b"},
		{"app_metadata.tenant", claims{"app_metadata": claims{"tenant": "c"}}, "c"},
		{"a.b.c", claims{"a": claims{"b.c": "d"}}, "d"},
		{"a.b", claims{"a": "text"}, ""},
		{"org", claims{"org": []string{"a", "b"}}, ""},
		{"org", claims{"org": 7}, ""},
		{"nothing", nil, ""},
	} {
		v := fromFile(t, raw, func(cfg *jwt.Config) { cfg.TenantClaim = c.claim })
		tenant, user, ok := v.Verify(sign(t, jose.ES256, key, "", good(c.claims)), somebody, noon)
		require.True(t, ok, c.claim)
		require.Equal(t, c.want, tenant, c.claim)
		require.Equal(t, "u42", user)
	}
}

// A flood of wrong signatures from one address costs twenty checks a second; others and known tokens do not notice.
func TestAFloodOfWrongSignaturesIsNotChecked(t *testing.T) {
	t.Parallel()
	key, other := ecKey(t, elliptic.P256()), ecKey(t, elliptic.P256())
	v := fromFile(t, set(t, public(key, "k1")), nil)
	known := sign(t, jose.ES256, key, "k1", good(nil))
	_, _, ok := v.Verify(known, somebody, noon)
	require.True(t, ok)
	for n := range 100 {
		_, _, ok := v.Verify(sign(t, jose.ES256, other, "k1", good(claims{"jti": strconv.Itoa(n)})), somebody, noon)
		require.False(t, ok)
	}
	require.EqualValues(t, 20, v.Count(jwt.Refused))
	require.EqualValues(t, 80, v.Count(jwt.Skipped))
	_, _, ok = v.Verify(known, somebody, noon)
	require.True(t, ok, "known already")
	fresh := sign(t, jose.ES256, key, "k1", good(claims{"jti": "fresh"}))
	_, _, ok = v.Verify(fresh, netip.MustParsePrefix("198.51.100.1/32"), noon)
	require.True(t, ok, "from another address")
	fresh = sign(t, jose.ES256, key, "k1", good(claims{"jti": "fresher"}))
	_, _, ok = v.Verify(fresh, somebody, noon)
	require.False(t, ok)
	_, _, ok = v.Verify(fresh, somebody, noon.Add(time.Second))
	require.True(t, ok, "a second later")
}

func TestKeySets(t *testing.T) {
	t.Parallel()
	key := ecKey(t, elliptic.P256())
	one := public(key, "k1")
	secret := jose.JSONWebKey{Key: []byte("0123456789abcdef0123456789abcdef"), KeyID: "k2"}
	private := jose.JSONWebKey{Key: key, KeyID: "k3"}
	weak := strings.Replace(string(set(t, one)), `{"keys":[`, `{"keys":[{"kty":"RSA","kid":"weak","e":"AQAB","n":"`+base64.RawURLEncoding.EncodeToString(make([]byte, 64))+`"},{"kty":"OKP","crv":"X99","kid":"odd","x":"AA"},`, 1)
	for name, raw := range map[string][]byte{"with a secret": set(t, secret, one), "with a private key": set(t, private, one), "with odd keys": []byte(weak)} {
		v := fromFile(t, raw, nil)
		require.Equal(t, 1, v.Keys(), name)
		_, _, ok := v.Verify(sign(t, jose.HS256, secret.Key, "k2", good(nil)), somebody, noon)
		require.False(t, ok, name)
	}
	for name, raw := range map[string]string{
		"empty": "", "no object": `[]`, "no keys": `{}`, "none to use": string(set(t, secret)), "one id twice": string(set(t, one, one)),
		"too large": string(set(t, one)) + strings.Repeat(" ", 256<<10), "too many": `{"keys":[` + strings.Repeat("{},", 100) + `{}]}`,
	} {
		path := filepath.Join(t.TempDir(), "keys.json")
		require.NoError(t, os.WriteFile(path, []byte(raw), 0o600))
		v, err := jwt.New(jwt.Config{File: path, Issuer: issuer})
		require.NoError(t, err)
		require.Error(t, v.Load(t.Context()), name)
		_, _, ok := v.Verify(sign(t, jose.ES256, key, "k1", good(nil)), somebody, noon)
		require.False(t, ok, name)
	}
}

// The keys follow their URL: an unknown key is looked for, keys that are gone no longer count, not even for tokens that are
// remembered, and while the URL is away the last ones hold.
func TestKeysFollowTheirURL(t *testing.T) {
	t.Parallel()
	first, second := ecKey(t, elliptic.P256()), ecKey(t, elliptic.P256())
	var body atomic.Pointer[[]byte]
	serve := func(raw []byte) { body.Store(&raw) }
	serve(set(t, public(first, "k1")))
	var reads atomic.Int64
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reads.Add(1)
		if raw := *body.Load(); raw != nil {
			_, _ = w.Write(raw)
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(server.Close)
	v, err := jwt.New(jwt.Config{
		URL: server.URL + "/jwks", Issuer: issuer, Transport: server.Client().Transport, Every: time.Hour, Pause: 20 * time.Millisecond,
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); v.Run(ctx) }()
	defer func() { stop(); <-done }()
	<-v.Tried()

	ofFirst, ofSecond := sign(t, jose.ES256, first, "k1", good(nil)), sign(t, jose.ES256, second, "k2", good(nil))
	counts := func(token string) bool { _, _, ok := v.Verify(token, somebody, noon); return ok }
	require.True(t, counts(ofFirst))

	serve(nil)
	require.False(t, counts(ofSecond))
	require.Eventually(t, func() bool { return reads.Load() >= 3 }, 10*time.Second, time.Millisecond, "a failed reading is repeated")
	require.True(t, counts(ofFirst), "the last keys hold")

	serve(set(t, public(second, "k2")))
	require.Eventually(t, func() bool { return counts(ofSecond) }, 10*time.Second, time.Millisecond)
	require.False(t, counts(ofFirst), "its key is gone, and what was remembered with it")

	before := reads.Load()
	for range 1000 {
		counts(ofFirst)
	}
	require.Less(t, reads.Load()-before, int64(1000), "an unknown key cannot make us ask without end")
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for _, cfg := range []jwt.Config{
		{Issuer: issuer},
		{Issuer: issuer, File: "a", URL: "https://a.example/"},
		{File: "a"},
		{Issuer: issuer, URL: "http://keys.example/jwks"},
		{Issuer: issuer, URL: "https://user:secret@keys.example/jwks"},
		{Issuer: issuer, URL: "ftp://keys.example/jwks"},
		{Issuer: issuer, URL: "https:///jwks"},
	} {
		_, err := jwt.New(cfg)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "secret")
	}
	for _, url := range []string{"https://keys.example/jwks", "http://127.0.0.1:1/jwks", "http://[::1]/jwks", "http://localhost/jwks"} {
		require.NoError(t, jwt.CheckURL(url))
	}
}

// Whatever a stranger sends is refused without a panic.
func FuzzVerify(f *testing.F) {
	key := ecKey(f, elliptic.P256())
	v := fromFile(f, set(f, public(key, "k1")), nil)
	f.Add(sign(f, jose.ES256, ecKey(f, elliptic.P256()), "k1", good(nil)))
	f.Add("..")
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Fuzz(func(t *testing.T, token string) {
		_, _, ok := v.Verify(token, somebody, noon)
		require.False(t, ok)
	})
}

func BenchmarkVerify(b *testing.B) {
	key, wrong := rsaKey(b, 2048), ecKey(b, elliptic.P256())
	v := fromFile(b, set(b, public(key, "rsa"), public(wrong, "ec")), nil)
	token := sign(b, jose.RS256, key, "rsa", good(nil))
	b.Run("known", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			v.Verify(token, somebody, noon)
		}
	})
	expired := sign(b, jose.RS256, key, "rsa", good(claims{"exp": noon.Add(-time.Hour).Unix()}))
	b.Run("expired", func(b *testing.B) {
		for b.Loop() {
			v.Verify(expired, somebody, noon)
		}
	})
	for alg, kid := range map[jose.SignatureAlgorithm]string{jose.RS256: "rsa", jose.ES256: "ec"} {
		var signer crypto.Signer = rsaKey(b, 2048)
		if kid == "ec" {
			signer = ecKey(b, elliptic.P256())
		}
		forged := sign(b, alg, signer, kid, good(nil))
		b.Run("forged "+string(alg), func(b *testing.B) {
			for n := 0; b.Loop(); n++ { // never so many within a second that they are skipped
				v.Verify(forged, somebody, noon.Add(time.Duration(n/20)*time.Second%(50*time.Minute)))
			}
		})
	}
}
