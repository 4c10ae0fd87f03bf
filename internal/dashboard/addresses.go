package dashboard

import (
	"net/http"
	"net/url"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
)

// addressesView is the address policy and the network lists.
type addressesView struct {
	Limits    []limitFields
	ETag      string
	UpdatedAt any
	Failure   *failure
	Networks  part[gen.Network]
}

const addressesPage = "/dashboard/addresses"

// addresses is GET /dashboard/addresses.
func (d *Dashboard) addresses(x *exchange) { x.addressesPage(http.StatusOK) }

func (x *exchange) addressesPage(status int) {
	v := addressesView{Networks: read[gen.Network](x, "/admin/networks", url.Values{"limit": {"500"}})}
	var policy gen.AddressPolicy
	got, err := x.call(call{method: http.MethodGet, path: "/admin/address-policy"}, &policy)
	if err != nil {
		v.Failure = x.failureOf(err)
	} else {
		v.Limits, v.ETag, v.UpdatedAt = showLimits(policy.Limits, true), got.etag(), policy.UpdatedAt
	}
	if f := x.failed; f != nil && f.Name == "policy" {
		v.Limits, _ = sentLimits(f, true)
		v.ETag = f.text("etag")
	}
	x.render(status, "addresses", "Address policy and networks", v)
}

// putPolicy is POST /dashboard/addresses.
func (d *Dashboard) putPolicy(x *exchange) {
	f, ok := x.readForm("policy")
	if !ok {
		return
	}
	fields, moved := sentLimits(f, true)
	if moved {
		f.status = http.StatusOK
		x.refused(f, nil, x.addressesPage)
		return
	}
	body := map[string]any{"limits": readLimits(f, fields)}
	if f.Summary != "" {
		x.refused(f, nil, x.addressesPage)
		return
	}
	if _, err := x.call(call{method: http.MethodPut, path: "/admin/address-policy", body: body, etag: f.text("etag")}, nil); err != nil {
		x.refused(f, err, x.addressesPage)
		return
	}
	x.done(addressesPage, "policy-saved")
}

// createNetwork is POST /dashboard/addresses/networks.
func (d *Dashboard) createNetwork(x *exchange) {
	f, ok := x.readForm("network")
	if !ok {
		return
	}
	body := map[string]any{"cidr": f.text("cidr"), "action": f.text("action"), "reason": f.text("reason"), "expires_at": f.expiry(d.Now())}
	if f.Summary != "" {
		x.refused(f, nil, x.addressesPage)
		return
	}
	if _, err := x.call(call{method: http.MethodPost, path: "/admin/networks", body: body, once: f.text("once")}, nil); err != nil {
		x.refused(f, err, x.addressesPage)
		return
	}
	x.done(addressesPage, "network-created")
}

// deleteNetwork is POST /dashboard/addresses/networks/delete.
func (d *Dashboard) deleteNetwork(x *exchange) {
	if f, ok := x.readForm("networks"); ok {
		x.revoke(f, "/admin/networks", addressesPage, "network-deleted", x.addressesPage)
	}
}
