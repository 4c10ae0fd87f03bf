package postgres_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

func key(id string) tenants.APIKey {
	return tenants.APIKey{ID: id, Name: "key " + id, Hash: [32]byte{1, 2, 3}}
}

func service(id string) tenants.ServiceToken {
	return tenants.ServiceToken{
		ID: id, Name: "service " + id, Hash: [32]byte{4, 5, 6},
		Exempt: []ratelimit.Scope{ratelimit.ScopeAddress}, May: []tenants.Permission{tenants.MayCheck, tenants.MayIdentify},
	}
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func errorIs(err, target error) bool { return errors.Is(err, target) }

func TestKeyFromBirthToRevocation(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := t.Context()
	b.havePlan(t, "light", 10)
	owner := b.haveTenant(t, "school-17", "light")
	b.haveTenant(t, "other", "light")
	c, _, err := tenants.NewCredential(tenants.KindAPIKey, rand.Reader)
	require.NoError(t, err)
	expires := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	stored, err := b.CreateKey(ctx, alice, "school-17", tenants.APIKey{ID: c.ID, Name: "app", Hash: c.Hash, ExpiresAt: expires})
	require.NoError(t, err)
	require.Equal(t, owner.ID, stored.TenantID)
	require.Equal(t, c.Hash, stored.Hash)
	require.Equal(t, expires, stored.ExpiresAt)
	found, ok := b.snapshot(t).VerifyAPIKey(c, time.Now())
	require.True(t, ok)
	require.Equal(t, stored, *found)
	_, ok = b.snapshot(t).VerifyAPIKey(c, expires)
	require.False(t, ok, "exactly at expiry it is over")

	_, err = b.CreateKey(ctx, alice, "nobody", key("x"))
	require.ErrorIs(t, err, tenants.ErrNotFound)
	_, err = b.CreateKey(ctx, alice, "school-17", tenants.APIKey{ID: c.ID, Name: "again", Hash: c.Hash})
	require.ErrorIs(t, err, tenants.ErrConflict)

	// Another tenant's key is not there.
	require.ErrorIs(t, b.RevokeKey(ctx, alice, "other", c.ID), tenants.ErrNotFound)
	_, err = b.RotateKey(ctx, alice, "other", c.ID, key("x"), expires)
	require.ErrorIs(t, err, tenants.ErrNotFound)

	soon := time.Now().Add(time.Minute).UTC().Truncate(time.Microsecond)
	successor := key("successor")
	successor.Name = ""
	next, err := b.RotateKey(ctx, alice, "school-17", c.ID, successor, soon)
	require.NoError(t, err)
	require.Equal(t, "app", next.Name, "the successor keeps the name")
	list, err := b.ListKeys(ctx, "school-17", tenants.CredentialFilter{}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, list.Items, 2)
	require.Equal(t, soon, list.Items[0].ExpiresAt)
	_, err = b.RotateKey(ctx, alice, "school-17", c.ID, key("third"), expires)
	require.NoError(t, err)
	list, err = b.ListKeys(ctx, "school-17", tenants.CredentialFilter{}, tenants.Page{})
	require.NoError(t, err)
	require.Equal(t, soon, list.Items[0].ExpiresAt, "rotation never prolongs a life")

	require.NoError(t, b.RevokeKey(ctx, alice, "school-17", c.ID))
	entries := b.number(t, `SELECT count(*) FROM audit_log`)
	require.NoError(t, b.RevokeKey(ctx, alice, "school-17", c.ID), "again is fine")
	require.Equal(t, entries, b.number(t, `SELECT count(*) FROM audit_log`), "and changes nothing")
	_, ok = b.snapshot(t).VerifyAPIKey(c, time.Now())
	require.False(t, ok)
	_, err = b.RotateKey(ctx, alice, "school-17", c.ID, key("fourth"), expires)
	require.ErrorIs(t, err, tenants.ErrConflict)
	list, err = b.ListKeys(ctx, "school-17", tenants.CredentialFilter{}, tenants.Page{})
	require.NoError(t, err)
	require.False(t, list.Items[0].RevokedAt.IsZero(), "revoked keys stay listed")
	_, err = b.ListKeys(ctx, "nobody", tenants.CredentialFilter{}, tenants.Page{})
	require.ErrorIs(t, err, tenants.ErrNotFound)
}

func TestServiceTokenRotationKeepsItsPermissions(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := t.Context()
	first, err := b.CreateServiceToken(ctx, alice, service("s1"))
	require.NoError(t, err)
	next, err := b.RotateServiceToken(ctx, alice, "s1", tenants.ServiceToken{ID: "s2", Hash: [32]byte{9}}, time.Now().Add(time.Minute))
	require.NoError(t, err)
	require.Equal(t, first.May, next.May)
	require.Equal(t, first.Exempt, next.Exempt)
	require.Equal(t, first.Name, next.Name)
	require.True(t, next.ExpiresAt.IsZero())
	list, err := b.ListServiceTokens(ctx, tenants.CredentialFilter{}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, list.Items, 2)
	require.False(t, list.Items[0].ExpiresAt.IsZero())
	require.NoError(t, b.RevokeServiceToken(ctx, alice, "s2"))
	_, err = b.RotateServiceToken(ctx, alice, "s2", service("s3"), time.Now())
	require.ErrorIs(t, err, tenants.ErrConflict)
	require.ErrorIs(t, b.RevokeServiceToken(ctx, alice, "nobody"), tenants.ErrNotFound)
}

func TestCredentialsThatEndedLongAgoAreNotLoaded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := t.Context()
	b.havePlan(t, "light", 10)
	b.haveTenant(t, "school-17", "light")
	for _, id := range []string{"alive", "expired", "revoked", "justrevoked"} {
		_, err := b.CreateKey(ctx, alice, "school-17", key(id))
		require.NoError(t, err)
	}
	b.exec(t, `UPDATE api_keys SET expires_at = now() - interval '25 hours' WHERE id = 'expired'`)
	b.exec(t, `UPDATE api_keys SET revoked_at = now() - interval '25 hours' WHERE id = 'revoked'`)
	require.NoError(t, b.RevokeKey(ctx, alice, "school-17", "justrevoked"))
	s := b.snapshot(t)
	for id, want := range map[string]bool{"alive": true, "expired": false, "revoked": false, "justrevoked": true} {
		_, ok := s.APIKey(id)
		require.Equal(t, want, ok, id)
	}
}

