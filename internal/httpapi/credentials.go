package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// How long a rotated credential lives beside its successor.
const (
	defaultOverlap = 24 * time.Hour
	maxOverlap     = 30 * 24 * time.Hour
)

// ListKeys is GET /admin/tenants/{tenant}/keys.
func (a *admin) ListKeys(c *gin.Context, slug gen.TenantSlug, params gen.ListKeysParams) {
	page, err := a.repository.ListKeys(c.Request.Context(), slug, tenants.CredentialFilter{Search: orZero(params.Search), Status: tenants.CredentialStatus(orZero(params.Status))}, pageOf(params.Limit, params.Cursor))
	list(a, c, page, err, showKey)
}

// CreateKey is POST /admin/tenants/{tenant}/keys.
func (a *admin) CreateKey(c *gin.Context, slug gen.TenantSlug, params gen.CreateKeyParams) {
	var in gen.KeyCreate
	err := decodeBody(c, &in)
	key := tenants.APIKey{Name: tenants.TidyName(in.Name), ExpiresAt: readEnd(in.ExpiresAt)}
	if err == nil {
		err = invalidConfig(tenants.ValidateAPIKey(&key, a.now()))
	}
	if err != nil {
		a.fail(c, err)
		return
	}
	a.post(c, params.IdempotencyKey, func(ctx context.Context) (outcome, error) {
		return a.newKey(slug, key, func(key tenants.APIKey) (tenants.APIKey, error) {
			return a.repository.CreateKey(ctx, actor(c), slug, key)
		})
	})
}

// RotateKey is POST /admin/tenants/{tenant}/keys/{id}/rotate.
func (a *admin) RotateKey(c *gin.Context, slug gen.TenantSlug, id gen.CredentialId, params gen.RotateKeyParams) {
	expires, oldEnds, err := a.readRotate(c)
	if err != nil {
		a.fail(c, err)
		return
	}
	a.post(c, params.IdempotencyKey, func(ctx context.Context) (outcome, error) {
		return a.newKey(slug, tenants.APIKey{ExpiresAt: expires}, func(successor tenants.APIKey) (tenants.APIKey, error) {
			return a.repository.RotateKey(ctx, actor(c), slug, id, successor, oldEnds)
		})
	})
}

// RevokeKey is DELETE /admin/tenants/{tenant}/keys/{id}.
func (a *admin) RevokeKey(c *gin.Context, slug gen.TenantSlug, id gen.CredentialId) {
	a.deleted(c, a.repository.RevokeKey(c.Request.Context(), actor(c), slug, id))
}

// newKey makes the secret, has the key stored and answers both.
func (a *admin) newKey(slug string, key tenants.APIKey, store func(tenants.APIKey) (tenants.APIKey, error)) (outcome, error) {
	credential, secret, err := tenants.NewCredential(tenants.KindAPIKey, a.random)
	if err != nil {
		return outcome{}, fmt.Errorf("make an API key: %w", err)
	}
	key.ID, key.Hash = credential.ID, credential.Hash
	stored, err := store(key)
	shown := showKey(&stored)
	once := shown
	once.Secret = &secret
	return outcome{status: http.StatusCreated, location: tenantPath(slug) + "/keys/" + stored.ID, body: once, replay: shown}, err
}

// ListServiceTokens is GET /admin/service-tokens.
func (a *admin) ListServiceTokens(c *gin.Context, params gen.ListServiceTokensParams) {
	page, err := a.repository.ListServiceTokens(c.Request.Context(), tenants.CredentialFilter{Search: orZero(params.Search), Status: tenants.CredentialStatus(orZero(params.Status))}, pageOf(params.Limit, params.Cursor))
	list(a, c, page, err, showServiceToken)
}

// CreateServiceToken is POST /admin/service-tokens.
func (a *admin) CreateServiceToken(c *gin.Context, params gen.CreateServiceTokenParams) {
	var in gen.ServiceTokenCreate
	err := decodeBody(c, &in)
	token := tenants.ServiceToken{
		Name: tenants.TidyName(in.Name), ExpiresAt: readEnd(in.ExpiresAt),
		Exempt: convert[ratelimit.Scope](orZero(in.Exempt)), May: convert[tenants.Permission](orZero(in.May)),
	}
	if err == nil {
		err = invalidConfig(tenants.ValidateServiceToken(&token, a.now()))
	}
	if err != nil {
		a.fail(c, err)
		return
	}
	a.post(c, params.IdempotencyKey, func(ctx context.Context) (outcome, error) {
		return a.newServiceToken(token, func(token tenants.ServiceToken) (tenants.ServiceToken, error) {
			return a.repository.CreateServiceToken(ctx, actor(c), token)
		})
	})
}

// RotateServiceToken is POST /admin/service-tokens/{id}/rotate. The successor has the old token's name and permissions.
func (a *admin) RotateServiceToken(c *gin.Context, id gen.CredentialId, params gen.RotateServiceTokenParams) {
	expires, oldEnds, err := a.readRotate(c)
	if err != nil {
		a.fail(c, err)
		return
	}
	a.post(c, params.IdempotencyKey, func(ctx context.Context) (outcome, error) {
		return a.newServiceToken(tenants.ServiceToken{ExpiresAt: expires}, func(successor tenants.ServiceToken) (tenants.ServiceToken, error) {
			return a.repository.RotateServiceToken(ctx, actor(c), id, successor, oldEnds)
		})
	})
}

