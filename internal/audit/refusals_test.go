package audit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/audit"
)

// refusalLog is where the entries of a test go; it can be broken.
type refusalLog struct {
	mu      sync.Mutex
	entries []audit.Entry
	broken  bool
	now     time.Time
}

func (l *refusalLog) record(_ context.Context, entries []audit.Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken {
		return errors.New("postgres is away")
	}
	l.entries = append(l.entries, entries...)
	return nil
}

func (l *refusalLog) clock() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

func (l *refusalLog) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

func (l *refusalLog) written() []audit.Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]audit.Entry(nil), l.entries...)
}

func startRefusals(t *testing.T) (*refusalLog, *audit.Refusals) {
	t.Helper()
	l := &refusalLog{now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}
	r := audit.NewRefusals(l.record, l.clock, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return l, r
}

func stranger(address string) audit.Refusal {
	return audit.Refusal{Actor: audit.Actor{Kind: "anonymous", Name: "anonymous", Address: address, RequestID: "r1"}, Action: "sign_in.refused", Resource: "administration", Cause: "unknown token"}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 20*time.Second, 5*time.Millisecond)
}

func TestTheFirstRefusalIsWrittenAtOnceAndEqualOnesAreGathered(t *testing.T) {
	t.Parallel()
	l, r := startRefusals(t)
	r.Note(stranger("203.0.113.7"))
	eventually(t, func() bool { return len(l.written()) == 1 })
	require.Equal(t, "r1", l.written()[0].Actor.RequestID)
	require.Len(t, l.written()[0].Diff, 1)
	for range 500 {
		r.Note(stranger("203.0.113.7"))
	}
	r.Note(stranger("203.0.113.8")) // another address is told of at once, and so proves that the 500 were not
	eventually(t, func() bool { return len(l.written()) == 2 })
	require.Equal(t, "203.0.113.8", l.written()[1].Actor.Address)
	l.set(func() { l.now = l.now.Add(time.Minute) })
	eventually(t, func() bool { return len(l.written()) == 3 })
	require.JSONEq(t, "500", string(l.written()[2].Diff[1].To))
}

func TestAFloodOfRefusalsCannotFillTheLog(t *testing.T) {
	t.Parallel()
	l, r := startRefusals(t)
	const attempts = 50_000
	for i := range attempts {
		r.Note(stranger(fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255)))
	}
	eventually(t, func() bool { return len(l.written()) == 200 })
	// What an administrator tried is not pushed out, and each time the rest of the flood gets its share.
	const hours = 10
	for hour := range hours {
		before := len(l.written())
		r.Note(audit.Refusal{Actor: audit.Actor{Kind: "admin_token", ID: "a", Name: "alice"}, Action: "request.refused", Resource: "plan", ResourceID: fmt.Sprint(hour)})
		eventually(t, func() bool { return len(l.written()) > before })
		require.LessOrEqual(t, len(l.written())-before, 121)
		l.set(func() { l.now = l.now.Add(time.Hour) })
	}
	require.EqualValues(t, attempts+hours, countOf(t, l.written()))
	require.LessOrEqual(t, len(l.written()), 1002+hours, "a thousand addresses, the rest as one entry, or two when the first is written while the flood goes on, and alice")
}

func TestRefusalsWaitForPostgres(t *testing.T) {
	t.Parallel()
	l, r := startRefusals(t)
	l.set(func() { l.broken = true })
	for range 3 {
		r.Note(stranger("203.0.113.7"))
	}
	l.set(func() { l.broken = false })
	eventually(t, func() bool { return countOf(t, l.written()) == 3 })
}

func countOf(t *testing.T, entries []audit.Entry) (total int64) {
	t.Helper()
	for _, e := range entries {
		n := int64(1)
		for _, d := range e.Diff {
			if d.Field == "count" {
				_, err := fmt.Sscan(string(d.To), &n)
				require.NoError(t, err)
			}
		}
		total += n
	}
	return total
}
