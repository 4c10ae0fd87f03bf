package app

import (
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/pegel-dev/pegel/internal/httpapi"
	"github.com/pegel-dev/pegel/internal/journal"
	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// phase is where a replica is in its life.
type phase int32

const (
	starting phase = iota // not migrated or not loaded: nobody could be told from anybody
	serving
	draining
)

// What a store is.
const (
	storeUp           = "up"
	storeDown         = "down"
	storeUnconfigured = "unconfigured"
)

// retryWhileStarting is the Retry-After of a replica that is not loaded yet, in seconds.
const retryWhileStarting = 1

// health knows how the replica and its stores do. It asks no store: it reports what others found.
type health struct {
	name    string
	stores  *stores
	journal *journal.Journal
	phase   atomic.Int32
}

// serve says that the configuration is loaded; a replica that is told to stop meanwhile keeps draining.
func (h *health) serve() { h.phase.CompareAndSwap(int32(starting), int32(serving)) }
func (h *health) drain() { h.phase.Store(int32(draining)) }

func (h *health) source() ratelimit.Source { return h.stores.source() }
func (h *health) redis() string            { return h.stores.redisHealth() }
func (h *health) postgres() string         { return h.stores.postgresHealth() }

// Readiness is the body of /readyz. A replica is ready while it serves, also with both stores away: what is open, closed or
// local is then decided by the limits (source none), and a balancer that took every replica away would turn `open` into an
// outage.
func (h *health) Readiness() httpapi.Readiness {
	r := httpapi.Readiness{Source: h.source(), Redis: h.redis(), Postgres: h.postgres(), Warnings: h.stores.warnings()}
	if h.journal.Stats().Failing {
		r.Warnings = append(r.Warnings, unwrittenWarning)
	}
	switch phase(h.phase.Load()) {
	case starting:
		r.Status = "starting"
	case draining:
		r.Status = "draining"
	case serving:
		r.Ready = true
		r.Status = "ok"
		if r.Redis == storeDown || r.Postgres == storeDown {
			r.Status = "degraded"
		}
	}
	return r
}

// whenLoaded refuses every request until there is a configuration: before that a valid key would look like a wrong one.
// (The HTTP interface does so by itself.)
func whenLoaded(directory *tenants.Directory, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if directory.Snapshot().Version == 0 {
			id := uuid.NewString()
			w.Header().Set("X-Request-Id", id)
			w.Header().Set("Retry-After", strconv.Itoa(retryWhileStarting))
			p := problem.New(problem.StoreUnavailable, "this replica has not loaded its configuration yet", id)
			problem.Write(w, p.Status, p)
			return
		}
		next.ServeHTTP(w, r)
	})
}
