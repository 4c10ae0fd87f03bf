package client

import (
	"encoding/json"
	"net/http"
)

// maxCheck is the longest body of one check: more than the longest valid path takes, with every byte of it escaped, and less than
// Pegel reads.
const maxCheck = 256 << 10

// Check is one hit to decide on. The zero value of a field leaves it out; with a service token Tenant, Address or both must
// be named.
type Check struct {
	// Tenant is the tenant's slug. With an API key it may be left out.
	Tenant string
	// User and Key name whose limits of scope user and key hold besides the tenant's: 1…256 bytes each.
	User, Key string
	// Address is the address of your own client, not of the caller of Pegel. It is held to the address policy.
	Address string
	// Method and Path are needed for limits that match on them.
	Method, Path string
	// Cost is how many units the hit takes, 1…1,000,000; 0 means 1. To take nothing, set Peek.
	Cost int64
	// Peek asks what a hit of this cost would get, and takes nothing.
	Peek bool
	// Wait has Pegel hold its answer for the delay of a slowed hit. Without it Decision.Delay is yours to wait.
	Wait bool
}

// encode writes the body of POST /v1/check. What Pegel would refuse to read is refused here: it would cut the connection while
// the rest is still being sent, which looks as if it were away, and in a batch all the others would go down with it.
func (c Check) encode() (json.RawMessage, error) {
	raw, _ := json.Marshal(wireCheck(c)) // texts, numbers and booleans always marshal
	if len(raw) > maxCheck {
		const slug, detail = "payload-too-large", "the check is too large"
		return nil, &Error{
			Status: http.StatusRequestEntityTooLarge, Code: codeTooLarge, Detail: detail,
			Body: problemBody(slug, http.StatusRequestEntityTooLarge, detail),
		}
	}
	return raw, nil
}

// wireCheck is a Check as Pegel reads it.
type wireCheck struct {
	Tenant  string `json:"tenant,omitempty"`
	User    string `json:"user,omitempty"`
	Key     string `json:"key,omitempty"`
	Address string `json:"address,omitempty"`
	Method  string `json:"method,omitempty"`
	Path    string `json:"path,omitempty"`
	Cost    int64  `json:"cost,omitempty"`
	Peek    bool   `json:"peek,omitempty"`
	Wait    bool   `json:"wait,omitempty"`
}

// Query says whose status to read: with a service token Tenant, Address or both, narrowed by User and Key.
type Query struct {
	Tenant, User, Key, Address string
}