func TestAdminTokens(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := t.Context()
	c, _, err := tenants.NewCredential(tenants.KindAdminToken, rand.Reader)
	require.NoError(t, err)
	stored, err := b.CreateAdminToken(ctx, alice, tenants.AdminToken{ID: c.ID, Name: "ops", Role: tenants.Viewer, Hash: c.Hash})
	require.NoError(t, err)
	found, ok := b.snapshot(t).VerifyAdminToken(c, time.Now())
	require.True(t, ok)
	require.Equal(t, stored, *found)
	list, err := b.ListAdminTokens(ctx, tenants.CredentialFilter{}, tenants.Page{})
	require.NoError(t, err)
	require.Equal(t, []tenants.AdminToken{stored}, list.Items)
	require.NoError(t, b.RevokeAdminToken(ctx, alice, c.ID))
	_, ok = b.snapshot(t).VerifyAdminToken(c, time.Now())
	require.False(t, ok)
}

func TestOverridesAndNetworks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := t.Context()
	b.havePlan(t, "light", 10)
	b.haveTenant(t, "school-17", "light")
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	_, _, err := b.PutOverride(ctx, alice, "school-17", tenants.Override{LimitName: "requests-per-minute", Quota: 50, Reason: "exams", ExpiresAt: until})
	require.NoError(t, err)
	put, _, err := b.PutOverride(ctx, alice, "school-17", tenants.Override{LimitName: "requests-per-minute", Quota: 60, Reason: "exams", ExpiresAt: until})
	require.NoError(t, err)
	from, to := field(b.lastEntry(t), "limit")
	require.Equal(t, "50", from)
	require.Equal(t, "60", to)
	list, err := b.ListOverrides(ctx, "school-17", tenants.OverrideFilter{}, tenants.Page{})
	require.NoError(t, err)
	require.Equal(t, []tenants.Override{put}, list.Items)
	view, ok := b.snapshot(t).Tenant("school-17")
	require.True(t, ok)
	require.EqualValues(t, 60, view.Limits[0].LimitAt(until.Add(-time.Second)).Quota)
	require.EqualValues(t, 10, view.Limits[0].LimitAt(until).Quota, "an exception ends by itself")
	require.NoError(t, b.DeleteOverride(ctx, alice, "school-17", "requests-per-minute"))
	require.ErrorIs(t, b.DeleteOverride(ctx, alice, "school-17", "requests-per-minute"), tenants.ErrNotFound)
	_, _, err = b.PutOverride(ctx, alice, "nobody", tenants.Override{LimitName: "x", Reason: "y"})
	require.ErrorIs(t, err, tenants.ErrNotFound)

	n, err := b.CreateNetwork(ctx, alice, tenants.Network{CIDR: prefix("2001:db8::/32"), Action: tenants.Deny, Reason: "scan", ExpiresAt: until})
	require.NoError(t, err)
	_, err = b.CreateNetwork(ctx, alice, tenants.Network{CIDR: prefix("2001:db8::/32"), Action: tenants.Deny})
	require.ErrorIs(t, err, tenants.ErrConflict)
	networks, err := b.ListNetworks(ctx, tenants.NetworkFilter{}, tenants.Page{})
	require.NoError(t, err)
	require.Equal(t, []tenants.Network{n}, networks.Items)
	require.True(t, b.snapshot(t).NetworkDenied(netip.MustParseAddr("2001:db8::1"), until.Add(-time.Second)))
	require.NoError(t, b.DeleteNetwork(ctx, alice, n.ID))
	require.ErrorIs(t, b.DeleteNetwork(ctx, alice, n.ID), tenants.ErrNotFound)
}

