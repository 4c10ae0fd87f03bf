package tenants_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// Guarantee: a name somebody writes can be seen and steers nothing; white space at its ends is taken off, in plans and tenants of a file as
// elsewhere. What scripts of all directions need stays.
func TestNamesAreVisible(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"": "", "School 17": "", "Grundschule Übach-Palenberg 🐘": "", "مدرسة\u200f 17": "", "بית\u200e": "", "a\u0301": "", "=1+1": "", "<b>": "", "e\u200dx": "",
		" ": "must not be only spaces", "\t\n": "must not be only spaces", "\u00a0\u3000": "must not be only spaces", "\u200b\u2060": "must not be only spaces",
		"\u2800": "must not be only spaces", "\u3164\uffa0": "must not be only spaces", "\ufe0f": "must not be only spaces",
		"a\nb": "must not hold line breaks or other control characters", "a\x1b[31m": "must not hold line breaks or other control characters",
		"a\x7f": "must not hold line breaks or other control characters", "a\u0085b": "must not hold line breaks or other control characters",
		"a\u2028b": "must not hold line breaks or other control characters", "a\tb": "must not hold line breaks or other control characters",
	} {
		var found []tenants.FieldError
		if want != "" {
			found = []tenants.FieldError{{Pointer: "/name", Message: want}}
		}
		if name != "" { // that is the length's matter
			require.Equal(t, found, tenants.ValidateTenant(&tenants.Tenant{Slug: "t", Plan: "p", Status: tenants.Active, Name: name}), "%q", name)
			require.Equal(t, found, tenants.ValidateTenantPatch(&tenants.TenantPatch{Name: &name}), "%q", name)
			require.Equal(t, found, tenants.ValidateAPIKey(&tenants.APIKey{Name: name}, time.Time{}), "%q", name)
			require.Equal(t, found, tenants.ValidateServiceToken(&tenants.ServiceToken{Name: name}, time.Time{}), "%q", name)
			require.Equal(t, found, tenants.ValidateAdminToken(&tenants.AdminToken{Name: name, Role: tenants.Viewer}, time.Time{}), "%q", name)
			require.Empty(t, tenants.ValidateStoredTenant(&tenants.Tenant{Slug: "t", Plan: "p", Status: tenants.Active, Name: name}), "a stored one is served: %q", name)
		}
	}
	for written, stored := range map[string]string{" a  b\n": "a  b", "\u00a0x\t": "x", " ": " ", "": ""} {
		require.Equal(t, stored, tenants.TidyName(written))
	}
	file := func(name string) tenants.Configuration {
		return tenants.Configuration{
			Plans:   []tenants.Plan{{Name: "p", Title: name, Limits: []tenants.Rule{{Limit: ratelimit.Limit{Name: "a", Quota: 1, Window: time.Minute}}}}},
			Tenants: []tenants.ConfiguredTenant{{Tenant: tenants.Tenant{Slug: "t", Name: name, Plan: "p"}}},
		}
	}
	c := file(" Gold \n")
	c.SetDefaults()
	require.Empty(t, tenants.ValidateConfiguration(&c))
	require.Equal(t, "Gold", c.Plans[0].Title)
	require.Equal(t, "Gold", c.Tenants[0].Name)
	c = file(" ")
	c.SetDefaults()
	require.Equal(t, []tenants.FieldError{{Pointer: "/plans/0/title", Message: "must not be only spaces"}, {Pointer: "/tenants/0/name", Message: "must not be only spaces"}},
		tenants.ValidateConfiguration(&c))
}
