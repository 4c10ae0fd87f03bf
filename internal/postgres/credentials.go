package postgres

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// The three kinds of credentials live alike: created, listed by age, replaced with overlap, revoked for good. Revoked and
// expired ones stay listed. Their tables differ in what hangs on them, so each has its own statements.

const (
	lifeColumns   = ` id, left(name, 300), hash, created_at, expires_at, revoked_at, last_used_at, seq, `
	selectKeys    = `SELECT` + lifeColumns + `tenant_id FROM api_keys `
	selectService = `SELECT` + lifeColumns + `exempt, may FROM service_tokens `
	selectAdmin   = `SELECT` + lifeColumns + `role FROM admin_tokens `

	// lifeFilter takes the number after which the page starts, the search as a pattern and as it is, and the status.
	lifeFilter = `seq > $1 AND ($2 = '' OR name ILIKE $2 OR id = $3) AND ($4 = '' OR $4 = CASE
		WHEN revoked_at IS NOT NULL THEN 'revoked' WHEN expires_at <= now() THEN 'expired' ELSE 'active' END)`
)

// lifeRow is what the rows of all credentials share.
type lifeRow struct {
	ID                                          string
	Name                                        *string
	Hash                                        []byte
	CreatedAt, ExpiresAt, RevokedAt, LastUsedAt pgtype.Timestamptz
	Seq                                         int64
}

type keyRow struct {
	lifeRow
	TenantID int64
}

type serviceRow struct {
	lifeRow
	Exempt, May []*string
}

type adminRow struct {
	lifeRow
	Role *string
}

// ListKeys lists a tenant's keys by age.
func (r *Repository) ListKeys(ctx context.Context, tenant string, f tenants.CredentialFilter, p tenants.Page) (list tenants.List[tenants.APIKey], err error) {
	name := "keys of " + tenant
	after, err := decodeNumber(name, p.Cursor, 0)
	if err != nil {
		return list, err
	}
	err = r.read(ctx, "list keys", func(ctx context.Context, q querier) error {
		t, err := tenantBySlug(ctx, q, tenant)
		if err != nil {
			return err
		}
		rows, err := collect[keyRow](ctx, q, selectKeys+`WHERE `+lifeFilter+` AND tenant_id = $5 ORDER BY seq LIMIT $6`,
			after, contains(f.Search), f.Search, string(f.Status), t.ID, pageSize(p)+1)
		list = pageOf(name, rows, pageSize(p), func(r *keyRow) int64 { return r.Seq }, func(r *keyRow) tenants.APIKey {
			k, _ := keyFrom(r) // a broken one is listed as it is
			return k
		})
		return err
	})
	return list, err
}

// CreateKey stores a tenant's new key.
func (r *Repository) CreateKey(ctx context.Context, a audit.Actor, tenant string, k tenants.APIKey) (stored tenants.APIKey, err error) {
	err = r.change(ctx, a, "create key", func(ctx context.Context, c *change) error {
		t, err := tenantBySlug(ctx, c, tenant)
		if err != nil {
			return err
		}
		stored, err = c.insertKey(ctx, &t, k, "api_key.create", nil)
		return err
	})
	return stored, err
}

// RotateKey stores the successor; the old key lives until oldExpires, or until its own end if that is sooner.
func (r *Repository) RotateKey(ctx context.Context, a audit.Actor, tenant, id string, successor tenants.APIKey, oldExpires time.Time) (stored tenants.APIKey, err error) {
	err = r.change(ctx, a, "rotate key", func(ctx context.Context, c *change) error {
		t, err := tenantBySlug(ctx, c, tenant)
		if err != nil {
			return err
		}
		old, err := one[keyRow](ctx, c, selectKeys+`WHERE tenant_id = $1 AND id = $2`, t.ID, id)
		if err != nil {
			return err
		}
		if err := c.endWithOverlap(ctx, `UPDATE api_keys SET expires_at = LEAST(expires_at, $2), changed_in = $3
			WHERE id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())`, id, oldExpires); err != nil {
			return err
		}
		if successor.Name == "" {
			successor.Name = orZero(old.Name)
		}
		stored, err = c.insertKey(ctx, &t, successor, "api_key.rotate", map[string]any{"replaces": id, "old_expires_at": timeField(oldExpires)})
		return err
	})
	return stored, err
}

