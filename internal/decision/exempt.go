package decision

// exemption is everything that may decide which address limits hold. There is no address in it: an exemption never
// depends on where a request comes from.
type exemption struct {
	// own: the address is the caller's own, the one its connection came from. False for an address that a caller names
	// (the end client in /v1/check): nobody's token exempts somebody else's address.
	own bool
	// serviceValid: a service token was presented and is valid; serviceExempt: it is exempt from address limits.
	serviceValid, serviceExempt bool
	// keyValid: an API key was presented and is valid; keyWrong: one was presented and is not.
	keyValid, keyWrong bool
	// vouched: somebody believed named the tenant of the caller.
	vouched bool
	// named: on an address that is not the caller's own, whether it was named with a user or a key.
	named bool
}

// standing is the exemption rule, the only one there is:
//
//   - a valid service token with the exemption spares the caller's own address every address limit;
//   - a wrong API key makes the caller a stranger, whatever else it claims;
//   - a valid API key, a valid service token without the exemption and a vouched tenant are held to the limits that
//     apply to all;
//   - everybody else, a wrong service token included, is anonymous: every address limit holds;
//   - an address that somebody names is anonymous unless a user or a key was named with it.
func standing(x exemption) Standing {
	switch {
	case !x.own && x.named:
		return Authenticated
	case !x.own:
		return Anonymous
	case x.serviceValid && x.serviceExempt:
		return Exempt
	case x.keyWrong:
		return Anonymous
	case x.keyValid, x.serviceValid, x.vouched:
		return Authenticated
	}
	return Anonymous
}
