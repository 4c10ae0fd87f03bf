package postgres_test

import (
	"encoding/base64"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// B075: whoever was there throughout is on exactly one page, whatever others do meanwhile.
func TestPagesNeitherSkipNorRepeat(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.havePlan(t, "light", 10)
	b.exec(t, `INSERT INTO tenants (slug, name, plan_id, changed_in)
		SELECT 'stay-' || n, 'x', p.id, 1 FROM generate_series(1, 1000) n, plans p`) // one transaction, one created_at
	b.exec(t, `INSERT INTO tenants (slug, name, plan_id, changed_in) SELECT 'go-' || n, 'x', p.id, 1 FROM generate_series(1, 100) n, plans p`)

	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 1; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := b.CreateTenant(t.Context(), alice, tenant(fmt.Sprintf("new-%d", n), "light")); err != nil {
				t.Error(err)
				return
			}
			if n <= 100 {
				if err := b.DeleteTenant(t.Context(), alice, fmt.Sprintf("go-%d", n), tenants.Precondition{}); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	seen := map[string]int{}
	cursor := ""
	for {
		list, err := b.ListTenants(t.Context(), tenants.TenantFilter{}, tenants.Page{Cursor: cursor, Limit: 7})
		require.NoError(t, err)
		require.LessOrEqual(t, len(list.Items), 7)
		for _, item := range list.Items {
			seen[item.Slug]++
		}
		if list.Next == "" {
			break
		}
		cursor = list.Next
	}
	close(stop)
	wg.Wait()
	for n := range 1000 {
		require.Equal(t, 1, seen[fmt.Sprintf("stay-%d", n+1)], "stay-%d", n+1)
	}
	for slug, times := range seen {
		require.Equal(t, 1, times, slug)
	}
}

func TestPagesOfEveryList(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := t.Context()
	b.havePlan(t, "light", 10)
	b.haveTenant(t, "school-17", "light")
	b.haveTenant(t, "school-18", "light")
	for n := range 5 {
		id := fmt.Sprintf("x%d", n)
		b.havePlan(t, fmt.Sprintf("plan-%d", n), 1)
		_, err := b.CreateKey(ctx, alice, "school-17", key(id))
		require.NoError(t, err)
		_, err = b.CreateServiceToken(ctx, alice, service(id))
		require.NoError(t, err)
		_, err = b.CreateAdminToken(ctx, alice, tenants.AdminToken{ID: id, Name: id, Role: tenants.Admin})
		require.NoError(t, err)
		_, _, err = b.PutOverride(ctx, alice, "school-17", tenants.Override{LimitName: id, Reason: "r"})
		require.NoError(t, err)
		_, err = b.CreateNetwork(ctx, alice, tenants.Network{CIDR: prefix(fmt.Sprintf("10.%d.0.0/16", n)), Action: tenants.Deny})
		require.NoError(t, err)
	}
	keys := func(p tenants.Page) (int, string, error) {
		return sizeOf(b.ListKeys(ctx, "school-17", tenants.CredentialFilter{}, p))
	}
	services := func(p tenants.Page) (int, string, error) {
		return sizeOf(b.ListServiceTokens(ctx, tenants.CredentialFilter{}, p))
	}
	for name, list := range map[string]func(p tenants.Page) (int, string, error){
		"keys": keys, "services": services,
		"plans": func(p tenants.Page) (int, string, error) { return sizeOf(b.ListPlans(ctx, tenants.PlanFilter{}, p)) },
		"admins": func(p tenants.Page) (int, string, error) {
			return sizeOf(b.ListAdminTokens(ctx, tenants.CredentialFilter{}, p))
		},
		"overrides": func(p tenants.Page) (int, string, error) {
			return sizeOf(b.ListOverrides(ctx, "school-17", tenants.OverrideFilter{}, p))
		},
		"networks": func(p tenants.Page) (int, string, error) {
			return sizeOf(b.ListNetworks(ctx, tenants.NetworkFilter{}, p))
		},
		"audit": func(p tenants.Page) (int, string, error) {
			return sizeOf(b.ListAudit(ctx, audit.Filter{Action: "plan.create"}, p))
		},
	} {
		want := 5
		if name == "plans" || name == "audit" {
			want = 6
		}
		total, pages, cursor := 0, 0, ""
		for {
			n, next, err := list(tenants.Page{Cursor: cursor, Limit: 2})
			require.NoError(t, err, name)
			require.LessOrEqual(t, n, 2)
			total += n
			pages++
			if cursor = next; cursor == "" {
				break
			}
		}
		require.Equal(t, want, total, name)
		require.Equal(t, 3, pages, "%s: no empty page at the end", name)
	}

	_, next, err := keys(tenants.Page{Limit: 2})
	require.NoError(t, err)
	_, _, err = services(tenants.Page{Cursor: next})
	require.ErrorIs(t, err, tenants.ErrCursor, "a cursor of another list")
	_, err = b.ListKeys(ctx, "school-18", tenants.CredentialFilter{}, tenants.Page{Cursor: next})
	require.ErrorIs(t, err, tenants.ErrCursor, "a cursor of another tenant")
	for i := range len(next) {
		damaged := []byte(next)
		damaged[i] ^= 1
		if _, _, err := keys(tenants.Page{Cursor: string(damaged)}); err != nil {
			require.ErrorIs(t, err, tenants.ErrCursor)
		} else {
			t.Fatalf("damaged at %d and accepted", i)
		}
	}
	for _, bad := range []string{"x", "====", "AAAAAAAAAAAAAAAA", base64.RawURLEncoding.EncodeToString([]byte("3")), string(make([]byte, 1<<20)), postgres.EncodeCursor("keys of school-17", "not a number")} {
		_, _, err := keys(tenants.Page{Cursor: bad})
		require.ErrorIs(t, err, tenants.ErrCursor)
	}
	for _, key := range []string{"a\x00b", "\xff\xfe", "\xed\xa0\x80"} { // anybody can compute the checksum
		_, err := b.ListPlans(ctx, tenants.PlanFilter{}, tenants.Page{Cursor: postgres.EncodeCursor("plans", key)})
		require.ErrorIs(t, err, tenants.ErrCursor)
		_, err = b.ListTenants(ctx, tenants.TenantFilter{}, tenants.Page{Cursor: postgres.EncodeCursor("tenants", key)})
		require.ErrorIs(t, err, tenants.ErrCursor)
		_, err = b.ListOverrides(ctx, "school-17", tenants.OverrideFilter{}, tenants.Page{Cursor: postgres.EncodeCursor("overrides of school-17", key)})
		require.ErrorIs(t, err, tenants.ErrCursor)
	}
	for _, limit := range []int{0, -1, 1_000_000_000} {
		n, _, err := keys(tenants.Page{Limit: limit})
		require.NoError(t, err)
		require.Equal(t, 5, n)
	}
}

func sizeOf[T any](list tenants.List[T], err error) (int, string, error) {
	return len(list.Items), list.Next, err
}
