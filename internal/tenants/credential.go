package tenants

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/big"
	"strings"
	"time"
)

// Kind is the prefix that tells our credentials from anybody else's.
type Kind string

// The credential kinds.
const (
	KindAPIKey       Kind = "pgk"
	KindServiceToken Kind = "pgs"
	KindAdminToken   Kind = "pga"
)

// The parts of `<kind>_<public id>_<secret><checksum>`, in base62 digits. Every credential has the same length, so
// anything else is refused before it is looked at.
const (
	idLength       = 16 // 95 bits: never guessed, never met twice
	secretLength   = 43 // 256 bits
	checksumLength = 6  // CRC-32 of everything before it: finds typing errors and lets secret scanners be sure
	credentialSize = len(KindAPIKey) + 1 + idLength + 1 + secretLength + checksumLength
)

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// Credential is a parsed credential: `<kind>_<public id>_<secret><checksum>`. It is for comparing, never for printing.
type Credential struct {
	Kind Kind
	ID   string
	// Hash is the SHA-256 of the secret; the secret itself is not kept.
	Hash [32]byte
}

// ErrCredential is the one answer for a text that is not a credential of ours.
var ErrCredential = errors.New("not a valid credential")

// NewCredential makes a credential from 256 random bits (crypto/rand.Reader) and returns with it the text that is shown
// once and stored nowhere.
func NewCredential(kind Kind, random io.Reader) (c Credential, text string, err error) {
	id, err := randomBase62(random, 12, idLength)
	if err != nil {
		return Credential{}, "", err
	}
	secret, err := randomBase62(random, 32, secretLength)
	if err != nil {
		return Credential{}, "", err
	}
	text = string(kind) + "_" + id + "_" + secret
	sum := checksum(text)
	text += string(sum[:])
	return Credential{Kind: kind, ID: id, Hash: sha256.Sum256([]byte(secret))}, text, nil
}

// IsCredential reports whether a value claims to be ours: it starts with pgk_, pgs_ or pga_, whatever follows. Everything
// else is somebody else's business and passes through untouched.
func IsCredential(s string) bool {
	_, ok := kindOf(s)
	return ok
}

// ParseCredential reads a credential. A malformed one costs a length check, a scan of 69 bytes or a checksum, never an
// allocation, a hash or a look-up.
func ParseCredential(s string) (Credential, error) {
	kind, ok := kindOf(s)
	if !ok || len(s) != credentialSize || s[len(kind)+1+idLength] != '_' {
		return Credential{}, ErrCredential
	}
	id := s[len(kind)+1 : len(kind)+1+idLength]
	secret := s[len(kind)+1+idLength+1 : len(s)-checksumLength]
	if !isBase62(id) || !isBase62(secret) || !checksumFits(s) {
		return Credential{}, ErrCredential
	}
	// The id is cloned: a map key or a log line must not keep a whole header alive, secret included.
	return Credential{Kind: kind, ID: strings.Clone(id), Hash: sha256.Sum256([]byte(secret))}, nil
}

// Matches compares with a stored hash in constant time. Where nothing is stored, compare with the zero hash all the same:
// an unknown id then costs what a wrong secret costs, and nobody's secret hashes to zero.
func (c Credential) Matches(stored [32]byte) bool {
	return subtle.ConstantTimeCompare(c.Hash[:], stored[:]) == 1 && stored != [32]byte{}
}

// Alive reports whether a credential may be used at a moment: not revoked, and not at or past its expiry. Zero times mean
// never. Revoked is revoked whatever the clock says: the time was written by another machine's.
func Alive(now, expiresAt, revokedAt time.Time) bool {
	return revokedAt.IsZero() && (expiresAt.IsZero() || now.Before(expiresAt))
}

// AliveAt reports whether the key may be used at a moment.
func (k *APIKey) AliveAt(now time.Time) bool { return Alive(now, k.ExpiresAt, k.RevokedAt) }

