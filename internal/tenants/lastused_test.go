package tenants_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// marks is a UseMarker that remembers.
type marks struct {
	mu    sync.Mutex
	err   error
	calls int
	seen  map[tenants.Kind]map[string]time.Time

	overrides map[tenants.OverrideName]time.Time
}

func (m *marks) MarkUsed(_ context.Context, kind tenants.Kind, lastUsed map[string]time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if m.seen == nil {
		m.seen = map[tenants.Kind]map[string]time.Time{}
	}
	m.seen[kind] = lastUsed
	return m.err
}

func (m *marks) MarkOverridesUsed(_ context.Context, lastUsed map[tenants.OverrideName]time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.overrides = lastUsed
	return m.err
}

func TestLastUsedWritesTheNewestUseOfEachOverride(t *testing.T) {
	m := &marks{}
	u := tenants.NewLastUsed(m, 0, slog.New(slog.DiscardHandler))
	before, after := &tenants.Override{TenantID: 1, LimitName: "a"}, &tenants.Override{TenantID: 1, LimitName: "a", Quota: 9} // replaced meanwhile
	u.NoteOverride(before, noon)
	u.NoteOverride(after, noon.Add(time.Minute))
	u.NoteOverride(&tenants.Override{TenantID: 2, LimitName: "a"}, noon)
	u.Flush(t.Context())
	require.Equal(t, map[tenants.OverrideName]time.Time{
		{TenantID: 1, LimitName: "a"}: noon.Add(time.Minute), {TenantID: 2, LimitName: "a"}: noon,
	}, m.overrides)
	require.Zero(t, testing.AllocsPerRun(100, func() { u.NoteOverride(after, noon) }), "after the first time")
}

func TestLastUsedWritesTheNewestOfEach(t *testing.T) {
	m := &marks{}
	u := tenants.NewLastUsed(m, 0, slog.New(slog.DiscardHandler))
	u.Note(tenants.KindAPIKey, "k1", noon)
	u.Note(tenants.KindAPIKey, "k1", noon.Add(time.Minute))
	u.Note(tenants.KindAPIKey, "k1", noon.Add(time.Second))
	u.Note(tenants.KindServiceToken, "s1", noon)
	u.Note("zzz", "x", noon)
	u.Flush(t.Context())
	require.Equal(t, map[tenants.Kind]map[string]time.Time{
		tenants.KindAPIKey: {"k1": noon.Add(time.Minute)}, tenants.KindServiceToken: {"s1": noon},
	}, m.seen)
	require.Equal(t, 2, m.calls)
	u.Flush(t.Context())
	require.Equal(t, 2, m.calls, "nothing new, nothing written")
	require.Zero(t, testing.AllocsPerRun(100, func() { u.Note(tenants.KindAPIKey, "k1", noon) }), "cheap on the hot path")
}

func TestLastUsedEndsWithItsOwnerAndWritesWhatItHas(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	m := &marks{err: errors.New("away")}
	u := tenants.NewLastUsed(m, time.Hour, slog.New(slog.NewTextHandler(&log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { u.Run(ctx); close(done) }()
	u.Note(tenants.KindAdminToken, "a1", noon)
	cancel()
	<-done
	require.Equal(t, noon, m.seen[tenants.KindAdminToken]["a1"])
	require.Contains(t, log.String(), "could not be written")
}