// RevokeKey ends a key for good; ending it again changes nothing.
func (r *Repository) RevokeKey(ctx context.Context, a audit.Actor, tenant, id string) error {
	return r.change(ctx, a, "revoke key", func(ctx context.Context, c *change) error {
		t, err := tenantBySlug(ctx, c, tenant)
		if err != nil {
			return err
		}
		old, err := one[keyRow](ctx, c, selectKeys+`WHERE tenant_id = $1 AND id = $2`, t.ID, id)
		if err != nil {
			return err
		}
		return c.revoke(ctx, &old.lifeRow, `UPDATE api_keys SET revoked_at = now(), changed_in = $2 WHERE id = $1`, "api_key")
	})
}

// ListServiceTokens lists by age.
func (r *Repository) ListServiceTokens(ctx context.Context, f tenants.CredentialFilter, p tenants.Page) (list tenants.List[tenants.ServiceToken], err error) {
	after, err := decodeNumber("service tokens", p.Cursor, 0)
	if err != nil {
		return list, err
	}
	err = r.read(ctx, "list service tokens", func(ctx context.Context, q querier) error {
		rows, err := collect[serviceRow](ctx, q, selectService+`WHERE `+lifeFilter+` ORDER BY seq LIMIT $5`,
			after, contains(f.Search), f.Search, string(f.Status), pageSize(p)+1)
		list = pageOf("service tokens", rows, pageSize(p), func(r *serviceRow) int64 { return r.Seq }, func(r *serviceRow) tenants.ServiceToken {
			t, _ := serviceFrom(r)
			return t
		})
		return err
	})
	return list, err
}

// CreateServiceToken stores a new service token.
func (r *Repository) CreateServiceToken(ctx context.Context, a audit.Actor, t tenants.ServiceToken) (stored tenants.ServiceToken, err error) {
	err = r.change(ctx, a, "create service token", func(ctx context.Context, c *change) error {
		stored, err = c.insertService(ctx, t, "service_token.create", nil)
		return err
	})
	return stored, err
}

// RotateServiceToken stores the successor, with the old token's permissions where it names none; the old one lives until
// oldExpires, or until its own end if that is sooner.
func (r *Repository) RotateServiceToken(ctx context.Context, a audit.Actor, id string, successor tenants.ServiceToken, oldExpires time.Time) (stored tenants.ServiceToken, err error) {
	err = r.change(ctx, a, "rotate service token", func(ctx context.Context, c *change) error {
		row, err := one[serviceRow](ctx, c, selectService+`WHERE id = $1`, id)
		if err != nil {
			return err
		}
		if err := c.endWithOverlap(ctx, `UPDATE service_tokens SET expires_at = LEAST(expires_at, $2), changed_in = $3
			WHERE id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())`, id, oldExpires); err != nil {
			return err
		}
		old, err := serviceFrom(row)
		if err != nil {
			return &tenants.ConflictError{Detail: "the token's row cannot be read; create a new one"}
		}
		if successor.Name == "" {
			successor.Name = old.Name
		}
		if successor.May == nil {
			successor.May = old.May
		}
		if successor.Exempt == nil {
			successor.Exempt = old.Exempt
		}
		stored, err = c.insertService(ctx, successor, "service_token.rotate", map[string]any{"replaces": id, "old_expires_at": timeField(oldExpires)})
		return err
	})
	return stored, err
}

// RevokeServiceToken ends a token for good; ending it again changes nothing.
func (r *Repository) RevokeServiceToken(ctx context.Context, a audit.Actor, id string) error {
	return r.change(ctx, a, "revoke service token", func(ctx context.Context, c *change) error {
		old, err := one[serviceRow](ctx, c, selectService+`WHERE id = $1`, id)
		if err != nil {
			return err
		}
		return c.revoke(ctx, &old.lifeRow, `UPDATE service_tokens SET revoked_at = now(), changed_in = $2 WHERE id = $1`, "service_token")
	})
}

