package tenants_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"hash/crc32"
	"math/big"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pegel-dev/pegel/internal/tenants"
)

var kinds = []tenants.Kind{tenants.KindAPIKey, tenants.KindServiceToken, tenants.KindAdminToken}

func TestCredentialRoundTrip(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^pg[ksa]_[0-9A-Za-z]{16}_[0-9A-Za-z]{49}$`)
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.SliceOfN(rapid.Byte(), 44, 44).Draw(t, "bits")
		kind := rapid.SampledFrom(kinds).Draw(t, "kind")
		made, text, err := tenants.NewCredential(kind, bytes.NewReader(bits))
		require.NoError(t, err)
		require.Regexp(t, form, text, "whatever the bits: one length")
		require.True(t, tenants.IsCredential(text))
		parsed, err := tenants.ParseCredential(text)
		require.NoError(t, err)
		require.Equal(t, made, parsed)
		secret := text[len("pgk_")+16+1 : len(text)-6]
		require.Equal(t, sha256.Sum256([]byte(secret)), parsed.Hash, "the hash is of the secret alone")
		require.True(t, parsed.Matches(made.Hash))
		sum := crc32.ChecksumIEEE([]byte(text[:len(text)-6]))
		require.Equal(t, new(big.Int).SetUint64(uint64(sum)).Text(62), strings.TrimLeft(swapCase(text[len(text)-6:]), "0"), "a scanner can check it")

		// One wrong character anywhere is found.
		i := rapid.IntRange(0, len(text)-1).Draw(t, "at")
		c := rapid.Byte().Draw(t, "byte")
		if c != text[i] {
			_, err := tenants.ParseCredential(text[:i] + string([]byte{c}) + text[i+1:])
			require.ErrorIs(t, err, tenants.ErrCredential)
		}
	})
}

// swapCase turns our digits (upper case first) into math/big's (lower case first).
func swapCase(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsUpper(r):
			return unicode.ToLower(r)
		case unicode.IsLower(r):
			return unicode.ToUpper(r)
		}
		return r
	}, s)
}

func TestCredentialsDiffer(t *testing.T) {
	t.Parallel()
	a, textA, err := tenants.NewCredential(tenants.KindAPIKey, rand.Reader)
	require.NoError(t, err)
	b, textB, err := tenants.NewCredential(tenants.KindAPIKey, rand.Reader)
	require.NoError(t, err)
	require.NotEqual(t, a.ID, b.ID)
	require.NotEqual(t, textA, textB)
	require.False(t, a.Matches(b.Hash))
	_, _, err = tenants.NewCredential(tenants.KindAPIKey, bytes.NewReader(make([]byte, 20)))
	require.Error(t, err, "too little randomness is no credential")
}

func TestMalformedCredentialsAreRefusedEarlyAndCheaply(t *testing.T) {
	_, good, err := tenants.NewCredential(tenants.KindServiceToken, rand.Reader)
	require.NoError(t, err)
	megabyte := "pgs_" + strings.Repeat("é", 1<<19)
	for name, text := range map[string]string{
		"empty": "", "prefix": "pgs_", "other": "ghp_" + good[4:], "no underscore": "pgsx" + good[4:], "truncated": good[:len(good)-1],
		"longer": good + "A", "space before": " " + good, "space inside": good[:30] + " " + good[31:], "newline": good[:len(good)-1] + "\n",
		"non-ASCII": good[:30] + "é" + good[32:], "NUL": good[:30] + "\x00" + good[31:], "megabyte": megabyte, "checksum": good[:len(good)-6] + "000000",
		"id cut": good[:10] + "_" + good[11:], "upper-case kind": "PGS_" + good[4:], "two": good + " " + good,
	} {
		allocations := testing.AllocsPerRun(10, func() {
			if _, err := tenants.ParseCredential(text); !errors.Is(err, tenants.ErrCredential) {
				t.Errorf("%s: accepted", name)
			}
		})
		require.Zero(t, allocations, name)
	}
	require.True(t, tenants.IsCredential("pgk_anything at all"), "wrong, but ours")
	for _, s := range []string{"", "pgk", "pgx_abc", "Bearer pgk_", "PGK_"} {
		require.False(t, tenants.IsCredential(s), s)
	}
}

func TestAlive(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name             string
		expires, revoked time.Time
		want             bool
	}{
		{"for ever", time.Time{}, time.Time{}, true},
		{"a moment before expiry", now.Add(1), time.Time{}, true},
		{"exactly at expiry", now, time.Time{}, false},
		{"after expiry", now.Add(-time.Second), time.Time{}, false},
		{"revoked", time.Time{}, now.Add(-time.Hour), false},
		{"revoked by a clock ahead of ours", time.Time{}, now.Add(time.Hour), false},
		{"both", now.Add(time.Hour), now, false},
	} {
		require.Equal(t, c.want, tenants.Alive(now, c.expires, c.revoked), c.name)
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	make1 := func(kind tenants.Kind) tenants.Credential {
		c, _, err := tenants.NewCredential(kind, rand.Reader)
		require.NoError(t, err)
		return c
	}
	key, service, admin, viewer := make1(tenants.KindAPIKey), make1(tenants.KindServiceToken), make1(tenants.KindAdminToken), make1(tenants.KindAdminToken)
	lasting := make1(tenants.KindAPIKey)
	s := tenants.NewSnapshot(tenants.Changes{
		Version: 1,
		APIKeys: []tenants.APIKey{
			{ID: key.ID, Hash: key.Hash, ExpiresAt: now.Add(time.Hour)},
			{ID: lasting.ID, Hash: lasting.Hash},
			{ID: "unreadable"}, // a broken row has the zero hash
		},
		ServiceTokens: []tenants.ServiceToken{{ID: service.ID, Hash: service.Hash}},
		AdminTokens:   []tenants.AdminToken{{ID: admin.ID, Hash: admin.Hash, RevokedAt: now}, {ID: viewer.ID, Hash: viewer.Hash}},
	}, now)
	verify := func(c tenants.Credential, at time.Time) (ok bool) {
		switch c.Kind {
		case tenants.KindAPIKey:
			_, ok = s.VerifyAPIKey(c, at)
		case tenants.KindServiceToken:
			_, ok = s.VerifyServiceToken(c, at)
		case tenants.KindAdminToken:
			_, ok = s.VerifyAdminToken(c, at)
		}
		return ok
	}
	require.True(t, verify(key, now))
	require.False(t, verify(key, now.Add(time.Hour)))
	require.True(t, verify(service, now))
	require.False(t, verify(admin, now), "revoked")
	wrong := key
	wrong.Hash[0] ^= 1
	require.False(t, verify(wrong, now))
	require.False(t, verify(make1(tenants.KindAPIKey), now), "unknown")
	require.False(t, verify(tenants.Credential{Kind: tenants.KindAPIKey, ID: "unknown"}, now), "a zero hash matches nobody")
	require.False(t, verify(tenants.Credential{Kind: tenants.KindAPIKey, ID: "unreadable"}, now))
	_, ok := s.VerifyAPIKey(tenants.Credential{Kind: tenants.KindServiceToken, ID: key.ID, Hash: key.Hash}, now)
	require.False(t, ok, "one kind is not another")

	// Trust in service and admin tokens ends when Postgres has not confirmed them for a day; keys and tenants serve on.
	for _, token := range []tenants.Credential{service, viewer} {
		require.True(t, verify(token, now.Add(tenants.TrustTokensFor-1)))
		require.False(t, verify(token, now.Add(tenants.TrustTokensFor)))
	}
	require.True(t, verify(lasting, now.Add(100*tenants.TrustTokensFor)))
}

func TestTrustedAt(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	require.True(t, tenants.TrustedAt(at, at, time.Hour))
	require.True(t, tenants.TrustedAt(at.Add(time.Hour-1), at, time.Hour))
	require.False(t, tenants.TrustedAt(at.Add(time.Hour), at, time.Hour))
	require.True(t, tenants.TrustedAt(at.Add(-time.Hour), at, time.Hour), "a clock that went back")
	require.False(t, tenants.TrustedAt(at, time.Time{}, time.Hour), "never confirmed")
}

func FuzzParseCredential(f *testing.F) {
	_, good, err := tenants.NewCredential(tenants.KindAPIKey, bytes.NewReader(make([]byte, 44)))
	require.NoError(f, err)
	f.Add(good)
	f.Add("pgk_x_y")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := tenants.ParseCredential(s)
		if err != nil {
			return
		}
		require.True(t, tenants.IsCredential(s))
		require.True(t, strings.HasPrefix(s, string(c.Kind)+"_"+c.ID+"_"))
	})
}
