package usage

import (
	"maps"
	"sync"
	"sync/atomic"
)

// registryShards bounds what adding a tenant copies: some hundred entries with 100,000 tenants. A power of two.
const registryShards = 1024

// registry finds tenants by id, without a lock and without an allocation (a sync.Map makes one for each id that it is asked for).
// Whoever adds or removes one copies its shard.
type registry struct {
	shards [registryShards]atomic.Pointer[map[int64]*tenantCell]
	mu     sync.Mutex // of whoever changes a shard
}

func (r *registry) shard(id int64) *atomic.Pointer[map[int64]*tenantCell] {
	return &r.shards[uint64(id)%registryShards] //nolint:gosec // any bits do
}

// get is nil for an id that is not there.
func (r *registry) get(id int64) *tenantCell {
	if shard := r.shard(id).Load(); shard != nil {
		return (*shard)[id]
	}
	return nil
}

// add keeps the cell, unless there is one of the same id, which comes back then.
func (r *registry) add(cell *tenantCell) (kept *tenantCell, added bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.shard(cell.id)
	next := map[int64]*tenantCell{}
	if old := at.Load(); old != nil {
		if there := (*old)[cell.id]; there != nil {
			return there, false
		}
		next = maps.Clone(*old)
	}
	next[cell.id] = cell
	at.Store(&next)
	return cell, true
}

func (r *registry) remove(id int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.shard(id)
	if old := at.Load(); old != nil {
		next := maps.Clone(*old)
		delete(next, id)
		at.Store(&next)
	}
}

// all visits every tenant; what is added or removed meanwhile may be missed.
func (r *registry) all(visit func(t *tenantCell)) {
	for i := range r.shards {
		if shard := r.shards[i].Load(); shard != nil {
			for _, t := range *shard {
				visit(t)
			}
		}
	}
}