// AliveAt reports whether the token may be used at a moment.
func (t *ServiceToken) AliveAt(now time.Time) bool { return Alive(now, t.ExpiresAt, t.RevokedAt) }

// AliveAt reports whether the token may be used at a moment.
func (t *AdminToken) AliveAt(now time.Time) bool { return Alive(now, t.ExpiresAt, t.RevokedAt) }

// VerifyAPIKey is the key a credential proves at a moment. Malformed, unknown, wrong, expired and revoked are one answer,
// and an unknown id takes as long as a wrong secret.
func (s *Snapshot) VerifyAPIKey(c Credential, now time.Time) (*APIKey, bool) {
	key, found := s.apiKeys.get(c.ID)
	if !found {
		key = &APIKey{}
	}
	ok := c.Matches(key.Hash) && c.Kind == KindAPIKey && key.AliveAt(now)
	if !ok {
		return nil, false
	}
	return key, true
}

// VerifyServiceToken is the service token a credential proves at a moment, on the terms of VerifyAPIKey. With a snapshot
// that Postgres has not confirmed for a day (TrustTokensFor) nobody's token counts any more (see Snapshot.TokensTrusted). API keys
// go on: they open nothing but their tenant's own budget, and ending them would shut every tenant out.
func (s *Snapshot) VerifyServiceToken(c Credential, now time.Time) (*ServiceToken, bool) {
	token, found := s.serviceTokens.get(c.ID)
	if !found {
		token = &ServiceToken{}
	}
	ok := c.Matches(token.Hash) && c.Kind == KindServiceToken && token.AliveAt(now)
	if !ok || !s.TokensTrusted(now) {
		return nil, false
	}
	return token, true
}

// VerifyAdminToken is the admin token a credential proves at a moment, on the terms of VerifyServiceToken.
func (s *Snapshot) VerifyAdminToken(c Credential, now time.Time) (*AdminToken, bool) {
	token, found := s.adminTokens.get(c.ID)
	if !found {
		token = &AdminToken{}
	}
	ok := c.Matches(token.Hash) && c.Kind == KindAdminToken && token.AliveAt(now)
	if !ok || !s.TokensTrusted(now) {
		return nil, false
	}
	return token, true
}

// kindOf reads the prefix without allocating.
func kindOf(s string) (Kind, bool) {
	if len(s) < 4 || s[3] != '_' {
		return "", false
	}
	switch s[:3] {
	case string(KindAPIKey):
		return KindAPIKey, true
	case string(KindServiceToken):
		return KindServiceToken, true
	case string(KindAdminToken):
		return KindAdminToken, true
	}
	return "", false
}

// randomBase62 is n random bytes as exactly `digits` base62 digits, leading zeros kept.
func randomBase62(random io.Reader, n, digits int) (string, error) {
	raw := make([]byte, n)
	if _, err := io.ReadFull(random, raw); err != nil {
		return "", fmt.Errorf("random bits for a credential: %w", err)
	}
	out := make([]byte, digits)
	value, base, digit := new(big.Int).SetBytes(raw), big.NewInt(int64(len(base62))), new(big.Int)
	for i := digits - 1; i >= 0; i-- {
		value.DivMod(value, base, digit)
		out[i] = base62[digit.Int64()]
	}
	return string(out), nil
}

// checksum is the CRC-32 (IEEE) of a text as base62 digits. It runs over the string byte by byte: crc32.ChecksumIEEE would
// need a copy on the heap for each wrong credential.
func checksum(text string) (digits [checksumLength]byte) {
	crc := ^uint32(0)
	for i := range len(text) {
		crc = crc32.IEEETable[byte(crc&0xff)^text[i]] ^ crc>>8
	}
	crc = ^crc
	for i := checksumLength - 1; i >= 0; i-- {
		digits[i] = base62[crc%uint32(len(base62))]
		crc /= uint32(len(base62))
	}
	return digits
}

func checksumFits(s string) bool {
	digits := checksum(s[:len(s)-checksumLength])
	return s[len(s)-checksumLength:] == string(digits[:])
}

func isBase62(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}
