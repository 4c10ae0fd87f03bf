package decision

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Incident 3: identity exempts, never an address; a wrong token exempts nobody; nobody's token exempts another's address.
func TestStanding(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		x    exemption
		want Standing
	}{
		{"nobody", exemption{own: true}, Anonymous},
		{"wrong service token", exemption{own: true}, Anonymous},
		{"valid exempt service token", exemption{own: true, serviceValid: true, serviceExempt: true}, Exempt},
		{"valid service token without the exemption", exemption{own: true, serviceValid: true}, Authenticated},
		{"exemption of a token that is not valid", exemption{own: true, serviceExempt: true}, Anonymous},
		{"valid API key", exemption{own: true, keyValid: true}, Authenticated},
		{"wrong API key", exemption{own: true, keyWrong: true}, Anonymous},
		{"wrong service token beside a valid API key", exemption{own: true, keyValid: true}, Authenticated},
		{"wrong API key of a tenant behind an exempt service", exemption{own: true, serviceValid: true, serviceExempt: true, keyWrong: true}, Exempt},
		{"wrong API key beside a plain service token", exemption{own: true, serviceValid: true, keyWrong: true}, Anonymous},
		{"wrong API key with a vouched tenant", exemption{own: true, vouched: true, keyWrong: true}, Anonymous},
		{"tenant vouched for by a trusted proxy", exemption{own: true, vouched: true}, Authenticated},
		{"client's address named by an exempt service", exemption{serviceValid: true, serviceExempt: true}, Anonymous},
		{"client's address named with a user", exemption{serviceValid: true, serviceExempt: true, named: true}, Authenticated},
		{"client's address named beside a valid key", exemption{keyValid: true}, Anonymous},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, standing(c.x))
		})
	}
}

// Whatever else holds: an address that is not the caller's own is never exempt, and an exemption needs a valid token.
func TestExemptionNeedsAValidTokenOnTheOwnAddress(t *testing.T) {
	t.Parallel()
	for bits := range 1 << 7 {
		is := func(n int) bool { return bits>>n&1 == 1 }
		x := exemption{own: is(0), serviceValid: is(1), serviceExempt: is(2), keyValid: is(3), keyWrong: is(4), vouched: is(5), named: is(6)}
		require.Equal(t, x.own && x.serviceValid && x.serviceExempt, standing(x) == Exempt, "%+v", x)
	}
}
