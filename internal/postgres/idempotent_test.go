package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// B076: twenty equal requests make one tenant, one audit entry and twenty equal answers.
func TestTwentyEqualCallsMakeOneChange(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.havePlan(t, "light", 10)
	entries := b.number(t, `SELECT count(*) FROM audit_log`)
	var ran, replays atomic.Int64
	bodies := make([]string, 20)
	var wg sync.WaitGroup
	for i := range bodies {
		wg.Go(func() {
			status, body, replayed, err := b.Idempotent(t.Context(), "key-1", [32]byte{1}, func(ctx context.Context) (int, []byte, error) {
				ran.Add(1)
				stored, err := b.CreateTenant(ctx, alice, tenant("school-17", "light"))
				if err != nil {
					return 0, nil, err
				}
				read, err := b.Tenant(ctx, "school-17") // reads inside the change see it
				return 201, fmt.Appendf(nil, "%d %d", stored.ID, read.Version), err
			})
			if err != nil || status != 201 {
				t.Errorf("%d %v", status, err)
			}
			if replayed {
				replays.Add(1)
			}
			bodies[i] = string(body)
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, ran.Load())
	require.EqualValues(t, 19, replays.Load())
	for _, body := range bodies {
		require.Equal(t, bodies[0], body)
	}
	require.Equal(t, entries+1, b.number(t, `SELECT count(*) FROM audit_log`))
	require.EqualValues(t, 1, b.number(t, `SELECT count(*) FROM tenants`))

	_, _, _, err := b.Idempotent(t.Context(), "key-1", [32]byte{2}, func(context.Context) (int, []byte, error) {
		t.Error("another body must not run")
		return 0, nil, nil
	})
	require.ErrorIs(t, err, tenants.ErrConflict)
}

func TestIdempotentFailureLeavesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.havePlan(t, "light", 10)
	before := b.number(t, `SELECT version FROM config_version`)
	boom := errors.New("boom")
	_, _, _, err := b.Idempotent(t.Context(), "key", [32]byte{1}, func(ctx context.Context) (int, []byte, error) {
		_, err := b.CreateTenant(ctx, alice, tenant("school-17", "light"))
		require.NoError(t, err)
		return 0, nil, boom
	})
	require.ErrorIs(t, err, boom)
	require.Zero(t, b.number(t, `SELECT count(*) FROM tenants`))
	require.Equal(t, before, b.number(t, `SELECT version FROM config_version`))
	require.Zero(t, b.number(t, `SELECT count(*) FROM idempotency_keys`))

	// The key is free again, and a change that failed inside can be answered, and the answer kept.
	b.haveTenant(t, "taken", "light")
	entries := b.number(t, `SELECT count(*) FROM audit_log`)
	for round := range 2 {
		status, body, replayed, err := b.Idempotent(t.Context(), "key", [32]byte{1}, func(ctx context.Context) (int, []byte, error) {
			_, err := b.CreateTenant(ctx, alice, tenant("taken", "light"))
			require.ErrorIs(t, err, tenants.ErrConflict)
			_, err = b.CreateTenant(ctx, alice, tenant("free", "light"))
			return 409, []byte("one was taken"), err
		})
		require.NoError(t, err)
		require.Equal(t, 409, status)
		require.Equal(t, "one was taken", string(body))
		require.Equal(t, round == 1, replayed)
	}
	require.Equal(t, entries+1, b.number(t, `SELECT count(*) FROM audit_log`))
}

func TestIdempotencyKeysLiveADay(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := func(key string) (replayed bool) {
		_, _, replayed, err := b.Idempotent(t.Context(), key, [32]byte{1}, func(context.Context) (int, []byte, error) { return 204, nil, nil })
		require.NoError(t, err)
		return replayed
	}
	require.False(t, run("a"))
	require.False(t, run("b"))
	require.True(t, run("a"))
	b.exec(t, `UPDATE idempotency_keys SET created_at = created_at - interval '24 hours 1 second'`)
	require.False(t, run("a"), "a day later it is a new request")
	require.True(t, run("a"))
	b.exec(t, `UPDATE idempotency_keys SET created_at = created_at - interval '26 hours'`)
	require.False(t, run(string(make([]byte, 1<<20))), "any key fits the index")
	require.EqualValues(t, 1, b.number(t, `SELECT count(*) FROM idempotency_keys`), "old keys are swept")
}