// ListAdminTokens lists by age.
func (r *Repository) ListAdminTokens(ctx context.Context, f tenants.CredentialFilter, p tenants.Page) (list tenants.List[tenants.AdminToken], err error) {
	after, err := decodeNumber("admin tokens", p.Cursor, 0)
	if err != nil {
		return list, err
	}
	err = r.read(ctx, "list admin tokens", func(ctx context.Context, q querier) error {
		rows, err := collect[adminRow](ctx, q, selectAdmin+`WHERE `+lifeFilter+` ORDER BY seq LIMIT $5`,
			after, contains(f.Search), f.Search, string(f.Status), pageSize(p)+1)
		list = pageOf("admin tokens", rows, pageSize(p), func(r *adminRow) int64 { return r.Seq }, func(r *adminRow) tenants.AdminToken {
			t, _ := adminFrom(r)
			return t
		})
		return err
	})
	return list, err
}

// CreateAdminToken stores a new admin token.
func (r *Repository) CreateAdminToken(ctx context.Context, a audit.Actor, t tenants.AdminToken) (stored tenants.AdminToken, err error) {
	err = r.change(ctx, a, "create admin token", func(ctx context.Context, c *change) error {
		row, err := one[adminRow](ctx, c, `
			INSERT INTO admin_tokens (id, name, role, hash, expires_at, changed_in) VALUES ($1, $2, $3, $4, $5, $6)
			RETURNING`+lifeColumns+`role`, t.ID, t.Name, string(t.Role), t.Hash[:], nullable(t.ExpiresAt), c.version)
		if err != nil {
			return err
		}
		if stored, err = adminFrom(row); err != nil {
			return err
		}
		return c.record(ctx, "admin_token.create", "admin_token", t.ID, nil,
			map[string]any{"name": stored.Name, "role": stored.Role, "expires_at": timeField(stored.ExpiresAt)})
	})
	return stored, err
}

// RevokeAdminToken ends a token for good; ending it again changes nothing.
func (r *Repository) RevokeAdminToken(ctx context.Context, a audit.Actor, id string) error {
	return r.change(ctx, a, "revoke admin token", func(ctx context.Context, c *change) error {
		old, err := one[adminRow](ctx, c, selectAdmin+`WHERE id = $1`, id)
		if err != nil {
			return err
		}
		return c.revoke(ctx, &old.lifeRow, `UPDATE admin_tokens SET revoked_at = now(), changed_in = $2 WHERE id = $1`, "admin_token")
	})
}

func (c *change) insertKey(ctx context.Context, t *tenants.Tenant, k tenants.APIKey, action string, more map[string]any) (tenants.APIKey, error) {
	row, err := one[keyRow](ctx, c, `
		INSERT INTO api_keys (id, tenant_id, name, hash, expires_at, changed_in) VALUES ($1, $2, $3, $4, $5, $6)
		RETURNING`+lifeColumns+`tenant_id`, k.ID, t.ID, k.Name, k.Hash[:], nullable(k.ExpiresAt), c.version)
	if err != nil {
		return tenants.APIKey{}, err
	}
	stored, err := keyFrom(row)
	if err != nil {
		return stored, err
	}
	fields := with(more, map[string]any{"tenant": t.Slug, "name": stored.Name, "expires_at": timeField(stored.ExpiresAt)})
	return stored, c.record(ctx, action, "api_key", k.ID, nil, fields)
}

func (c *change) insertService(ctx context.Context, t tenants.ServiceToken, action string, more map[string]any) (tenants.ServiceToken, error) {
	row, err := one[serviceRow](ctx, c, `
		INSERT INTO service_tokens (id, name, hash, exempt, may, expires_at, changed_in) VALUES ($1, $2, $3, $4, $5, $6, $7)
		RETURNING`+lifeColumns+`exempt, may`, t.ID, t.Name, t.Hash[:], plain(t.Exempt), plain(t.May), nullable(t.ExpiresAt), c.version)
	if err != nil {
		return tenants.ServiceToken{}, err
	}
	stored, err := serviceFrom(row)
	if err != nil {
		return stored, err
	}
	fields := with(more, map[string]any{"name": stored.Name, "exempt": stored.Exempt, "may": stored.May, "expires_at": timeField(stored.ExpiresAt)})
	return stored, c.record(ctx, action, "service_token", t.ID, nil, fields)
}

// endWithOverlap shortens the life of a credential that is being replaced.
func (c *change) endWithOverlap(ctx context.Context, update, id string, at time.Time) error {
	tag, err := c.Exec(ctx, update, id, at, c.version)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return &tenants.ConflictError{Detail: "it is revoked or expired already"}
	}
	return nil
}