func TestMarkUsedMovesForwardOnly(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := t.Context()
	b.havePlan(t, "light", 10)
	b.haveTenant(t, "school-17", "light")
	many := map[string]time.Time{"unknown": time.Unix(1000, 0)}
	for n := range 3 {
		id := fmt.Sprintf("k%d", n)
		_, err := b.CreateKey(ctx, alice, "school-17", key(id))
		require.NoError(t, err)
		many[id] = time.Unix(1000, 0)
	}
	_, err := b.CreateServiceToken(ctx, alice, service("k0"))
	require.NoError(t, err)
	version, entries := b.number(t, `SELECT version FROM config_version`), b.number(t, `SELECT count(*) FROM audit_log`)
	require.NoError(t, b.MarkUsed(ctx, tenants.KindAPIKey, many))
	require.NoError(t, b.MarkUsed(ctx, tenants.KindAPIKey, map[string]time.Time{"k0": time.Unix(999, 0), "k1": time.Unix(1001, 0)}))
	require.NoError(t, b.MarkUsed(ctx, tenants.KindServiceToken, nil))
	list, err := b.ListKeys(ctx, "school-17", tenants.CredentialFilter{}, tenants.Page{})
	require.NoError(t, err)
	for n, want := range []int64{1000, 1001, 1000} {
		require.Equal(t, want, list.Items[n].LastUsedAt.Unix())
	}
	tokens, err := b.ListServiceTokens(ctx, tenants.CredentialFilter{}, tenants.Page{})
	require.NoError(t, err)
	require.True(t, tokens.Items[0].LastUsedAt.IsZero(), "a key is not a token")
	require.Error(t, b.MarkUsed(ctx, "zzz", many))
	require.Equal(t, version, b.number(t, `SELECT version FROM config_version`))
	require.Equal(t, entries, b.number(t, `SELECT count(*) FROM audit_log`))
}
