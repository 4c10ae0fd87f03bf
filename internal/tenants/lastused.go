package tenants

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// UseMarker stores when credentials were last used; times only move forward. It writes no audit entry and no version.
type UseMarker interface {
	MarkUsed(ctx context.Context, kind Kind, lastUsed map[string]time.Time) error
	MarkOverridesUsed(ctx context.Context, lastUsed map[OverrideName]time.Time) error
}

// OverrideName is what names an override.
type OverrideName struct {
	TenantID  int64
	LimitName string
}

// LastUsed gathers when credentials and overrides were used and writes it now and then, for people to see which are still needed. Note and NoteOverride are for
// the hot path: one map look-up and, once a second for each, one atomic store. What was not yet written when the process dies
// is lost: at most one interval.
type LastUsed struct {
	marker UseMarker
	every  time.Duration
	log    *slog.Logger
	used   map[Kind]*sync.Map // public id → *atomic.Int64, Unix seconds
	// overrides is *Override → the same; a pointer is looked up without making a key.
	overrides sync.Map
}

// NewLastUsed writes to marker every so often; 0 is once a minute.
func NewLastUsed(marker UseMarker, every time.Duration, log *slog.Logger) *LastUsed {
	if every <= 0 {
		every = time.Minute
	}
	return &LastUsed{
		marker: marker, every: every, log: log,
		used: map[Kind]*sync.Map{KindAPIKey: {}, KindServiceToken: {}, KindAdminToken: {}},
	}
}

// Note says that a credential proved itself at a moment. Only for credentials that were verified: what is kept is bounded by how
// many of those there are.
func (u *LastUsed) Note(kind Kind, id string, at time.Time) {
	byID, ok := u.used[kind]
	if !ok {
		return
	}
	note(byID, id, at)
}

// NoteOverride says that an override decided at a moment. What is kept is bounded by how many there are, and by how many were
// replaced since the last write.
func (u *LastUsed) NoteOverride(o *Override, at time.Time) { note(&u.overrides, o, at) }

func note(moments *sync.Map, of any, at time.Time) {
	seconds := at.Unix()
	entry, found := moments.Load(of)
	if !found {
		entry, _ = moments.LoadOrStore(of, new(atomic.Int64))
	}
	if last, ok := entry.(*atomic.Int64); ok && last.Load() < seconds {
		last.Store(seconds)
	}
}

// Run writes until ctx ends, and once more then, within 1 s.
func (u *LastUsed) Run(ctx context.Context) {
	ticker := time.NewTicker(u.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			final, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			u.Flush(final)
			return
		case <-ticker.C:
			u.Flush(ctx)
		}
	}
}

// Flush writes what was noted since the last one. What cannot be written is forgotten: the next use tells it again.
func (u *LastUsed) Flush(ctx context.Context) {
	for kind, byID := range u.used {
		times := make(map[string]time.Time)
		drain(byID, func(id string, last time.Time) { times[id] = last })
		if len(times) == 0 {
			continue
		}
		if err := u.marker.MarkUsed(ctx, kind, times); err != nil {
			u.log.WarnContext(ctx, "when credentials were last used could not be written", slog.String("kind", string(kind)), slog.Int("credentials", len(times)), slog.Any("error", err))
		}
	}
	times := make(map[OverrideName]time.Time)
	drain(&u.overrides, func(o *Override, last time.Time) {
		name := OverrideName{TenantID: o.TenantID, LimitName: o.LimitName}
		if times[name].Before(last) {
			times[name] = last
		}
	})
	if len(times) == 0 {
		return
	}
	if err := u.marker.MarkOverridesUsed(ctx, times); err != nil {
		u.log.WarnContext(ctx, "when overrides were last used could not be written", slog.Int("overrides", len(times)), slog.Any("error", err))
	}
}

// drain empties what was noted.
func drain[K any](moments *sync.Map, take func(of K, last time.Time)) {
	moments.Range(func(of, entry any) bool {
		moments.Delete(of)
		key, okKey := of.(K)
		last, okLast := entry.(*atomic.Int64)
		if okKey && okLast {
			take(key, time.Unix(last.Load(), 0).UTC())
		}
		return true
	})
}
