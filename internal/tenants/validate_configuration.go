package tenants

import (
	"fmt"
	"time"
)

// msgTwice is for an object that one list describes twice.
const msgTwice = "must be unique in its list"

// SetDefaults fills in what a file may leave out and brings the rest to its stored form.
func (c *Configuration) SetDefaults() {
	if c.AddressPolicy != nil {
		c.AddressPolicy.SetDefaults()
	}
	for i := range c.Plans {
		c.Plans[i].SetDefaults()
	}
	for i := range c.Tenants {
		c.Tenants[i].SetDefaults()
	}
}

// ValidateConfiguration checks a configuration after SetDefaults. That the plans of its tenants exist is the repository's to
// say. An override or network that has ended is no fault: a file may be older than it.
func ValidateConfiguration(c *Configuration) []FieldError {
	var f findings
	if c.Mode != "" {
		f.within("", ValidateMode(c.Mode))
	}
	if c.AddressPolicy != nil {
		f.within("/address_policy", ValidateAddressPolicy(c.AddressPolicy))
	}
	f.most("/plans", len(c.Plans), MaxConfiguredPlans)
	f.most("/tenants", len(c.Tenants), MaxConfiguredTenants)
	f.most("/networks", len(c.Networks), MaxConfiguredNetworks)
	if len(f) > 0 {
		return f
	}
	var longAgo time.Time
	seen := make(map[string]bool, len(c.Tenants))
	once := func(kind, name, pointer string) {
		f.check(!seen[kind+name], pointer, msgTwice)
		seen[kind+name] = true
	}
	for i := range c.Plans {
		at := fmt.Sprintf("/plans/%d", i)
		f.within(at, ValidatePlan(&c.Plans[i]))
		once("plan ", c.Plans[i].Name, at+"/name")
	}
	for i := range c.Tenants {
		at := fmt.Sprintf("/tenants/%d", i)
		t := &c.Tenants[i]
		f.within(at, ValidateTenant(&t.Tenant))
		once("tenant ", t.Slug, at+"/slug")
		f.overrides(at+"/overrides", t)
	}
	for i := range c.Networks {
		at := fmt.Sprintf("/networks/%d", i)
		n := &c.Networks[i]
		f.within(at, ValidateNetwork(n, longAgo))
		once("network "+string(n.Action)+" ", n.CIDR.String(), at+"/cidr")
	}
	return f
}

func (f *findings) overrides(at string, t *ConfiguredTenant) {
	f.most(at, len(t.Overrides), MaxConfiguredOverrides)
	var longAgo time.Time
	seen := map[string]bool{}
	for i := range t.Overrides {
		at := fmt.Sprintf("%s/%d", at, i)
		o := &t.Overrides[i]
		for _, found := range append(ValidateOverride(o, longAgo), ValidateReason(o.Reason)...) {
			if found.Pointer == "/name" { // how a file calls it
				found.Pointer = "/limit_name"
			}
			f.add(at+found.Pointer, found.Message)
		}
		f.check(!seen[o.LimitName], at+"/limit_name", msgTwice)
		seen[o.LimitName] = true
	}
}

// within puts findings about a part under its pointer.
func (f *findings) within(at string, found []FieldError) {
	for _, e := range found {
		f.add(at+e.Pointer, e.Message)
	}
}

func (f *findings) most(at string, n, bound int) {
	f.check(n <= bound, at, fmt.Sprintf("must have at most %d entries", bound))
}
