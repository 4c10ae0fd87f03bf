package dashboard

import (
	"net/http"
	"net/url"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
)

// made is what the API answers to whoever makes a credential.
type made struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Secret string `json:"secret"`
}

// create makes a credential and shows its secret this once, on the page itself: an address would remember it.
func (x *exchange) create(f *form, kind, path string, body map[string]any, page func(status int, fresh *created)) {
	again := func(status int) { page(status, nil) }
	if f.Summary != "" {
		x.refused(f, nil, again)
		return
	}
	var got made
	if _, err := x.call(call{method: http.MethodPost, path: path, body: body, once: f.text("once")}, &got); err != nil {
		x.refused(f, err, again)
		return
	}
	page(http.StatusOK, &created{Kind: kind, Name: got.Name, ID: got.ID, Secret: got.Secret})
}

// revoke ends a credential.
func (x *exchange) revoke(f *form, path, back, done string, page func(status int)) {
	if _, err := x.call(call{method: http.MethodDelete, path: path + "/" + segment(f.text("id"))}, nil); err != nil {
		x.refused(f, err, page)
		return
	}
	x.done(back, done)
}

// createKey is POST /dashboard/tenants/{tenant}/keys.
func (d *Dashboard) createKey(x *exchange) {
	if f, ok := x.readForm("key"); ok {
		body := map[string]any{"name": f.text("name"), "expires_at": f.expiry(d.Now())}
		x.create(f, "API key", tenantPath(x.r.PathValue("tenant"))+"/keys", body, x.showTenant)
	}
}

// rotateKey is POST /dashboard/tenants/{tenant}/keys/rotate.
func (d *Dashboard) rotateKey(x *exchange) {
	if f, ok := x.readForm("keys"); ok {
		path := tenantPath(x.r.PathValue("tenant")) + "/keys/" + segment(f.text("id")) + "/rotate"
		x.create(f, "API key", path, map[string]any{"overlap": f.text("overlap")}, x.showTenant)
	}
}

// revokeKey is POST /dashboard/tenants/{tenant}/keys/revoke.
func (d *Dashboard) revokeKey(x *exchange) {
	if f, ok := x.readForm("keys"); ok {
		slug := x.r.PathValue("tenant")
		x.revoke(f, tenantPath(slug)+"/keys", tenantPage(slug), "key-revoked", x.tenantPage)
	}
}

// tokensView is the tokens of services and administrators.
type tokensView struct {
	Services part[gen.ServiceToken]
	Admins   part[gen.AdminToken]
	Created  *created
	// Own is the id of the token the reader signed in with.
	Own string
}

const tokensPage = "/dashboard/tokens"

// tokens is GET /dashboard/tokens.
func (d *Dashboard) tokens(x *exchange) { x.showTokens(http.StatusOK, nil) }

func (x *exchange) tokensPage(status int) { x.showTokens(status, nil) }

func (x *exchange) showTokens(status int, fresh *created) {
	query := url.Values{"limit": {"500"}}
	x.render(status, "tokens", "Tokens", tokensView{
		Services: read[gen.ServiceToken](x, "/admin/service-tokens", query),
		Admins:   read[gen.AdminToken](x, "/admin/admin-tokens", query),
		Created:  fresh, Own: x.session.who.Actor.ID,
	})
}

// createServiceToken is POST /dashboard/tokens/services.
func (d *Dashboard) createServiceToken(x *exchange) {
	if f, ok := x.readForm("service"); ok {
		body := map[string]any{"name": f.text("name"), "may": append([]string{}, f.Values["may"]...), "exempt": append([]string{}, f.Values["exempt"]...), "expires_at": f.expiry(d.Now())}
		x.create(f, "service token", "/admin/service-tokens", body, x.showTokens)
	}
}

// rotateServiceToken is POST /dashboard/tokens/services/rotate.
func (d *Dashboard) rotateServiceToken(x *exchange) {
	if f, ok := x.readForm("services"); ok {
		x.create(f, "service token", "/admin/service-tokens/"+segment(f.text("id"))+"/rotate", map[string]any{"overlap": f.text("overlap")}, x.showTokens)
	}
}

// revokeServiceToken is POST /dashboard/tokens/services/revoke.
func (d *Dashboard) revokeServiceToken(x *exchange) {
	if f, ok := x.readForm("services"); ok {
		x.revoke(f, "/admin/service-tokens", tokensPage, "token-revoked", x.tokensPage)
	}
}

// createAdminToken is POST /dashboard/tokens/admins.
func (d *Dashboard) createAdminToken(x *exchange) {
	if f, ok := x.readForm("admin"); ok {
		body := map[string]any{"name": f.text("name"), "role": f.text("role"), "expires_at": f.expiry(d.Now())}
		x.create(f, "admin token", "/admin/admin-tokens", body, x.showTokens)
	}
}

// revokeAdminToken is POST /dashboard/tokens/admins/revoke.
func (d *Dashboard) revokeAdminToken(x *exchange) {
	if f, ok := x.readForm("admins"); ok {
		x.revoke(f, "/admin/admin-tokens", tokensPage, "token-revoked", x.tokensPage)
	}
}
