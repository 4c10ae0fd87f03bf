package httpapi

import (
	"context"
	"net/http"
	"net/netip"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// ListNetworks is GET /admin/networks.
func (a *admin) ListNetworks(c *gin.Context, params gen.ListNetworksParams) {
	switch string(orZero(params.Format)) {
	case "text":
		a.networkText(c, deniedLines)
		return
	case "nginx":
		a.networkText(c, nginxLines)
		return
	}
	filter := tenants.NetworkFilter{Action: tenants.NetworkAction(orZero(params.Action)), Search: orZero(params.Search)}
	if params.Address != nil {
		address, err := netip.ParseAddr(*params.Address)
		if err != nil || address.Zone() != "" {
			a.fail(c, invalid("/query/address", "must be an IPv4 or IPv6 address"))
			return
		}
		filter.Holds = address.Unmap()
	}
	page, err := a.repository.ListNetworks(c.Request.Context(), filter, pageOf(params.Limit, params.Cursor))
	list(a, c, page, err, showNetwork)
}

// CreateNetwork is POST /admin/networks.
func (a *admin) CreateNetwork(c *gin.Context, params gen.CreateNetworkParams) {
	var in gen.NetworkCreate
	err := decodeBody(c, &in)
	network := tenants.Network{
		CIDR: readNetwork(in.Cidr), Action: tenants.NetworkAction(in.Action), Reason: orZero(in.Reason), ExpiresAt: readEnd(in.ExpiresAt),
	}
	if err == nil {
		err = invalidConfig(tenants.ValidateNetwork(&network, a.now()))
	}
	if err != nil {
		a.fail(c, err)
		return
	}
	a.post(c, params.IdempotencyKey, func(ctx context.Context) (outcome, error) {
		stored, err := a.repository.CreateNetwork(ctx, actor(c), network)
		return outcome{
			status: http.StatusCreated, location: "/admin/networks/" + strconv.FormatInt(stored.ID, 10), body: showNetwork(&stored),
		}, err
	})
}

// DeleteNetwork is DELETE /admin/networks/{id}.
func (a *admin) DeleteNetwork(c *gin.Context, id gen.NetworkId) {
	a.deleted(c, a.repository.DeleteNetwork(c.Request.Context(), actor(c), id))
}

// readNetwork reads CIDR notation, or one address; what is neither becomes the zero prefix, which validation refuses.
func readNetwork(text string) netip.Prefix {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p
	}
	address, err := netip.ParseAddr(text)
	if err != nil || address.Zone() != "" {
		return netip.Prefix{}
	}
	address = address.Unmap()
	return netip.PrefixFrom(address, address.BitLen())
}

// networkText answers the live list for machines, from memory: an edge goes on getting it while Postgres is away.
func (a *admin) networkText(c *gin.Context, lines func(a *admin, s *tenants.Snapshot, text []byte) []byte) {
	s := a.directory.Snapshot()
	if s.Version == 0 { // an empty list would open the edge
		a.fail(c, refuse(problem.StoreUnavailable, "the configuration has not been loaded yet"))
		return
	}
	a.writeRaw(c, http.StatusOK, "text/plain; charset=utf-8", lines(a, s, nil))
}

// deniedLines is one denied network a line.
func deniedLines(a *admin, s *tenants.Snapshot, text []byte) []byte {
	for _, p := range s.DeniedRanges(a.now()) {
		text = append(p.AppendTo(text), '\n')
	}
	return text
}

// nginxLines is a directive a line. nginx takes the first that matches, and they come narrowest first. Reasons stay out: no text
// of an administrator gets into another program's configuration.
func nginxLines(a *admin, s *tenants.Snapshot, text []byte) []byte {
	for _, n := range s.LiveNetworks(a.now()) {
		text = append(append(text, n.Action...), ' ')
		text = append(n.CIDR.AppendTo(text), ";\n"...)
	}
	return text
}

func showNetwork(n *tenants.Network) gen.Network {
	return gen.Network{
		Id: n.ID, Cidr: n.CIDR.String(), Action: gen.NetworkAction(n.Action), Reason: n.Reason,
		ExpiresAt: timeOrNull(n.ExpiresAt), CreatedAt: n.CreatedAt.UTC(),
	}
}