// RevokeServiceToken is DELETE /admin/service-tokens/{id}.
func (a *admin) RevokeServiceToken(c *gin.Context, id gen.CredentialId) {
	a.deleted(c, a.repository.RevokeServiceToken(c.Request.Context(), actor(c), id))
}

func (a *admin) newServiceToken(token tenants.ServiceToken, store func(tenants.ServiceToken) (tenants.ServiceToken, error)) (outcome, error) {
	credential, secret, err := tenants.NewCredential(tenants.KindServiceToken, a.random)
	if err != nil {
		return outcome{}, fmt.Errorf("make a service token: %w", err)
	}
	token.ID, token.Hash = credential.ID, credential.Hash
	stored, err := store(token)
	shown := showServiceToken(&stored)
	once := shown
	once.Secret = &secret
	return outcome{status: http.StatusCreated, location: "/admin/service-tokens/" + stored.ID, body: once, replay: shown}, err
}

// ListAdminTokens is GET /admin/admin-tokens.
func (a *admin) ListAdminTokens(c *gin.Context, params gen.ListAdminTokensParams) {
	page, err := a.repository.ListAdminTokens(c.Request.Context(), tenants.CredentialFilter{Search: orZero(params.Search), Status: tenants.CredentialStatus(orZero(params.Status))}, pageOf(params.Limit, params.Cursor))
	list(a, c, page, err, showAdminToken)
}

// CreateAdminToken is POST /admin/admin-tokens.
func (a *admin) CreateAdminToken(c *gin.Context, params gen.CreateAdminTokenParams) {
	var in gen.AdminTokenCreate
	err := decodeBody(c, &in)
	token := tenants.AdminToken{Name: tenants.TidyName(in.Name), Role: tenants.Role(in.Role), ExpiresAt: readEnd(in.ExpiresAt)}
	if err == nil {
		err = invalidConfig(tenants.ValidateAdminToken(&token, a.now()))
	}
	if err != nil {
		a.fail(c, err)
		return
	}
	a.post(c, params.IdempotencyKey, func(ctx context.Context) (outcome, error) {
		credential, secret, err := tenants.NewCredential(tenants.KindAdminToken, a.random)
		if err != nil {
			return outcome{}, fmt.Errorf("make an admin token: %w", err)
		}
		token.ID, token.Hash = credential.ID, credential.Hash
		stored, err := a.repository.CreateAdminToken(ctx, actor(c), token)
		shown := showAdminToken(&stored)
		once := shown
		once.Secret = &secret
		return outcome{status: http.StatusCreated, location: "/admin/admin-tokens/" + stored.ID, body: once, replay: shown}, err
	})
}

// RevokeAdminToken is DELETE /admin/admin-tokens/{id}.
func (a *admin) RevokeAdminToken(c *gin.Context, id gen.CredentialId) {
	a.deleted(c, a.repository.RevokeAdminToken(c.Request.Context(), actor(c), id))
}

// readRotate is when the successor expires and when the old credential ends.
func (a *admin) readRotate(c *gin.Context) (expires, oldEnds time.Time, err error) {
	var in gen.Rotate
	if err := decodeBody(c, &in); err != nil {
		return expires, oldEnds, err
	}
	now, overlap := a.now(), defaultOverlap
	if in.Overlap != nil {
		var d durations
		overlap = d.read("/overlap", *in.Overlap)
		if err := d.err(); err != nil {
			return expires, oldEnds, err
		}
	}
	expires = readEnd(in.ExpiresAt)
	switch {
	case overlap < 0 || overlap > maxOverlap:
		return expires, oldEnds, invalid("/overlap", "must be from 0s to 720h")
	case !expires.IsZero() && !expires.After(now):
		return expires, oldEnds, invalid("/expires_at", "must be in the future")
	case expires.UTC().Year() > 9999: // JSON could never show it again
		return expires, oldEnds, invalid("/expires_at", "must be before the year 10000")
	}
	return expires, now.Add(overlap), nil
}

func showKey(k *tenants.APIKey) gen.ApiKey {
	return gen.ApiKey{
		Id: k.ID, Name: k.Name, CreatedAt: k.CreatedAt.UTC(),
		ExpiresAt: timeOrNull(k.ExpiresAt), RevokedAt: timeOrNull(k.RevokedAt), LastUsedAt: timeOrNull(k.LastUsedAt),
	}
}

func showServiceToken(t *tenants.ServiceToken) gen.ServiceToken {
	return gen.ServiceToken{
		Id: t.ID, Name: t.Name, Exempt: convert[gen.ServiceTokenExempt](t.Exempt), May: convert[gen.Permission](t.May), CreatedAt: t.CreatedAt.UTC(),
		ExpiresAt: timeOrNull(t.ExpiresAt), RevokedAt: timeOrNull(t.RevokedAt), LastUsedAt: timeOrNull(t.LastUsedAt),
	}
}

func showAdminToken(t *tenants.AdminToken) gen.AdminToken {
	return gen.AdminToken{
		Id: t.ID, Name: t.Name, Role: gen.Role(t.Role), CreatedAt: t.CreatedAt.UTC(),
		ExpiresAt: timeOrNull(t.ExpiresAt), RevokedAt: timeOrNull(t.RevokedAt), LastUsedAt: timeOrNull(t.LastUsedAt),
	}
}

// convert renames the strings of a list; an empty list stays a list.
func convert[To, From ~string](in []From) []To {
	out := make([]To, len(in))
	for i, v := range in {
		out[i] = To(v)
	}
	return out
}