// revoke ends a credential. An ended one stays as it is, without an entry and without a new version.
func (c *change) revoke(ctx context.Context, old *lifeRow, update, resource string) error {
	if old.RevokedAt.Valid {
		return errNothingToDo
	}
	if _, err := c.Exec(ctx, update, old.ID, c.version); err != nil {
		return err
	}
	fields := func(revoked bool) map[string]any {
		return map[string]any{"name": orZero(old.Name), "revoked": revoked}
	}
	return c.record(ctx, resource+".revoke", resource, old.ID, fields(false), fields(true))
}

func keyFrom(r *keyRow) (tenants.APIKey, error) {
	hash, err := hashOf(r.Hash)
	k := tenants.APIKey{
		ID: r.ID, TenantID: r.TenantID, Name: textOf(r.Name, &err), Hash: hash, CreatedAt: moment(r.CreatedAt),
		ExpiresAt: end(r.ExpiresAt), RevokedAt: revoked(r.RevokedAt), LastUsedAt: moment(r.LastUsedAt),
	}
	return k, err
}

func serviceFrom(r *serviceRow) (tenants.ServiceToken, error) {
	hash, err := hashOf(r.Hash)
	t := tenants.ServiceToken{
		ID: r.ID, Name: textOf(r.Name, &err), Hash: hash, CreatedAt: moment(r.CreatedAt),
		ExpiresAt: end(r.ExpiresAt), RevokedAt: revoked(r.RevokedAt), LastUsedAt: moment(r.LastUsedAt),
		Exempt: []ratelimit.Scope{}, May: []tenants.Permission{},
	}
	exempt, okExempt := texts(r.Exempt)
	may, okMay := texts(r.May)
	if !okExempt || !okMay {
		return t, together(err, errNull)
	}
	for _, s := range exempt {
		t.Exempt = append(t.Exempt, ratelimit.Scope(s))
	}
	for _, s := range may {
		t.May = append(t.May, tenants.Permission(s))
	}
	check := tenants.ServiceToken{Name: t.Name, Exempt: t.Exempt, May: t.May}
	return t, together(err, invalid(tenants.ValidateStoredServiceToken(&check, time.Time{})))
}

func adminFrom(r *adminRow) (tenants.AdminToken, error) {
	hash, err := hashOf(r.Hash)
	t := tenants.AdminToken{
		ID: r.ID, Name: textOf(r.Name, &err), Role: tenants.Role(textOf(r.Role, &err)), Hash: hash, CreatedAt: moment(r.CreatedAt),
		ExpiresAt: end(r.ExpiresAt), RevokedAt: revoked(r.RevokedAt), LastUsedAt: moment(r.LastUsedAt),
	}
	check := tenants.AdminToken{Name: t.Name, Role: t.Role}
	return t, together(err, invalid(tenants.ValidateStoredAdminToken(&check, time.Time{})))
}

// revoked reads the moment of a revocation. Anything but NULL revokes, infinity and times that cannot be shown included.
func revoked(t pgtype.Timestamptz) time.Time {
	at := moment(t)
	if t.Valid && at.IsZero() {
		return time.Unix(0, 0).UTC()
	}
	return at
}

// collect reads all rows of a query into structs by position.
func collect[T any](ctx context.Context, q querier, sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// one reads the row of a query; none is an ErrNotFound.
func one[T any](ctx context.Context, q querier, sql string, args ...any) (*T, error) {
	found, err := collect[T](ctx, q, sql, args...)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, tenants.ErrNotFound
	}
	return &found[0], nil
}

// pageOf is page for rows that run by a number.
func pageOf[R, T any](list string, rows []R, size int, key func(*R) int64, item func(*R) T) tenants.List[T] {
	cut := page(list, rows, size, func(r *R) string { return strconv.FormatInt(key(r), 10) })
	out := tenants.List[T]{Items: make([]T, len(cut.Items)), Next: cut.Next}
	for i := range cut.Items {
		out.Items[i] = item(&cut.Items[i])
	}
	return out
}

func plain[S ~string](in []S) []string {
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = string(s)
	}
	return out
}

func with(more, fields map[string]any) map[string]any {
	for k, v := range more {
		fields[k] = v
	}
	return fields
}
